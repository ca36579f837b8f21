package storedjson

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"

	"github.com/tidewaiter/tidewaiter/internal/benchtest"
	"github.com/tidewaiter/tidewaiter/web/storedjson/internal/filecache"
)

// BenchmarkOne reads objects of 20 kB one by one, each for the first and the second time, with a
// cache and without, in turn.
func BenchmarkOne(b *testing.B) {
	const objects = 400
	f := setup(b)
	kinds := []*kind{f.newKind(b), f.newKind(b)}
	kinds[1].plain.got = filecache.New[sums](b.TempDir(), 100)
	text := map[string]string{"text": strings.Repeat("a <text> ", 20<<10/9)}
	var took [2][2][]float64 // of the first and the second time, with a cache and without
	for round := 0; b.Loop(); round++ {
		names := make([]string, objects)
		for i := range names {
			names[i] = fmt.Sprintf("%d-%d", round, i)
			pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: names[i], Annotations: text}}
			if err := f.Create(b.Context(), "/pods/"+names[i], pod, nil, 0); err != nil {
				b.Fatal(err)
			}
		}
		for time := range took {
			for i := range kinds {
				i = (i + round) % 2
				cost := benchtest.Timed(func() {
					for _, name := range names {
						r, err := kinds[i].plain.one(b.Context(), name)
						if err != nil {
							b.Fatal(err)
						}
						kinds[i].plain.reuse(r)
					}
				})
				took[time][i] = append(took[time][i], float64(cost.Processor.Nanoseconds())/objects/1000)
			}
		}
	}
	for time, name := range []string{"first", "second"} {
		b.ReportMetric(benchtest.Median(took[time][0]), name+"-µs")
		b.ReportMetric(benchtest.Median(took[time][1]), name+"-without-µs")
	}
}

package spool_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/spool"
	"github.com/tidewaiter/tidewaiter/importer/push"
)

// BenchmarkEnqueue is the disk's part of acknowledging a push, into an
// empty spool and into a deep one. p99-ms is over single calls.
func BenchmarkEnqueue(b *testing.B) {
	for _, senders := range []int{1, 16, 64} {
		for _, depth := range []int{0, 50_000} {
			b.Run(fmt.Sprintf("Senders=%d/Depth=%d", senders, depth), func(b *testing.B) {
				d := dbtest.Open(b)
				s, err := spool.Open(d, spool.Options{Quota: 1 << 40})
				if err != nil {
					b.Fatal(err)
				}
				ctx := context.Background()
				for i := 0; i < depth; i += 1000 {
					var batch []push.Event
					for j := range 1000 {
						batch = append(batch, benchEvent("old", i+j))
					}
					if err := s.Enqueue(ctx, batch); err != nil {
						b.Fatal(err)
					}
				}
				var next atomic.Int64
				took := make([]time.Duration, b.N)
				b.ResetTimer()
				var wg sync.WaitGroup
				for range senders {
					wg.Go(func() {
						for {
							i := int(next.Add(1)) - 1
							if i >= b.N {
								return
							}
							start := time.Now()
							if err := s.Enqueue(ctx, []push.Event{benchEvent("new", i)}); err != nil {
								b.Error(err)
								return
							}
							took[i] = time.Since(start)
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				slices.Sort(took)
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			})
		}
	}
}

func benchEvent(prefix string, i int) push.Event {
	return push.Event{
		Receiver: "bench", ID: prefix + strconv.Itoa(i), Action: push.Pushed,
		Host: "registry.example.com", Repository: "team/" + prefix, Tag: strconv.Itoa(i), Digest: fmt.Sprintf("sha256:%064d", i),
	}
}

// BenchmarkWork claims and ends jobs, eight at a time.
func BenchmarkWork(b *testing.B) {
	d := dbtest.Open(b)
	s, err := spool.Open(d, spool.Options{Quota: 1 << 40})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	for i := range b.N {
		if err := s.Enqueue(ctx, []push.Event{benchEvent("new", i)}); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	for done := 0; done < b.N; {
		jobs, err := s.Claim(ctx, 8, time.Minute, nil)
		if err != nil {
			b.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, j := range jobs {
			wg.Go(func() {
				if err := s.Done(ctx, j); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
		done += len(jobs)
	}
}

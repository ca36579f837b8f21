package db_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// BenchmarkWithout measures the effect of shared commits and of the loop that copies the log:
// durable writes by sixteen writers with and without each. p99-ms is the time of one write.
func BenchmarkWithout(b *testing.B) {
	for _, m := range []struct {
		name string
		off  func() (undo func())
	}{
		{"None", func() func() { return func() {} }},
		{"SharedCommits", db.CommitAlone},
		{"CheckpointLoop", db.CopyLogInCommits},
	} {
		b.Run("Mechanism="+m.name, func(b *testing.B) {
			defer m.off()()
			d := dbtest.Open(b, quiet)
			value := make([]byte, benchValue)
			var n atomic.Int64
			latencies := make([]time.Duration, b.N)
			var all sync.WaitGroup
			b.SetBytes(benchValue)
			b.ResetTimer()
			for range 16 {
				all.Go(func() {
					for i := int(n.Add(1)) - 1; i < b.N; i = int(n.Add(1)) - 1 {
						start := time.Now()
						if _, err := d.Put(context.Background(), benchKey(i), 0, value, db.PutOptions{}); err != nil {
							b.Error(err)
						}
						latencies[i] = time.Since(start)
					}
				})
			}
			all.Wait()
			b.StopTimer()
			slices.Sort(latencies)
			b.ReportMetric(float64(latencies[len(latencies)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

// BenchmarkReplay lets many watchers read the same events from the file at once. An operation is an
// event that all have seen.
func BenchmarkReplay(b *testing.B) {
	const events, watchers = 500, 100
	for _, shared := range []bool{true, false} {
		b.Run(fmt.Sprintf("Shared=%v/Watchers=%d", shared, watchers), func(b *testing.B) {
			d := dbtest.Open(b, quiet, func(o *db.Options) { o.ChangelogBytes = 4 << 20 })
			fill(b, d, events, make([]byte, benchValue))
			if !shared {
				d.ReplayAlone()
			}
			for b.Loop() {
				var all sync.WaitGroup
				for range watchers {
					all.Go(func() {
						w, err := d.Watch("/g/images/", false, 0)
						if err != nil {
							b.Error(err)
							return
						}
						defer w.Stop()
						for seen := 0; seen < events; {
							got, err := w.Poll(b.Context())
							if err != nil || len(got) == 0 {
								b.Errorf("%d events, then %v", seen, err)
								return
							}
							seen += len(got)
						}
					})
				}
				all.Wait()
			}
			b.ReportMetric(float64(b.N*watchers*events)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

package db_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// benchValue is about the size of an Image.
const benchValue = 20 << 10

func benchDB(b *testing.B, objects, size int) *db.DB {
	d := dbtest.Open(b, func(o *db.Options) { o.Logger = slog.New(slog.DiscardHandler) })
	value := make([]byte, size)
	fill(b, d, objects, value)
	return d
}

// fill creates objects, many in each commit.
func fill(b testing.TB, d *db.DB, objects int, value []byte) {
	for i := 0; i < objects; {
		err := d.Write(context.Background(), func(t *db.Tx) error {
			for end := min(i+500, objects); i < end; i++ {
				if _, err := t.PutTx(benchKey(i), 0, value); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// benchKey scatters the keys, as digests are scattered.
func benchKey(i int) string {
	r := rand.New(rand.NewPCG(uint64(i), 0))
	return fmt.Sprintf("/g/images/sha256:%016x%016x%016x%016x", r.Uint64(), r.Uint64(), r.Uint64(), r.Uint64())
}

func BenchmarkPut(b *testing.B) {
	for _, writers := range []int{1, 16, 64} {
		for _, size := range []int{2 << 10, benchValue} {
			b.Run(fmt.Sprintf("Op=Create/Writers=%d/Size=%d", writers, size), func(b *testing.B) {
				d := benchDB(b, 0, size)
				value := make([]byte, size)
				var n atomic.Int64
				b.SetBytes(int64(size))
				b.SetParallelism(max(1, writers/2)) // times GOMAXPROCS
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						if _, err := d.Put(context.Background(), benchKey(int(n.Add(1))), 0, value, db.PutOptions{}); err != nil {
							b.Error(err)
						}
					}
				})
			})
		}
	}
}

// BenchmarkPutIndexed puts objects with a dozen index entries each, as an Image has: all objects
// share some of the values, and few share the others.
func BenchmarkPutIndexed(b *testing.B) {
	d := benchDB(b, 0, benchValue)
	ix, err := d.DeclareIndexes(b.Context(), "/g/images/", []string{"values"}, func(db.KV, []*db.Index) ([]db.IndexEntry, error) { return nil, nil })
	if err != nil {
		b.Fatal(err)
	}
	for !ix[0].Ready() {
		<-time.After(time.Millisecond)
	}
	value := make([]byte, benchValue)
	var n atomic.Int64
	b.SetParallelism(8) // times GOMAXPROCS
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := int(n.Add(1))
			key := benchKey(i)
			entries := make([]db.IndexEntry, 12)
			for j := range entries {
				v := fmt.Sprintf("field-%d=shared by all", j)
				switch {
				case j < 3:
					v = fmt.Sprintf("field-%d=registry.example.com/team/app@%s", j, key)
				case j < 6:
					v = fmt.Sprintf("field-%d=team-%d", j, i%50)
				}
				entries[j] = db.IndexEntry{Index: ix[0], Value: v}
			}
			if _, err := d.Put(context.Background(), key, 0, value, db.PutOptions{Index: entries}); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkGet(b *testing.B) {
	for _, objects := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("Op=Get/Objects=%d", objects), func(b *testing.B) {
			d := benchDB(b, objects, benchValue)
			b.SetBytes(benchValue)
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				if _, ok, _, err := d.Get(context.Background(), benchKey(i%objects)); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}

func BenchmarkRange(b *testing.B) {
	const objects = 10000
	d := benchDB(b, objects, benchValue)
	for _, bench := range []struct {
		name string
		o    db.RangeOptions
	}{
		{"Op=Page/Limit=500/At=now", db.RangeOptions{Limit: 500, Count: true}},
		{"Op=Page/Limit=500/At=revision", db.RangeOptions{Limit: 500, Count: true, Rev: d.Revision()}},
		{"Op=Page/Limit=500/At=end", db.RangeOptions{Limit: 500, From: "/g/images/sha256:f", Rev: d.Revision()}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			bench.o.Prefix = "/g/images/"
			b.ReportAllocs()
			var bytes int64
			for b.Loop() {
				page, err := d.Range(context.Background(), bench.o)
				if err != nil || len(page.KVs) == 0 {
					b.Fatal(err)
				}
				bytes += int64(len(page.KVs)) * benchValue
			}
			b.SetBytes(bytes / int64(b.N))
		})
	}
	b.Run(fmt.Sprintf("Op=List/Objects=%d", objects), func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(objects * benchValue)
		for b.Loop() {
			o := db.RangeOptions{Prefix: "/g/images/", Limit: 500}
			for n := 0; n < objects; {
				page, err := d.Range(context.Background(), o)
				if err != nil {
					b.Fatal(err)
				}
				n += len(page.KVs)
				o.Rev, o.From = page.Rev, page.KVs[len(page.KVs)-1].Key+"\x00"
			}
		}
	})
}

// BenchmarkPutDuringMaintenance measures how compaction, vacuum and expiry of many large objects
// delay a writer.
func BenchmarkPutDuringMaintenance(b *testing.B) {
	for _, busy := range []bool{false, true} {
		b.Run(fmt.Sprintf("Compacting=%v", busy), func(b *testing.B) {
			d := dbtest.Open(b, func(o *db.Options) {
				quiet(o)
				o.HistoryWindow, o.MaintenanceInterval = time.Millisecond, time.Hour
				if busy {
					o.MaintenanceInterval = time.Millisecond
				}
			})
			value := make([]byte, benchValue)
			stop := make(chan struct{})
			var wg sync.WaitGroup
			if busy {
				wg.Go(func() { churn(b, d, value, stop) })
			}
			latencies := make([]time.Duration, 0, b.N)
			b.ResetTimer()
			for i := range b.N {
				start := time.Now()
				if _, err := d.Put(context.Background(), fmt.Sprintf("/p/%d", i), 0, value, db.PutOptions{}); err != nil {
					b.Fatal(err)
				}
				latencies = append(latencies, time.Since(start))
			}
			b.StopTimer()
			close(stop)
			wg.Wait()
			slices.Sort(latencies)
			b.ReportMetric(float64(latencies[len(latencies)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(float64(latencies[len(latencies)-1].Microseconds())/1000, "max-ms")
		})
	}
}

// churn repeatedly writes thousands of objects and deletes them.
func churn(b *testing.B, d *db.DB, value []byte, stop chan struct{}) {
	revs := map[string]int64{}
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		err := d.Write(context.Background(), func(t *db.Tx) error {
			for j := range 20 {
				key := fmt.Sprintf("/churn/%d", (i*20+j)%2000)
				rev, err := t.PutTx(key, revs[key], value)
				if err != nil {
					return err
				}
				revs[key] = rev
			}
			return nil
		})
		if err != nil {
			b.Error(err)
			return
		}
	}
}

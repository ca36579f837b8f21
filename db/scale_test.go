package db_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
)

var (
	scaleFlag = flag.String("objects", "1000,20000", "numbers of objects of BenchmarkScale")
	scaleDir  = flag.String("dir", "", "keep and reuse the databases of BenchmarkScale in this directory")
)

// BenchmarkScale shows how cost grows with the number of objects of 19.7 KB.
// A million take 20 GB and minutes to write: -objects=1000,1000000 -dir=DIR
// keeps them for the next run.
func BenchmarkScale(b *testing.B) {
	for n := range strings.SplitSeq(*scaleFlag, ",") {
		objects, err := strconv.Atoi(n)
		if err != nil {
			b.Fatal(err)
		}
		b.Run("Objects="+n, func(b *testing.B) { benchScale(b, objects) })
	}
}

const scaleValue = 19700

func openScale(b *testing.B, objects int) (*db.DB, *db.Index) {
	dir := b.TempDir()
	if *scaleDir != "" {
		dir = fmt.Sprintf("%s/%d", *scaleDir, objects)
	}
	opts := db.Options{Dir: dir, HistoryWindow: time.Hour} // no compaction between figures
	quiet(&opts)
	d, err := db.Open(opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { d.Close() })
	// Ten objects have the rare value.
	indexes, err := d.DeclareIndexes(context.Background(), "/g/images/", []string{"color"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	n, _, err := d.Totals(context.Background(), "/g/images/")
	if err != nil {
		b.Fatal(err)
	}
	value := []byte(strings.Repeat("v", scaleValue))
	for i := int(n); i < objects; i++ {
		end := min(i+500, objects)
		err := d.Write(context.Background(), func(t *db.Tx) error {
			for j := i; j < end; j++ {
				entry := "common"
				if j%(objects/10) == 0 {
					entry = "rare"
				}
				if err := t.PutIndexed(benchKey(j), value, db.IndexEntry{Index: indexes[0], Value: entry}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		i = end - 1
	}
	return d, indexes[0]
}

func benchScale(b *testing.B, objects int) {
	d, ix := openScale(b, objects)
	ctx := context.Background()
	list := func(b *testing.B, o db.RangeOptions, want int) {
		o.Prefix = "/g/images/"
		for b.Loop() {
			got := 0
			for o := o; got < want; {
				page, err := d.Range(ctx, o)
				if err != nil || len(page.KVs) == 0 {
					b.Fatal(len(page.KVs), err)
				}
				got += len(page.KVs)
				o.Rev, o.From, o.Limit = page.Rev, page.KVs[len(page.KVs)-1].Key+"\x00", o.Limit-len(page.KVs)
			}
		}
	}
	page := min(500, objects/2)
	b.Run("Op=Page/At=first", func(b *testing.B) { list(b, db.RangeOptions{Limit: page, Count: true}, page) })
	b.Run("Op=Page/At=last", func(b *testing.B) {
		from := lastPage(b, d, page)
		b.ResetTimer()
		list(b, db.RangeOptions{Limit: page, From: from, Rev: d.Revision(), Count: true}, page)
	})
	b.Run("Op=Index/Matches=10", func(b *testing.B) {
		list(b, db.RangeOptions{Index: []db.IndexQuery{{Index: ix, Values: []string{"rare"}}}, Limit: 10}, 10)
	})
	b.Run("Op=Index/Part", func(b *testing.B) {
		list(b, db.RangeOptions{Index: []db.IndexQuery{{Index: ix, Part: "ARE"}}, Limit: 10}, 10)
	})
	b.Run("Op=Get", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if _, ok, _, err := d.Get(ctx, benchKey(i*7919%objects)); !ok || err != nil {
				b.Fatal(ok, err)
			}
		}
	})
	b.Run("Op=Create/Writers=16", func(b *testing.B) {
		value := []byte(strings.Repeat("v", scaleValue))
		start := time.Now().UnixNano()
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				key := fmt.Sprintf("/g/extra/%x-%p-%d", start, pb, i)
				if _, err := d.Put(ctx, key, 0, value, db.PutOptions{}); err != nil {
					b.Error(err)
				}
			}
		})
	})
	b.Run("Op=PageThroughAll", func(b *testing.B) {
		for b.Loop() {
			o := db.RangeOptions{Prefix: "/g/images/", Limit: 500, Count: true}
			for {
				page, err := d.Range(ctx, o)
				if err != nil {
					b.Fatal(err)
				}
				if !page.More {
					break
				}
				o.Rev, o.From = page.Rev, page.KVs[len(page.KVs)-1].Key+"\x00"
			}
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.Sys)/(1<<20), "Go-MiB")
		b.ReportMetric(rss(), "RSS-MiB")
	})
	b.Run("Op=Open", func(b *testing.B) {
		dir := strings.TrimSuffix(d.Path(), "/"+datafile.FileName)
		if err := d.Close(); err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			d, err := db.Open(db.Options{Dir: dir, HistoryWindow: time.Hour})
			if err != nil {
				b.Fatal(err)
			}
			d.Close()
		}
	})
}

// lastPage returns the key at which the last page begins.
func lastPage(b *testing.B, d *db.DB, rows int) string {
	from, err := d.QueryText(`SELECT min(key) FROM (SELECT key FROM revisions INDEXED BY live
		WHERE until IS NULL AND key >= '/g/images/' AND key < '/g/images0' ORDER BY key DESC LIMIT ?)`, int64(rows))
	if err != nil {
		b.Fatal(err)
	}
	return from
}

// rss is the resident memory in MiB, or 0 without /proc.
func rss() float64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident float64
	fmt.Sscan(string(b), &size, &resident)
	return resident * float64(os.Getpagesize()) / (1 << 20)
}

package db_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

func TestStats(t *testing.T) {
	d := dbtest.Open(t, func(o *db.Options) { o.MaintenanceInterval = time.Hour })
	var first int64
	for i := range 3 {
		rev := put(t, d, fmt.Sprintf("/core/pods/ns-%d/p", i), 0, "12345")
		if first == 0 {
			first = rev
		}
		put(t, d, fmt.Sprintf("/core/pods/ns-%d/p", i), rev, "123")
	}
	rev := put(t, d, "/image/images/sha256:1", 0, "1234567890")
	if _, err := d.Delete(t.Context(), "/image/images/sha256:1", rev); err != nil {
		t.Fatal(err)
	}
	put(t, d, "/image/images/sha256:2", 0, "1")
	want := []datafile.ResourceStats{
		{Prefix: "/core/pods/", Objects: 3, Bytes: 9, Revisions: 6},
		{Prefix: "/image/images/", Objects: 1, Bytes: 1, Revisions: 3},
	}
	s, err := datafile.ReadStats(t.Context(), filepath.Dir(d.Path()))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, s.Resources); diff != "" {
		t.Error(diff)
	}
	if s.Revision != d.Revision() || s.Oldest != first || s.PageSize != 4096 || s.Pages == 0 || s.FileBytes == 0 || s.WALBytes == 0 || time.Since(s.OldestAt) > time.Minute {
		t.Errorf("%+v", s)
	}
	if _, err := datafile.ReadStats(t.Context(), t.TempDir()); err == nil || !strings.Contains(err.Error(), "no database") {
		t.Errorf("stats of an empty directory: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	d := dbtest.Open(t, func(o *db.Options) { o.MaintenanceInterval = time.Millisecond })
	w, err := d.Watch("/a/", false, d.Revision())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := d.Put(t.Context(), "/a/k", 0, []byte("v"), db.PutOptions{TTL: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	for events := 0; events < 2; { // the creation and the expiry
		<-w.Ready()
		got, err := w.Poll(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		events += len(got)
	}
	reg := prometheus.NewPedanticRegistry()
	if err := reg.Register(d); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		problems, err := promlint.NewWithMetricFamilies(families).Lint()
		if err != nil || len(problems) > 0 {
			t.Errorf("lint: %v, %v", problems, err)
		}
		got := map[string]float64{}
		for _, f := range families {
			m := f.Metric[0]
			switch {
			case m.Histogram != nil:
				got[f.GetName()] = float64(m.Histogram.GetSampleCount())
			case m.Counter != nil:
				got[f.GetName()] = m.Counter.GetValue()
			default:
				got[f.GetName()] = m.Gauge.GetValue()
			}
		}
		missing := ""
		for name, least := range map[string]float64{
			"tidewaiter_db_commit_duration_seconds": 2, "tidewaiter_db_commit_writers": 2, "tidewaiter_db_read_duration_seconds": 1,
			"tidewaiter_db_event_lag_seconds": 1, "tidewaiter_db_watchers": 1, "tidewaiter_db_revision": 3,
			"tidewaiter_db_expired_keys_total": 1, "tidewaiter_db_file_size_bytes": 4096,
		} {
			if got[name] < least {
				missing += fmt.Sprintf("%s is %v, want at least %v\n", name, got[name], least)
			}
		}
		if missing == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(missing)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestFileShrinks: the space of deleted and compacted objects is returned to the file system while
// the store is in use.
func TestFileShrinks(t *testing.T) {
	d := dbtest.Open(t, func(o *db.Options) { o.HistoryWindow = time.Millisecond; o.MaintenanceInterval = time.Millisecond })
	ctx := t.Context()
	fill(t, d, 2000, make([]byte, 10000))
	full, err := d.QueryInt("PRAGMA page_count")
	if err != nil {
		t.Fatal(err)
	}
	page, err := d.Range(ctx, db.RangeOptions{Prefix: "/", KeysOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range page.KVs[100:] {
		if _, err := d.Delete(ctx, kv.Key, kv.Rev); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		pages, err := d.QueryInt("PRAGMA page_count")
		if err != nil {
			t.Fatal(err)
		}
		if pages < full/5 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d pages", pages, full)
		}
	}
}

// TestLogIsBounded: the log is truncated even if reads and commits follow each other without a
// pause.
func TestLogIsBounded(t *testing.T) {
	const limit = 4 << 20
	t.Cleanup(db.SetWALLimit(limit))
	d := dbtest.Open(t, func(o *db.Options) { o.MaintenanceInterval = time.Millisecond; o.HistoryWindow = time.Millisecond })
	fill(t, d, 300, make([]byte, 10000))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					if _, err := d.Range(context.Background(), db.RangeOptions{Prefix: "/"}); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	cuts, rev, size := 0, int64(0), int64(0)
	for deadline := time.Now().Add(time.Minute); cuts < 3; {
		var err error
		if rev, err = d.Put(t.Context(), "/big", rev, make([]byte, 100000), db.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		now := datafile.FileSize(d.Path() + "-wal")
		if now < size {
			cuts++
		}
		if size = now; time.Now().After(deadline) {
			t.Fatalf("the log was truncated %d times; it has %d bytes", cuts, size)
		}
	}
}

package backup_test

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

var quietLogger = slog.New(slog.DiscardHandler)

func quiet(o *db.Options) { o.Logger = quietLogger }

// put writes a key and returns its revision.
func put(t testing.TB, d *db.DB, key string, expect int64, value string) int64 {
	t.Helper()
	rev, err := d.Put(t.Context(), key, expect, []byte(value), db.PutOptions{})
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return rev
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// gauge reads a metric.
func gauge(t *testing.T, d prometheus.Collector, name string) float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(d)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "tidewaiter_db_"+name {
			m := f.GetMetric()[0] // a gauge or a counter
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// migrate runs migration steps on a file.
func migrate(path string, steps []string) error {
	c, err := sqlite.Open(path)
	if err != nil {
		return err
	}
	defer c.Close()
	return datafile.Migrate(c, path, steps)
}

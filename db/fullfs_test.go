//go:build linux

package db_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// TestFullFileSystem fills a real file system that holds the database, the log and the log's index,
// and then frees space on it.
func TestFullFileSystem(t *testing.T) {
	dbtest.OnSmallDisk(t, 16<<20, func(mount string) { fullFileSystem(t, mount) })
}

func fullFileSystem(t *testing.T, mount string) {
	ballast := filepath.Join(mount, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	d := dbtest.OpenOptions(t, db.Options{Dir: filepath.Join(mount, "data"), MaintenanceInterval: time.Millisecond, Logger: quietLogger})
	value := strings.Repeat("x", 50000)
	stored := 0
	for {
		_, err := d.Put(t.Context(), fmt.Sprintf("/a/%04d", stored), 0, []byte(value), db.PutOptions{})
		var full *datafile.UnavailableError
		if errors.As(err, &full) {
			if !strings.Contains(full.Reason, "full") {
				t.Errorf("reason %q does not say that the disk is full", full.Reason)
			}
			break
		}
		if err != nil || stored > 1000 {
			t.Fatalf("put %d: %v", stored, err)
		}
		stored++
	}
	for i := range stored {
		kv, ok, _, err := d.Get(t.Context(), fmt.Sprintf("/a/%04d", i))
		if err != nil || !ok || string(kv.Value) != value {
			t.Fatalf("get %d on a full disk: found %v, %v", i, ok, err)
		}
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	put(t, d, "/a/after", 0, value)
	page, err := d.Range(t.Context(), db.RangeOptions{Prefix: "/a/", KeysOnly: true})
	if err != nil || len(page.KVs) != stored+1 {
		t.Errorf("%d keys, %v; want %d", len(page.KVs), err, stored+1)
	}
}

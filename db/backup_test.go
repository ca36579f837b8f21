package db_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// TestBackupAndRestore makes a backup while writers continue, and restores it.
func TestBackupAndRestore(t *testing.T) {
	d := dbtest.Open(t, quiet)
	ctx := t.Context()
	dir := filepath.Dir(d.Path())
	// Each writer counts up two keys in one write: a backup must never show them apart.
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				err := d.Write(context.Background(), func(t *db.Tx) error {
					for _, side := range []string{"left", "right"} {
						if _, err := t.PutTx(fmt.Sprintf("/w%d/%s-%06d", w, side, i), 0, []byte(strings.Repeat("x", 2000))); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for d.Revision() < 500 {
	}
	before := d.Revision()
	file := filepath.Join(t.TempDir(), "backup.db")
	if err := backup.Make(ctx, dir, file); err != nil {
		t.Fatal(err)
	}
	after := d.Revision()
	if err := backup.Make(ctx, dir, file); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a second backup to the same file: %v, want a refusal", err)
	}
	var stream bytes.Buffer
	if err := backup.Stream(ctx, dir, &stream); err != nil {
		t.Fatal(err)
	}
	close(stop)
	wg.Wait()
	if after == before {
		t.Error("no write happened during the backup: the test shows nothing")
	}
	streamed := filepath.Join(t.TempDir(), "stream.db")
	if err := os.WriteFile(streamed, stream.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{file, streamed} {
		to := filepath.Join(t.TempDir(), "new")
		if err := backup.Restore(ctx, file, to); err != nil {
			t.Fatal(err)
		}
		r := dbtest.OpenOptions(t, db.Options{Dir: to})
		sides := map[string]int{}
		o := db.RangeOptions{Prefix: "/", KeysOnly: true}
		for {
			page, err := r.Range(ctx, o)
			if err != nil {
				t.Fatal(err)
			}
			for _, kv := range page.KVs {
				sides[strings.NewReplacer("left", "", "right", "").Replace(kv.Key)]++
			}
			if !page.More {
				break
			}
			o.Rev, o.From = page.Rev, page.KVs[len(page.KVs)-1].Key+"\x00"
		}
		if len(sides) == 0 {
			t.Error("the restored database is empty")
		}
		for key, n := range sides {
			if n != 2 {
				t.Errorf("%s: half a write was backed up", key)
			}
		}
		// A client that saw a lost revision must list again.
		for _, rev := range []int64{before, d.Revision(), d.Revision() + 1000000} {
			w, err := r.Watch("/", false, rev)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Poll(ctx); !errors.Is(err, db.ErrCompacted) {
				t.Errorf("watch of the restored database from %d: %v, want ErrCompacted", rev, err)
			}
			w.Stop()
			if _, err := r.Range(ctx, db.RangeOptions{Prefix: "/", Rev: rev}); !errors.Is(err, db.ErrCompacted) {
				t.Errorf("list of the restored database at %d: %v, want ErrCompacted", rev, err)
			}
		}
		put(t, r, "/new", 0, "v")
	}
}

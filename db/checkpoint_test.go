package db_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// TestCheckpointOfSmallWrites: the checkpoint loop copies the log also when it grows by many small
// values. Otherwise the writer would copy it, within a commit.
func TestCheckpointOfSmallWrites(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t, quiet)
	shell, err := sql.Open("sqlite3", "file:"+d.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	logged := func() (pages, copied int64) {
		t.Helper()
		var busy int64
		if err := shell.QueryRow("PRAGMA wal_checkpoint(NOOP)").Scan(&busy, &pages, &copied); err != nil {
			t.Fatal(err)
		}
		return pages, copied
	}
	value := strings.Repeat("x", 100)
	bytes := 0
	for n := 0; ; n++ {
		pages, copied := logged()
		if copied > 0 {
			return
		}
		if pages >= 8000 { // the writer would do it itself at 12000
			break
		}
		err := d.Write(t.Context(), func(tx *db.Tx) error {
			for i := range 50 {
				bytes += len(value)
				if _, err := tx.PutTx(fmt.Sprintf("/a/%d/%d", i, n), 0, []byte(value)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		pages, copied := logged()
		if copied > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("of %d pages in the log, for %d bytes of values, none was copied", pages, bytes)
		}
	}
}

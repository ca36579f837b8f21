package dbtest

import (
	"database/sql"
	"testing"

	_ "github.com/mattn/go-sqlite3" // the driver of damaging connections

	"github.com/tidewaiter/tidewaiter/db"
)

// Damage flips the bits of the first byte of key's stored value, directly in the file. d must be
// idle.
func Damage(t testing.TB, d *db.DB, key string) {
	t.Helper()
	raw, err := sql.Open("sqlite3", "file:"+d.Path()+"?_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	res, err := raw.Exec(`UPDATE contents SET value = CAST(x'55' || substr(value, 2) AS BLOB)
		WHERE rev = (SELECT rev FROM revisions WHERE key = ? AND until IS NULL)`, key)
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := res.RowsAffected(); n != 1 {
		t.Fatalf("%s is not stored", key)
	}
}

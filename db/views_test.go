package db_test

import (
	"database/sql"
	"log/slog"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

func TestViews(t *testing.T) {
	dir := t.TempDir()
	open := func(views ...datafile.View) (*db.DB, error) {
		return db.Open(db.Options{Dir: dir, Views: views, Logger: slog.New(slog.DiscardHandler)})
	}
	boats := datafile.View{Name: "boats", SQL: "SELECT key, value ->> '$.name' AS name FROM objects WHERE key >= '/boats/' AND key < '/boats0'"}
	long := datafile.View{Name: "long_boats", SQL: "SELECT name FROM boats WHERE length(name) > 4"}

	d, err := open(boats, long)
	if err != nil {
		t.Fatal(err)
	}
	rev := put(t, d, "/boats/1", 0, `{"name":"old"}`)
	put(t, d, "/boats/1", rev, `{"name":"Argonaut"}`)
	put(t, d, "/boats/2", 0, `{"name":"Ra"}`)
	put(t, d, "/cars/1", 0, `{"name":"Beetle"}`)

	// As the sqlite3 shell would, read-only, while the database is open.
	shell, err := sql.Open("sqlite3", "file:"+d.Path()+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	names := func(query string) string {
		t.Helper()
		rows, err := shell.Query(query)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		var out []string
		for rows.Next() {
			var name string
			if err := rows.Scan(&name); err != nil {
				t.Fatal(err)
			}
			out = append(out, name)
		}
		return strings.Join(out, " ")
	}
	if got := names("SELECT name FROM boats ORDER BY name"); got != "Argonaut Ra" {
		t.Errorf("boats: %s", got)
	}
	if got := names("SELECT name FROM long_boats"); got != "Argonaut" {
		t.Errorf("long_boats: %s", got)
	}
	if got := names("SELECT typeof(value) FROM objects LIMIT 1"); got != "text" {
		t.Errorf("objects.value is %s, want text", got)
	}
	d.Close()

	// Changed, dropped, and the same again.
	boats.SQL = strings.Replace(boats.SQL, "'$.name'", "'$.name' || '!'", 1)
	for range 2 {
		if d, err = open(boats); err != nil {
			t.Fatal(err)
		}
		if got := names("SELECT name FROM sqlite_schema WHERE type = 'view' ORDER BY 1"); got != "boats objects" {
			t.Errorf("views: %s", got)
		}
		if got := names("SELECT name FROM boats ORDER BY name LIMIT 1"); got != "Argonaut!" {
			t.Errorf("changed view: %s", got)
		}
		d.Close()
	}
	for _, bad := range []datafile.View{
		{Name: "Robert'); DROP TABLE", SQL: "SELECT 1"}, {Name: "objects", SQL: "SELECT 1"}, {Name: "revisions", SQL: "SELECT 1"},
		{Name: "x", SQL: "SELECT nothing FROM nowhere"}, {Name: "x", SQL: "SELEC"},
	} {
		if _, err := open(boats, bad); err == nil || !strings.Contains(err.Error(), bad.Name) {
			t.Errorf("view %q: %v, want an error that names it", bad.Name, err)
		}
	}
	if _, err := open(boats, boats); err == nil {
		t.Error("a view declared twice was accepted")
	}
	dbtest.OpenOptions(t, db.Options{Dir: dir}) // intact, and without views
}

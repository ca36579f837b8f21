package db_test

import (
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// TestStatementsReachNothingElse: the connection itself refuses the statements of a foreign schema,
// in case the check of the schema misses it.
func TestStatementsReachNothingElse(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t, quiet)
	for _, statement := range []string{
		"ATTACH DATABASE ':memory:' AS e",
		"PRAGMA writable_schema = ON",
		"PRAGMA trusted_schema = ON",
		"CREATE TEMP TABLE kv (key)",
		"CREATE TEMP TRIGGER t AFTER INSERT ON kv BEGIN SELECT 1; END",
		"CREATE TEMP VIEW meta AS SELECT 1",
		"SELECT load_extension('evil')",
		"CREATE VIRTUAL TABLE f USING fts5 (x)",
	} {
		if err := d.Write(t.Context(), func(t *db.Tx) error { return t.ExecSQL(statement) }); err == nil {
			t.Errorf("%s was executed", statement)
		}
	}
	if err := d.Write(t.Context(), func(t *db.Tx) error { return t.ExecSQL("PRAGMA trusted_schema = OFF") }); err != nil {
		t.Errorf("a statement of ours: %v", err)
	}
}

package datafile

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

//go:embed migrations/*.sql
var migrationFS embed.FS

// Migrations holds the SQL of each step in order; step n brings the schema
// from version n-1 to n. PRAGMA user_version holds the version. A step, once
// released, never changes.
var Migrations = func() []string {
	names, err := fs.Glob(migrationFS, "migrations/*.sql")
	if err != nil {
		panic(err)
	}
	slices.Sort(names)
	var steps []string
	for _, n := range names {
		b, err := migrationFS.ReadFile(n)
		if err != nil {
			panic(err)
		}
		steps = append(steps, string(b))
	}
	return steps
}()

// Migrate brings the schema to the newest version in one transaction, so that a failure or a crash
// leaves the old one intact. It does not change a damaged file. It drops all views: DeclareViews
// creates those of this release again, and SQLite must not rewrite the statements of foreign views
// when tables change.
func Migrate(c *sqlite.Conn, path string, steps []string) (err error) {
	have, _, err := c.First("PRAGMA user_version")
	if err != nil {
		return err
	}
	if have > int64(len(steps)) {
		return &NewerSchemaError{Path: path, Have: int(have), Known: len(steps)}
	}
	if have == int64(len(steps)) {
		return nil
	}
	if have > 0 {
		if faults, err := c.Faults("quick_check", 5); err != nil {
			return err
		} else if len(faults) > 0 {
			return &CorruptError{Path: path, Detail: strings.Join(faults, "; ")}
		}
	}
	return c.Transact(func() error {
		if err := dropViews(c, nil); err != nil {
			return err
		}
		for i := int(have); i < len(steps); i++ {
			if _, err := c.Raw.ExecContext(context.Background(), steps[i], nil); err != nil {
				return fmt.Errorf("migrate %s to schema version %d: %w", path, i+1, err)
			}
		}
		return c.Run(fmt.Sprintf("PRAGMA user_version = %d", len(steps)))
	})
}

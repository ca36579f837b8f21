package db

import (
	"embed"
	"fmt"
	"io/fs"
	"sort"
)

//go:embed migrations/*.sql
var migrationFS embed.FS

// migrations holds the SQL of each step in order; step n brings the schema
// from version n-1 to n. PRAGMA user_version holds the version. A step, once
// released, never changes.
var migrations = func() []string {
	names, err := fs.Glob(migrationFS, "migrations/*.sql")
	if err != nil {
		panic(err)
	}
	sort.Strings(names)
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

// migrate brings the schema to the newest version in one transaction, so that
// a failure or a crash leaves the old one whole.
func migrate(c *conn, path string, steps []string) (err error) {
	have, _, err := c.first("PRAGMA user_version")
	if err != nil {
		return err
	}
	if have > int64(len(steps)) {
		return &NewerSchemaError{Path: path, Have: int(have), Known: len(steps)}
	}
	if have == int64(len(steps)) {
		return nil
	}
	if err := c.run("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	for i := int(have); i < len(steps); i++ {
		if _, err := c.raw.ExecContext(background, steps[i], nil); err != nil {
			c.run("ROLLBACK")
			return fmt.Errorf("migrate %s to schema version %d: %w", path, i+1, err)
		}
	}
	if err := c.run(fmt.Sprintf("PRAGMA user_version = %d", len(steps))); err != nil {
		c.run("ROLLBACK")
		return err
	}
	return c.run("COMMIT")
}

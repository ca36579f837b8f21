package datafile

import (
	"database/sql/driver"
	"fmt"
	"regexp"
	"strings"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// View is a SQL view over the stored objects, for people with the sqlite3 shell and for reports.
// The package that owns the kind declares it. It selects from the view objects (key,
// resource_version, expires, value), where value is the object's JSON as text. No other part of the
// schema is stable.
type View struct {
	// Name matches [a-z][a-z0-9_]*, and is not a table of the store.
	Name string
	// SQL is the SELECT statement, without a semicolon.
	SQL string
}

var viewName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// objectsView is the view of the schema itself.
const objectsView = "objects"

// quote quotes any text as an identifier, see https://sqlite.org/lang_keywords.html.
func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// DeclareViews makes the file's views equal to views, in one transaction: it creates new and
// changed ones and drops all others, including users' views. It refuses a view that SQLite cannot
// run, because otherwise the error would come only when the view is read.
func DeclareViews(c *sqlite.Conn, views []View) (err error) {
	want := map[string]string{}
	var names []string
	for _, v := range views {
		if !viewName.MatchString(v.Name) || v.Name == objectsView {
			return fmt.Errorf("view %q: a name is lower-case letters, digits and _, and not %q", v.Name, objectsView)
		}
		if _, twice := want[v.Name]; twice {
			return fmt.Errorf("view %q is declared twice", v.Name)
		}
		want[v.Name] = "CREATE VIEW " + v.Name + " AS\n" + strings.TrimSpace(v.SQL)
		names = append(names, v.Name)
	}
	return c.Transact(func() error {
		if err := dropViews(c, want); err != nil {
			return err
		}
		for _, name := range names { // in the order given: a view may use an earlier one
			sql, ok := want[name]
			if !ok {
				continue
			}
			if err := c.Run(sql); err != nil {
				return fmt.Errorf("create view %s: %w", name, err)
			}
		}
		for _, v := range views { // an unchanged view may use one that was dropped
			if err := c.Run("SELECT * FROM " + v.Name + " LIMIT 0"); err != nil {
				return fmt.Errorf("view %s cannot be selected from: %w", v.Name, err)
			}
		}
		return nil
	})
}

// dropViews drops every view except objects and those in keep (name to statement). It removes the
// views that stay from keep, so that keep then has the views that the file lacks.
func dropViews(c *sqlite.Conn, keep map[string]string) error {
	var drop []string
	err := c.Each(func(row []driver.Value) error {
		name, _ := row[0].(string)
		if sql, _ := row[1].(string); sql != "" && keep[name] == sql {
			delete(keep, name)
		} else if name != objectsView {
			drop = append(drop, name)
		}
		return nil
	}, "SELECT name, sql FROM sqlite_schema WHERE type = 'view'")
	if err != nil {
		return err
	}
	for _, name := range drop {
		if err := c.Run("DROP VIEW " + quote(name)); err != nil {
			return fmt.Errorf("drop view %.100q: %w", name, err)
		}
	}
	return nil
}

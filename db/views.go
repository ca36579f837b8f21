package db

import (
	"fmt"
	"regexp"
)

// View is a SQL view over the stored objects for people with the sqlite3 shell
// and for reports. It belongs to whoever owns the kind. Select it from the view
// objects(key, resource_version, expires, value), whose value is the object's
// JSON; nothing else of the schema is stable.
type View struct {
	// Name matches [a-z][a-z0-9_]*.
	Name string
	// SQL is the SELECT statement.
	SQL string
}

var viewName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,62}$`)

// declareViews makes the views anew when their text changed, and drops those
// that are no longer declared.
func declareViews(c *conn, views []View) error {
	return nil
}

var _ = fmt.Sprint

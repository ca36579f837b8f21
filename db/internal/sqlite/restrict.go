package sqlite

import (
	"strings"

	"github.com/mattn/go-sqlite3"
)

// maxRow bounds a value, and a row as declared by the file, in bytes.
const maxRow = 64 << 20

// restrict forbids what this package does not use: other files, loadable code, virtual tables, and
// a writable schema. So a file whose schema passed verifySchema by mistake cannot use them either.
// SQLITE_DBCONFIG_DEFENSIVE would forbid most of this, but the driver does not expose
// sqlite3_db_config, and an authorizer needs no C of our own. SQLite calls the authorizer when it
// prepares a statement, not when it runs it, also for the statements of views and triggers.
func (c *Conn) restrict() {
	c.Raw.SetLimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
	c.Raw.SetLimit(sqlite3.SQLITE_LIMIT_LENGTH, maxRow)
	c.Raw.RegisterAuthorizer(authorize)
}

// authorize decides whether a statement may do something; see
// https://sqlite.org/c3ref/c_alter_table.html for the actions and their names.
func authorize(action int, name, detail, _ string) int {
	switch action {
	case sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_CREATE_VTABLE, sqlite3.SQLITE_DROP_VTABLE,
		sqlite3.SQLITE_CREATE_TEMP_TABLE, sqlite3.SQLITE_CREATE_TEMP_VIEW, sqlite3.SQLITE_CREATE_TEMP_TRIGGER, sqlite3.SQLITE_CREATE_TEMP_INDEX:
		return sqlite3.SQLITE_DENY
	case sqlite3.SQLITE_PRAGMA:
		if strings.EqualFold(name, "writable_schema") || strings.EqualFold(name, "trusted_schema") && !strings.EqualFold(detail, "OFF") {
			return sqlite3.SQLITE_DENY
		}
	case sqlite3.SQLITE_FUNCTION:
		if strings.EqualFold(detail, "load_extension") || strings.EqualFold(detail, "fts3_tokenizer") {
			return sqlite3.SQLITE_DENY
		}
	}
	return sqlite3.SQLITE_OK
}

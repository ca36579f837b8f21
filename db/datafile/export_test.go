package datafile

import (
	"time"

	"github.com/tidewaiter/tidewaiter/db/internal/sqlite"
)

// SetSchemaWait sets schemaWait.
func SetSchemaWait(wait time.Duration) { schemaWait = wait }

// OwnFiles is ownFiles.
var OwnFiles = ownFiles

// MigrateFile runs migration steps on a file.
func MigrateFile(path string, steps []string) error {
	c, err := sqlite.Open(path)
	if err != nil {
		return err
	}
	defer c.Close()
	return Migrate(c, path, steps)
}

package coreapi

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed views/*.sql
var viewFiles embed.FS

// Views returns SQL views of the kinds served here, by name: SELECT statements
// over a view objects (key, resource_version, expires, value), where keys are
// /<group or core>/<resource>/<namespace>/<name>, value is the object as JSON
// text and expires is in milliseconds since 1970. Who opens the database
// declares them.
func Views() map[string]string {
	files, err := viewFiles.ReadDir("views")
	if err != nil {
		panic(fmt.Sprintf("embedded views: %v", err)) // of this very program
	}
	views := make(map[string]string, len(files))
	for _, f := range files {
		text, err := viewFiles.ReadFile("views/" + f.Name())
		if err != nil {
			panic(fmt.Sprintf("embedded view %s: %v", f.Name(), err))
		}
		views[strings.TrimSuffix(f.Name(), ".sql")] = string(text)
	}
	return views
}

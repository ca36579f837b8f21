package imageapi

import (
	"embed"
	"fmt"
	"strings"
)

//go:embed views/*.sql
var viewFiles embed.FS

// Views returns SQL views of images, by name: SELECT statements in SQLite's dialect over a view
// objects (key, value), where the key of an image is /image.openshift.io/images/<name> and value is
// the object as JSON text. Who opens the database declares them.
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

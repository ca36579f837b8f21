package server

import (
	"maps"
	"slices"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/imageapi"
)

// Views are the SQL views of all kinds, by name. Each comes from the package of its kind.
func Views() []datafile.View {
	all := map[string]string{}
	maps.Copy(all, coreapi.Views())
	maps.Copy(all, imageapi.Views())
	views := make([]datafile.View, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		views = append(views, datafile.View{Name: name, SQL: all[name]})
	}
	return views
}

package coreapi

import _ "embed" // the views

var (
	//go:embed views/events.sql
	eventsView string
	//go:embed views/image_runs.sql
	imageRunsView string
	//go:embed views/pod_images.sql
	podImagesView string
	//go:embed views/pods.sql
	podsView string
)

// Views returns SQL views of the kinds served here, by name: SELECT statements over a
// view objects (key, resource_version, expires, value), where keys are /<group or
// core>/<resource>/<namespace>/<name>, value is the object as JSON text and expires is in
// milliseconds since 1970. The program that opens the database declares them.
func Views() map[string]string {
	return map[string]string{
		"events":     eventsView,
		"image_runs": imageRunsView,
		"pod_images": podImagesView,
		"pods":       podsView,
	}
}

package annotation

import "time"

// PruneAfter is the time (RFC 3339) after which `tidewaiter prune` deletes an Image that nothing
// needs. Removing the annotation before that time keeps the Image.
const PruneAfter = "tidewaiter.dev/prune-after"

// Prune is PruneDisabled on an Image that `tidewaiter prune` must keep, together with the images
// that it lists. Any other value has the same effect, because it may be a mistake.
const (
	Prune         = "tidewaiter.dev/prune"
	PruneDisabled = "disabled"
)

// Marked reads PruneAfter; ok is false if it is absent or cannot be read.
func Marked(annotations map[string]string) (after time.Time, ok bool) {
	after, err := time.Parse(time.RFC3339, annotations[PruneAfter])
	return after, err == nil
}

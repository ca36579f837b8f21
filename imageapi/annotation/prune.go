package annotation

import "time"

// PruneAfter is the time (RFC 3339) after which `tidewaiter prune` deletes an Image that nothing needs. Whoever takes it off
// before has undone the pruning.
const PruneAfter = "tidewaiter.dev/prune-after"

// Prune is PruneDisabled on an Image that `tidewaiter prune` keeps, and what it lists. Any other value does the same: it
// may be meant so.
const (
	Prune         = "tidewaiter.dev/prune"
	PruneDisabled = "disabled"
)

// Marked reads PruneAfter; ok is false where there is none, or none that can be read.
func Marked(annotations map[string]string) (after time.Time, ok bool) {
	after, err := time.Parse(time.RFC3339, annotations[PruneAfter])
	return after, err == nil
}

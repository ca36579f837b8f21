package annotation

import "time"

// PruneAfter is the time (RFC 3339) after which `tidewaiter prune` deletes an Image that nothing needs. Whoever takes it off
// before has undone the pruning.
const PruneAfter = "tidewaiter.dev/prune-after"

// Marked reads PruneAfter; ok is false where there is none, or none that can be read.
func Marked(annotations map[string]string) (after time.Time, ok bool) {
	after, err := time.Parse(time.RFC3339, annotations[PruneAfter])
	return after, err == nil
}

// Package feeder imports the images that pods run and that tags of image streams follow, as if they
// had been pushed.
//
// [Pods] gets the references that pods use ([Pods.Use]). [Streams] reads all streams when it
// starts, and then watches them. Both put references to images that are not stored into the queue
// of pushes. The queue has a quota for each cluster, retries failed imports with growing pauses,
// and lists them. Every hour, all pods and all streams are read again, so that references that were
// dropped or given up are tried again.
package feeder

import (
	"context"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// References are queued slowly, so that pushes do not wait long behind a new cluster: references of
// streams in batches, references of pods one by one at the same pace.
const (
	batch = 100
	pause = time.Second // between two batches
	// Again is how often all pods and all streams are read again, and how long after it was given up a
	// reference is tried again.
	Again = time.Hour
)

// Queue stores references until they are imported.
type Queue interface {
	// Enqueue makes events durable. An event that waits already is not added again.
	Enqueue(ctx context.Context, events []push.Event) error
	// Find returns the newest job of a Source for a key, nil if there is none.
	Find(ctx context.Context, source push.Source, key string) (*push.Job, error)
	// Retry makes a waiting or dead job due. It fails with job.ErrNoSuchJob.
	Retry(ctx context.Context, id int64) error
}

// Package feeder has the images imported that pods run and that tags of image streams follow, as if
// they had been pushed.
//
// [Pods] gets the references that pods use ([Pods.Use]). [Streams] reads all streams when it
// starts, and watches those that are written. Both put what is not known into the queue of pushes.
// There each cluster has a quota, failed imports are tried again with longer and longer pauses, and
// are listed. Every hour all pods and all streams are gone through again: so what was dropped or
// given up is tried again.
package feeder

import (
	"context"
	"time"

	"github.com/tidewaiter/tidewaiter/importer/push"
)

// At most batch references are put into the queue at once, so that pushes do not wait long behind a
// cluster that is seen for the first time.
const (
	batch = 100
	pause = time.Second // between two batches
	// Again is how often all pods and all streams are gone through, and how long a reference that
	// was given up is left alone.
	Again = time.Hour
)

// Queue keeps references until they are imported.
type Queue interface {
	// Enqueue makes events durable. An event that waits already is not added again.
	Enqueue(ctx context.Context, events []push.Event) error
	// Find returns the newest job of a receiver for a key, nil if there is none.
	Find(ctx context.Context, receiver, key string) (*push.Job, error)
	// Retry makes a job due that waits or is dead. It fails with push.ErrNoSuchJob.
	Retry(ctx context.Context, id int64) error
}

package reverify

import (
	"sync/atomic"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/reconcile"
)

// Requests are what other parts of a server want a Sweeper to do. They can be made before there is
// a Sweeper, and wait until it runs.
type Requests struct {
	asked             atomic.Bool // a sweep is due, and begins without pauses
	followers         followers
	toSweep, toFollow reconcile.Signal
}

// NewRequests returns Requests without any.
func NewRequests() *Requests {
	return &Requests{followers: followers{waiting: map[string][]string{}}, toSweep: reconcile.NewSignal(), toFollow: reconcile.NewSignal()}
}

// Resync requests a sweep that judges the Images whose verdicts may be out of date. It does not
// wait. It is always a new sweep, but for the first one of a Run.
func (r *Requests) Resync() {
	r.asked.Store(true)
	r.toSweep.Send()
}

// Follow queues the images that an index lists, to be judged again. It does not wait for that.
func (r *Requests) Follow(index *imagev1.Image) {
	r.followers.add(index, nil)
	r.toFollow.Send()
}

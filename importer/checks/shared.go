package checks

import (
	"context"
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
)

const (
	// sharedPrefix is below which servers that share their objects tell each other of checks.
	sharedPrefix = "/tidewaiter.dev/checks/"
	// sharedFor is how long they do. A server that was away for longer knows less of a reference,
	// and never too much.
	sharedFor    = 10 * time.Minute
	shareTimeout = 5 * time.Second
)

// Share is Confirm for servers that share their objects: all of them remember the checks, if they
// call Follow.
func (c *Checks) Share(all []tags.Check) {
	c.Confirm(all)
	value, err := json.Marshal(all)
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), shareTimeout)
		defer cancel()
		_, err = c.db.Put(ctx, sharedPrefix+string(uuid.NewUUID()), 0, value, db.PutOptions{TTL: sharedFor})
	}
	if err != nil {
		c.untold.Begin("", "The other servers do not get the times when registries last confirmed references", "err", err)
		return
	}
	c.untold.End("", "The other servers get these times again")
}

// Follow remembers what other servers share, until ctx is done.
func (c *Checks) Follow(ctx context.Context) error {
	reconcile.Keep(ctx, "following when other servers have asked registries", nil, c.follow)
	return nil
}

func (c *Checks) follow(ctx context.Context) error {
	return c.db.Follow(ctx, sharedPrefix, func(kv db.KV) { c.learn(kv.Value) })
}

// learn remembers what another server shares, which Confirm checks; nothing for a key that has
// expired.
func (c *Checks) learn(value []byte) {
	var all []tags.Check
	if json.Unmarshal(value, &all) == nil && len(all) <= tags.MaxChecks {
		c.Confirm(all)
	}
}

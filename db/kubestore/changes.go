package kubestore

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Changes reports whether objects of some resources have changed, by any writer. It needs no
// goroutine and reads no object of another resource.
type Changes struct {
	stores []*Store
	ready  chan struct{}

	mu    sync.Mutex
	polls []poll // one for each store
}

// poll returns the revisions of changes since the call before, none if there are none.
type poll func(context.Context) (revs []int64, err error)

// Changes begins now. The resources are some that a registry has asked for.
func (g *Getter) Changes(resources ...schema.GroupResource) (*Changes, error) {
	c := &Changes{ready: make(chan struct{}, 1)}
	for _, r := range resources {
		s := g.Store(r)
		if s == nil {
			return nil, fmt.Errorf("changes of %s: it has no storage", r)
		}
		c.stores = append(c.stores, s)
		p, err := c.watch(s)
		if err != nil {
			return nil, err
		}
		c.polls = append(c.polls, p)
	}
	return c, nil
}

// watch begins at the present.
func (c *Changes) watch(s *Store) (poll, error) {
	prefix, err := s.prepareKey(s.resourcePrefix, true)
	if err != nil {
		return nil, err
	}
	w, err := s.db.Watch(prefix, false, s.db.Revision())
	if err != nil {
		return nil, err
	}
	w.Notify(c.ready)
	return func(ctx context.Context) (revs []int64, err error) {
		for {
			events, err := w.Poll(ctx)
			if err != nil {
				w.Stop()
				return nil, err
			}
			if len(events) == 0 {
				return revs, nil
			}
			for _, e := range events {
				revs = append(revs, e.Rev)
			}
		}
	}, nil
}

// CatchUp returns when Any will count all changes that were reported to anybody before the call.
func (c *Changes) CatchUp(ctx context.Context) error {
	if err := c.stores[0].db.CatchUp(ctx, 0); err != nil {
		return c.stores[0].interpret(err)
	}
	return nil
}

// Any reports whether there were changes since the call before, other than at revisions that own
// accepts.
func (c *Changes) Any(ctx context.Context, own func(rev int64) bool) (any bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, poll := range c.polls {
		revs, err := poll(ctx)
		if err != nil { // what was changed since is not known
			any = true
			if c.polls[i], err = c.watch(c.stores[i]); err != nil {
				return true, err
			}
		}
		for _, rev := range revs {
			if !own(rev) {
				any = true
			}
		}
	}
	return any, nil
}

// Ready is signalled when Any may have something to tell.
func (c *Changes) Ready() <-chan struct{} { return c.ready }

package kubestore

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Changes reports which objects of some resources have changed, by any writer. It needs no
// goroutine and reads no object of another resource.
type Changes struct {
	stores []*Store
	ready  chan struct{}

	mu    sync.Mutex
	polls []poll // one for each store
}

// poll calls visit with each change since the call before.
type poll func(ctx context.Context, visit func(namespace, name string, rev int64)) error

// Changes returns the Changes of resources from now on. Each resource must have a storage already.
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

// watch begins to watch a store's changes from now on.
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
	w.OmitValues()
	return func(ctx context.Context, visit func(namespace, name string, rev int64)) error {
		for {
			events, err := w.Poll(ctx)
			if err != nil {
				w.Stop()
				return err
			}
			if len(events) == 0 {
				return nil
			}
			for _, e := range events {
				namespace, name, ok := strings.Cut(strings.TrimPrefix(e.Key, prefix), "/")
				if !ok {
					namespace, name = "", namespace
				}
				visit(namespace, name, e.Rev)
			}
		}
	}, nil
}

// CatchUp waits until Since will report all changes that were acknowledged before the call.
func (c *Changes) CatchUp(ctx context.Context) error {
	if err := c.stores[0].db.CatchUp(ctx, 0); err != nil {
		return c.stores[0].interpret(err)
	}
	return nil
}

// Since calls visit with each change since the previous call. lost is true if it may have missed
// changes.
func (c *Changes) Since(ctx context.Context, visit func(namespace, name string, rev int64)) (lost bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, poll := range c.polls {
		if err := poll(ctx, visit); err != nil { // the changes since are unknown
			lost = true
			if c.polls[i], err = c.watch(c.stores[i]); err != nil {
				return true, err
			}
		}
	}
	return lost, nil
}

// Ready is signalled when Since may have changes to report.
func (c *Changes) Ready() <-chan struct{} { return c.ready }

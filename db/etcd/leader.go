package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// findAgain is how long the leader is not looked for after it was.
const findAgain = time.Second

// route is the member that questions go to. To answer one, the leader asks the other members once,
// for all questions that wait, where another member asks the leader first and has a round of its
// own.
type route struct {
	kv   clientv3.KV
	term uint64 // of the leader; 0 if it is not known
}

// heard takes the term of an answer. In another term another member may lead.
func (s *Store) heard(term uint64) {
	if s.atLeader != nil && s.route.Load().term != term && s.finding.CompareAndSwap(false, true) {
		go func() {
			defer s.finding.Store(false)
			if last := s.found; time.Since(last) >= findAgain {
				s.findLeader(term)
				s.found = time.Now()
			}
		}()
	}
}

// findLeader has questions go to the member that leads in a term. If it is not one of those that
// were named, they go to all.
func (s *Store) findLeader(term uint64) {
	found := &route{s.client.KV, term}
	for _, e := range s.client.Endpoints() {
		ctx, cancel := context.WithTimeout(s.client.Ctx(), askTimeout)
		r, err := s.client.Status(ctx, e)
		cancel()
		switch {
		case err != nil:
			found.term = 0 // it may be this one
		case r.RaftTerm != term:
			return // the next answer tells
		case r.Leader != 0 && r.Leader == r.Header.GetMemberId():
			s.atLeader.SetEndpoints(e)
			s.route.Store(&route{s.atLeader.KV, term})
			return
		}
	}
	s.route.Store(found)
}

// lost has questions go to all members until it is known who leads.
func (s *Store) lost(r *route) {
	s.route.CompareAndSwap(r, &route{kv: s.client.KV})
}

package etcd

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// findAgain is the pause between two searches for the leader.
const findAgain = time.Second

// route is the member to which requests for the revision go. The leader answers all waiting
// requests after one round trip to the other members. Another member would need a request to the
// leader, too.
type route struct {
	kv   clientv3.KV
	term uint64 // of the leader; 0 if it is not known
}

// heard gets the Raft term of an answer, and starts a search for the leader if the term has
// changed.
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

// findLeader routes requests to the member that leads in a term. If that is not one of the
// configured members, they go to all.
func (s *Store) findLeader(term uint64) {
	found := &route{s.client.KV, term}
	for _, e := range s.client.Endpoints() {
		ctx, cancel := context.WithTimeout(s.client.Ctx(), askTimeout)
		r, err := s.client.Status(ctx, e)
		cancel()
		switch {
		case err != nil:
			found.term = 0 // the term may have changed
		case r.RaftTerm != term:
			return // the next answer has the term
		case r.Leader != 0 && r.Leader == r.Header.GetMemberId():
			s.atLeader.SetEndpoints(e)
			s.route.Store(&route{s.atLeader.KV, term})
			return
		}
	}
	s.route.Store(found)
}

// lost routes requests to all members until the leader is known.
func (s *Store) lost(r *route) {
	s.route.CompareAndSwap(r, &route{kv: s.client.KV})
}

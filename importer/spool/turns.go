package spool

import (
	"cmp"
	"slices"
	"sync"

	"github.com/tidewaiter/tidewaiter/internal/job"
)

// turns makes receivers take turns. Otherwise a receiver whose jobs are about many registries that
// hang could delay all others.
type turns[S job.Source] struct {
	mu   sync.Mutex
	n    int64
	last map[S]int64 // the value of n when a job of it was last taken
}

// maxTurns bounds turns.last. A receiver that was dropped from it has the next turn.
const maxTurns = 1024

// taken records which receiver's job was taken.
func (t *turns[S]) taken(source S) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil || len(t.last) > maxTurns {
		t.last = map[S]int64{}
	}
	t.n++
	t.last[source] = t.n
}

// inTurns sorts lanes by receivers' turns: first the first lane of each receiver, then the second
// of each, and so on. The receiver whose turn was longest ago comes first. The lanes of one
// receiver keep their order.
func inTurns[S job.Source, E any](t *turns[S], lanes [][]*entry[S, E]) {
	type turn struct {
		round int // number of earlier lanes of the same receiver
		last  int64
		lane  []*entry[S, E]
	}
	all, rounds := make([]turn, len(lanes)), map[S]int{}
	t.mu.Lock()
	for i, lane := range lanes {
		who := lane[0].Source
		all[i] = turn{rounds[who], t.last[who], lane}
		rounds[who]++
	}
	t.mu.Unlock()
	slices.SortStableFunc(all, func(a, b turn) int {
		return cmp.Or(cmp.Compare(a.round, b.round), cmp.Compare(a.last, b.last))
	})
	for i := range all {
		lanes[i] = all[i].lane
	}
}

// takeTurns takes up to n jobs from lanes, whose jobs are in order: the first of each lane, then
// the second of each. It passes over a job whose key was taken, and one whose host has no room
// left. It uses up rooms, which are by host.
func takeTurns[S job.Source, E any](lanes [][]*entry[S, E], n int, rooms map[string]int) (jobs []*entry[S, E]) {
	keys := map[string]bool{} // several jobs of a key may be due
	for took := true; took; {
		took = false
		for i, lane := range lanes {
			for fits := false; !fits && len(lane) > 0 && len(jobs) < n; lane = lane[1:] {
				j := lane[0]
				if fits = rooms[j.Host()] > 0 && !keys[j.Key]; fits {
					jobs, took = append(jobs, j), true
					rooms[j.Host()]--
					keys[j.Key] = true
				}
			}
			lanes[i] = lane
		}
	}
	return jobs
}

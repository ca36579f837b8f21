package spool

import (
	"cmp"
	"slices"

	"github.com/tidewaiter/tidewaiter/internal/job"
)

// lane names jobs of a registry that are claimed in order: those that wait, by receiver, and those
// that are leased, by holder.
type lane struct{ host, who string }

// index has the jobs of a Queue in the orders in which they are looked for. Its lists are
// sorted: the first due job of a lane is read without looking at the others. A list has as many
// jobs as a receiver's quota allows, so that inserting one moves at most some 100 KB.
type index[S job.Source, E any] struct {
	waiting map[lane][]*entry[S, E]   // by Source, in order of Due
	leased  map[lane][]*entry[S, E]   // by holder, in order of Due
	idle    map[S][]*entry[S, E]      // jobs that no worker has, in the order of giving way
	keys    map[string][]*entry[S, E] // all jobs, by what they are about
	events  map[S]int64               // how many events all jobs have
}

func newIndex[S job.Source, E any]() index[S, E] {
	return index[S, E]{waiting: map[lane][]*entry[S, E]{}, leased: map[lane][]*entry[S, E]{}, idle: map[S][]*entry[S, E]{}, keys: map[string][]*entry[S, E]{}, events: map[S]int64{}}
}

// byDue is the order in which jobs of a lane are claimed.
func byDue[S job.Source, E any](a, b *entry[S, E]) int {
	return cmp.Or(a.Due.Compare(b.Due), byID(a, b))
}

func byID[S job.Source, E any](a, b *entry[S, E]) int { return cmp.Compare(a.ID, b.ID) }

// byAge is the order in which jobs give way: "dead" is before "waiting".
func byAge[S job.Source, E any](a, b *entry[S, E]) int {
	return cmp.Or(cmp.Compare(a.State, b.State), a.Latest.Compare(b.Latest), byID(a, b))
}

// add adds a job, which must not change while it is here.
func (x *index[S, E]) add(e *entry[S, E]) {
	insert(x.keys, e.Key, e, byID)
	x.events[e.Source] += int64(len(e.events))
	if e.State == job.Leased {
		insert(x.leased, lane{e.Host(), e.holder}, e, byDue)
		return
	}
	insert(x.idle, e.Source, e, byAge)
	if e.State != job.Dead {
		insert(x.waiting, lane{e.Host(), e.Source.String()}, e, byDue)
	}
}

// remove removes a job that was added.
func (x *index[S, E]) remove(e *entry[S, E]) {
	take(x.keys, e.Key, e, byID)
	if x.events[e.Source] -= int64(len(e.events)); x.events[e.Source] == 0 {
		delete(x.events, e.Source)
	}
	take(x.leased, lane{e.Host(), e.holder}, e, byDue)
	take(x.idle, e.Source, e, byAge)
	take(x.waiting, lane{e.Host(), e.Source.String()}, e, byDue)
}

func insert[K comparable, S job.Source, E any](lists map[K][]*entry[S, E], k K, e *entry[S, E], order func(a, b *entry[S, E]) int) {
	i, _ := slices.BinarySearchFunc(lists[k], e, order)
	lists[k] = slices.Insert(lists[k], i, e)
}

// take removes a job from a list if it is there.
func take[K comparable, S job.Source, E any](lists map[K][]*entry[S, E], k K, e *entry[S, E], order func(a, b *entry[S, E]) int) {
	i, found := slices.BinarySearchFunc(lists[k], e, order)
	if !found {
		return
	}
	if lists[k] = slices.Delete(lists[k], i, i+1); len(lists[k]) == 0 {
		delete(lists, k)
	}
}

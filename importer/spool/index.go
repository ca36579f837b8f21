package spool

import (
	"cmp"
	"slices"

	"github.com/tidewaiter/tidewaiter/internal/push"
)

// lane names jobs of a registry that are claimed in order: those that wait, by receiver, and those
// that are leased, by holder.
type lane struct{ host, who string }

// index has the jobs of a Spool in the orders in which they are looked for. Its lists are
// sorted: the first due job of a lane is read without looking at the others. A list has as many
// jobs as a receiver's quota allows, so that inserting one moves at most some 100 KB.
type index struct {
	waiting map[lane][]*entry        // by Source, in order of Due
	leased  map[lane][]*entry        // by holder, in order of Due
	idle    map[push.Source][]*entry // jobs that no worker has, in the order of giving way
	keys    map[string][]*entry      // all jobs, by what they are about
	events  map[push.Source]int64    // how many events all jobs have
}

func newIndex() index {
	return index{waiting: map[lane][]*entry{}, leased: map[lane][]*entry{}, idle: map[push.Source][]*entry{}, keys: map[string][]*entry{}, events: map[push.Source]int64{}}
}

// byDue is the order in which jobs of a lane are claimed.
func byDue(a, b *entry) int { return cmp.Or(a.Due.Compare(b.Due), byID(a, b)) }

func byID(a, b *entry) int { return cmp.Compare(a.ID, b.ID) }

// byAge is the order in which jobs give way: "dead" is before "waiting".
func byAge(a, b *entry) int {
	return cmp.Or(cmp.Compare(a.State, b.State), a.Latest.Compare(b.Latest), byID(a, b))
}

// add adds a job, which must not change while it is here.
func (x *index) add(e *entry) {
	insert(x.keys, e.Key, e, byID)
	x.events[e.Source] += int64(len(e.events))
	if e.State == push.Leased {
		insert(x.leased, lane{e.Host(), e.holder}, e, byDue)
		return
	}
	insert(x.idle, e.Source, e, byAge)
	if e.State != push.Dead {
		insert(x.waiting, lane{e.Host(), e.Source.String()}, e, byDue)
	}
}

// remove removes a job that was added.
func (x *index) remove(e *entry) {
	take(x.keys, e.Key, e, byID)
	if x.events[e.Source] -= int64(len(e.events)); x.events[e.Source] == 0 {
		delete(x.events, e.Source)
	}
	take(x.leased, lane{e.Host(), e.holder}, e, byDue)
	take(x.idle, e.Source, e, byAge)
	take(x.waiting, lane{e.Host(), e.Source.String()}, e, byDue)
}

func insert[K comparable](lists map[K][]*entry, k K, e *entry, order func(a, b *entry) int) {
	i, _ := slices.BinarySearchFunc(lists[k], e, order)
	lists[k] = slices.Insert(lists[k], i, e)
}

// take removes a job from a list if it is there.
func take[K comparable](lists map[K][]*entry, k K, e *entry, order func(a, b *entry) int) {
	i, found := slices.BinarySearchFunc(lists[k], e, order)
	if !found {
		return
	}
	if lists[k] = slices.Delete(lists[k], i, i+1); len(lists[k]) == 0 {
		delete(lists, k)
	}
}

package spool

import (
	"context"
	"maps"
	"slices"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/importer/push"
)

// Events calls do with the events of each job that can be read, and changes nothing.
func (s *Spool) Events(ctx context.Context, do func([]push.Event) error) error {
	for after := int64(0); ; {
		jobs, err := s.List(ctx, "", after, 0)
		if err != nil || len(jobs) == 0 {
			return err
		}
		for _, j := range jobs {
			after = j.ID
			var unreadable error
			if err := s.db.Read(ctx, func(c db.Snapshot) (err error) {
				j.Events = nil
				unreadable, err = loadEvents(c, j)
				return err
			}); err != nil {
				return err
			}
			if unreadable == nil {
				err = do(received(j))
			}
			if err != nil {
				return err
			}
		}
	}
}

// Events is [Spool.Events].
func (s *Shared) Events(ctx context.Context, do func([]push.Event) error) error {
	var jobs map[int64]*entry
	if err := s.current(ctx, func() { jobs = maps.Clone(s.jobs) }); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(jobs)) {
		r, err := s.read(ctx, jobs[id])
		if err != nil {
			return err
		}
		j, unreadable := jobs[id].Job, false
		for _, stored := range r.Events {
			e, err := push.Decode(stored)
			j.Events, unreadable = append(j.Events, e), unreadable || err != nil
		}
		if !unreadable {
			err = do(received(&j))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// received returns the events of a job as its receiver gave them.
func received(j *push.Job) []push.Event {
	for i := range j.Events {
		j.Events[i].Receiver = j.Receiver
	}
	return j.Events
}

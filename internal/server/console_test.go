package server

import (
	"context"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/web/console"
)

// Sessions that were ended at one server reach the others, and those that start later, until they
// would have expired.
func TestEndedSessionsReachAllServers(t *testing.T) {
	t.Parallel()
	store := dbtest.NewTruth()
	open := func() endedSessions {
		d := dbtest.Open(t, func(o *db.Options) { o.Truth = store })
		if err := d.Filled(t.Context()); err != nil {
			t.Fatal(err)
		}
		return endedSessions{d}
	}
	here, there := open(), open()
	ctx, stop := context.WithCancel(t.Context())
	learned, ended := make(chan string), make(chan error)
	go func() {
		ended <- there.follow(ctx, func(one console.Ended) {
			select {
			case learned <- one.ID + " of " + one.User:
			case <-ctx.Done():
			}
		})
	}()
	for _, id := range []string{"one", "one", "two"} { // a second server may end it, too
		if err := here.Add(t.Context(), console.Ended{ID: id, User: "ann", Until: time.Now().Add(time.Hour)}); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"one of ann", "two of ann"} {
		if got := <-learned; got != want {
			t.Errorf("the other server learns %q, want %q", got, want)
		}
	}
	if err := here.Remove(t.Context(), "two"); err != nil {
		t.Error(err)
	}
	if err := here.Remove(t.Context(), "two"); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	var all []string
	if err := open().each(t.Context(), func(one console.Ended) { all = append(all, one.ID) }); err != nil || len(all) != 1 || all[0] != "one" {
		t.Errorf("a server that starts learns %q, %v", all, err)
	}
}

package limits

import (
	"context"
	"math"
	"net/http"
	"runtime"
)

// Turns let long-running work use all processors except one. Requests take turns inside the handler
// chain, and work outside the chain takes a [Turn]. So both together leave one processor to
// everything else.
type Turns struct{ class *class }

// NewTurns returns one turn fewer than there are processors, but at least one.
func NewTurns() *Turns { return &Turns{newTurns(max(1, runtime.GOMAXPROCS(0)-1))} }

// newTurns returns a class of turns. One caller may have all of them. Neither the time nor the
// number of waiting requests has a limit here: they are in flight, which is bounded.
func newTurns(max int) *class {
	return newClass(max, math.MaxInt, math.MaxInt, math.MaxInt, math.MaxInt64)
}

// Turn is one task's part of Turns. Between Begin and its end, the task must not wait for a request
// to the handler chain, which may need the same turn.
type Turn struct{ turn }

// Of returns a Turn of a user at a remote address. Writes to w through the Turn give it up while
// they wait for the reader.
func (t *Turns) Of(ctx context.Context, w http.ResponseWriter, user, remote string) *Turn {
	return &Turn{turn{ResponseWriter: w, turns: t.class, who: caller{user: user, address: Address(remote)}, ctx: ctx, waits: 1}}
}

// Begin waits for the turn; end gives it back. Without a turn, the context has ended.
func (t *Turn) Begin() (end func()) {
	t.reacquire()
	return t.release
}

// FlushError is for http.ResponseController.
func (t *Turn) FlushError() (err error) {
	t.yieldingWrite(func() { err = http.NewResponseController(t.ResponseWriter).Flush() })
	return err
}

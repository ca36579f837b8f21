package migration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/truth"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// dying is a store whose caller is killed at a call of Range, Put or Delete.
type dying struct {
	*dbtest.Truth
	left atomic.Int64
	kill context.CancelFunc
}

var errKilled = errors.New("killed")

func (s *dying) dies() bool {
	if s.left.Add(-1) >= 0 {
		return false
	}
	s.kill()
	return true
}

func (s *dying) Range(ctx context.Context, from string, rev int64) (page []truth.Change, at int64, more bool, err error) {
	if s.dies() {
		return nil, 0, false, errKilled
	}
	return s.Truth.Range(ctx, from, rev)
}

func (s *dying) Put(ctx context.Context, key string, expect int64, value []byte, expires int64) (int64, error) {
	if s.dies() {
		return 0, errKilled
	}
	return s.Truth.Put(ctx, key, expect, value, expires)
}

func (s *dying) Delete(ctx context.Context, key string, expect int64) (int64, error) {
	if s.dies() {
		return 0, errKilled
	}
	return s.Truth.Delete(ctx, key, expect)
}

// untilItEnds repeats a move, killed one call later each time, until it ends. It expects at least
// kills kills.
func untilItEnds(t *testing.T, store *dbtest.Truth, kills int, move func(context.Context, truth.Store) error) {
	t.Helper()
	for at := range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		s := &dying{Truth: store, kill: cancel}
		s.left.Store(int64(at))
		err := move(ctx, s)
		killed := ctx.Err() != nil
		cancel()
		switch {
		case killed:
		case err != nil:
			t.Fatalf("after a kill at call %d: %v", at-1, err)
		case at < kills:
			t.Fatalf("it was killed %d times, want at least %d", at, kills)
		default:
			return
		}
	}
	t.Fatal("the move does not end")
}

// pushed is a waiting push.
var pushed = push.Event{Source: push.OfWebhook("r"), ID: "1", Action: push.Pushed, Host: "registry.example.com", Repository: "app", Tag: "v1"}

const objects = 20

// put writes objects to a database.
func put(t *testing.T, d *db.DB) {
	t.Helper()
	for i := range objects {
		if _, err := d.Put(t.Context(), fmt.Sprintf("/k/%d", i), 0, []byte("v"), db.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestToEtcdIsRepeated: wherever a move was killed, the next one completes it, and leaves no
// temporary keys.
func TestToEtcdIsRepeated(t *testing.T) {
	store, dir := dbtest.NewTruth(), t.TempDir()
	d, err := db.Open(db.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	put(t, d)
	s, err := spool.Open(d, spool.Options{})
	if err == nil {
		err = s.Enqueue(t.Context(), []push.Event{pushed})
	}
	if err := errors.Join(err, d.Close()); err != nil {
		t.Fatal(err)
	}
	untilItEnds(t, store, objects/2, func(ctx context.Context, store truth.Store) error {
		return (&Migration{DataDir: dir, Out: io.Discard}).to(ctx, store)
	})
	var out bytes.Buffer
	if err := (&Migration{DataDir: dir, Out: &out}).to(t.Context(), store); err != nil || !strings.Contains(out.String(), "(0 written now), and 1 push waits") {
		t.Errorf("once more: %q, %v", &out, err)
	}
	copied := dbtest.Open(t, func(o *db.Options) { o.Truth = store })
	if err := copied.Filled(t.Context()); err != nil {
		t.Fatal(err)
	}
	p, err := copied.Range(t.Context(), db.RangeOptions{Prefix: "/", KeysOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, kv := range p.KVs {
		if strings.Contains(kv.Key, "raise") {
			t.Errorf("%s is left", kv.Key)
		}
	}
}

// TestFromEtcdIsRepeated: wherever a move was killed, the next one completes it with all objects.
// After a completed move, another one compares the contents. If the database has been written
// since, it fails and says what to do.
func TestFromEtcdIsRepeated(t *testing.T) {
	store, dir := dbtest.NewTruth(), filepath.Join(t.TempDir(), "single")
	d := dbtest.Open(t, func(o *db.Options) { o.Truth = store })
	if err := d.Filled(t.Context()); err != nil {
		t.Fatal(err)
	}
	put(t, d)
	s, err := spool.Open(d, spool.Options{})
	if err == nil {
		err = s.Enqueue(t.Context(), []push.Event{pushed})
	}
	if err != nil {
		t.Fatal(err)
	}
	untilItEnds(t, store, objects/3, func(ctx context.Context, store truth.Store) error {
		return (&Migration{DataDir: dir, Out: io.Discard}).from(ctx, store)
	})
	move := func() (string, error) {
		var out bytes.Buffer
		err := (&Migration{DataDir: dir, Out: &out}).from(t.Context(), store)
		return out.String(), err
	}
	for range 2 { // killed after the last step, before it was reported
		if out, err := move(); err != nil || !strings.Contains(out, "20 objects are the same") || !strings.Contains(out, "1 push waits") {
			t.Fatalf("once more: %q, %v", out, err)
		}
	}
	single := dbtest.OpenOptions(t, db.Options{Dir: dir})
	p, err := single.Range(t.Context(), db.RangeOptions{Prefix: "/k/", KeysOnly: true})
	if err != nil || len(p.KVs) != objects {
		t.Errorf("%d objects are there, %v", len(p.KVs), err)
	}
	if _, err := single.Put(t.Context(), "/k/new", 0, []byte("v"), db.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := single.Close(); err != nil {
		t.Fatal(err)
	}
	var hint *cli.HintError
	if out, err := move(); !errors.As(err, &hint) || !strings.Contains(err.Error(), "has been written since") || !strings.Contains(hint.Hint, "another --data-dir") || out != "" {
		t.Errorf("after a change: %q, %v", out, err)
	}
}

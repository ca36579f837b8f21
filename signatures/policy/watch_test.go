package policy_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

func TestWatcher(t *testing.T) {
	dir := t.TempDir()
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	write(t, dir, "keys/cosign.pub", string(key.PEM))
	file := write(t, dir, "p.yaml", signaturestest.Document("demo", "[a.example.com]", "{policyType: PublicKey, publicKey: {keyPath: keys/cosign.pub}}", ""))
	first, err := policy.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	// In a synctest bubble time passes only when everybody waits.
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var f followed
		w := policy.Watcher{Path: dir, Interval: 10 * time.Second, Follower: &f}
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx, first) }()
		pass := func(wantSets, wantErrs int, what string) {
			t.Helper()
			time.Sleep(30 * time.Second) // three looks
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			if len(f.sets) != wantSets || len(f.errs) != wantErrs {
				t.Errorf("%s: %d sets and %d errors, want %d and %d: %v", what, len(f.sets), len(f.errs), wantSets, wantErrs, f.errs)
			}
		}
		pass(0, 0, "nothing changed")
		write(t, dir, "keys/cosign.pub", string(other.PEM))
		pass(1, 0, "a key that a document names")
		write(t, dir, "p.yaml", "broken: [")
		pass(1, 1, "a broken file is said once")
		if !strings.Contains(f.errs[0].Error(), file) {
			t.Errorf("error %v does not name %s", f.errs[0], file)
		}
		write(t, dir, "p.yaml", "kind: nonsense")
		pass(1, 2, "broken in another way")
		if err := os.Remove(filepath.Join(dir, "p.yaml")); err != nil {
			t.Fatal(err)
		}
		pass(1, 3, "gone: the policies stay in force")
		write(t, dir, "p.yaml", signaturestest.Document("demo", "[a.example.com]", "{policyType: PublicKey, publicKey: {keyPath: keys/cosign.pub}}", ""))
		pass(2, 3, "as it was: the trouble is over")
		write(t, dir, "p.yaml", "broken: [")
		pass(2, 4, "broken again is said again")
		write(t, dir, "q.yaml", signaturestest.Document("more", "[b.example.com]", signaturestest.TrustKey(key, nil), ""))
		if err := os.Remove(filepath.Join(dir, "p.yaml")); err != nil {
			t.Fatal(err)
		}
		pass(3, 4, "another file")
		if p := f.sets[2].Policies(); len(p) != 1 || p[0].Name != "more" {
			t.Errorf("policies %v", p)
		}
		q := signaturestest.Document("more", "[b.example.com]", signaturestest.TrustKey(key, nil), "")
		r := signaturestest.Document("third", "[c.example.com]", signaturestest.TrustKey(key, nil), "")
		write(t, dir, "q.yaml", q+"---\n"+r)
		pass(4, 4, "one more document")
		write(t, dir, "q.yaml", q+"---\n")
		pass(4, 5, "cut between two documents: the policies stay in force")
		if !strings.Contains(f.errs[len(f.errs)-1].Error(), "it ends early") {
			t.Errorf("the last error is %v", f.errs[len(f.errs)-1])
		}
		write(t, dir, "p.yaml", signaturestest.Document("demo", "[a.example.com]", signaturestest.TrustKey(key, nil), ""))
		write(t, dir, "q.yaml", "")
		pass(4, 6, "an empty file beside another")
		write(t, dir, "q.yaml", q+"# complete\n")
		pass(5, 6, "meant")
		for _, text := range []string{q + "# 1", q + "# 2", q + "# 3"} {
			write(t, dir, "q.yaml", text+"\n---\n"+r)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			write(t, dir, "q.yaml", q+"# complete\n")
			time.Sleep(10 * time.Second)
			synctest.Wait()
		}
		pass(5, 6, "what no second look finds does not count")
		write(t, dir, "q.yaml", q)
		pass(5, 6, "the comment may go")
		cancel()
		<-done
	})
}

// A file that is emptied between the server's first reading and the watcher's.
func TestFileEmptiedBeforeTheFirstLook(t *testing.T) {
	dir := t.TempDir()
	key := signaturestest.NewKey(t, signaturestest.P256)
	write(t, dir, "p.yaml", signaturestest.Document("demo", "[a.example.com]", signaturestest.TrustKey(key, nil), ""))
	write(t, dir, "q.yaml", signaturestest.Document("more", "[b.example.com]", signaturestest.TrustKey(key, nil), ""))
	first, err := policy.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "q.yaml", "")
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var f followed
		w := policy.Watcher{Path: dir, Interval: 10 * time.Second, Follower: &f}
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx, first) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		f.mu.Lock()
		for _, s := range f.sets {
			t.Errorf("%d policies are in force, two were", len(s.Policies()))
		}
		f.mu.Unlock()
		cancel()
		<-done
	})
}

// followed is what a Watcher found.
type followed struct {
	mu   sync.Mutex
	sets []*policy.Set
	errs []error
}

func (f *followed) Changed(_ context.Context, set *policy.Set) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sets = append(f.sets, set)
}

func (f *followed) Broken(_ context.Context, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.errs = append(f.errs, err)
}

package policy_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"math/big"
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
	// In a synctest bubble, time passes only while all goroutines wait.
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

// A file is emptied between the first readings of the server and of the watcher.
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

// An attacker may send an old revocation list again to undo later revocations. A list that is older
// than the one in force does not come into force, and neither does a part of a list.
func TestWatcherKeepsNewerLists(t *testing.T) {
	dir := t.TempDir()
	ca, key := signaturestest.IssueCA(t, "ca", nil, nil, time.Now().Add(-time.Hour), time.Now().AddDate(1, 0, 0))
	list := func(number int64) string {
		t.Helper()
		der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{Number: big.NewInt(number), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}, ca, key)
		if err != nil {
			t.Fatal(err)
		}
		return string(der)
	}
	lists := map[int64]string{3: list(3), 4: list(4), 5: list(5)}
	write(t, dir, "ca.pem", string(signaturestest.CertPEM(t, ca)))
	write(t, dir, "ca.crl", lists[4])
	write(t, dir, "p.yaml", signaturestest.Document("demo", "[a.example.com]", "{policyType: Notary, notary: {caRootsPath: ca.pem, crlPaths: [ca.crl], trustedIdentities: ['*']}}", ""))
	first, err := policy.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var f followed
		w := policy.Watcher{Path: dir, Interval: 10 * time.Second, Follower: &f}
		done := make(chan struct{})
		go func() { defer close(done); w.Run(ctx, first) }()
		for _, step := range []struct {
			write      string
			sets, errs int
			says       string
		}{
			{lists[3], 0, 1, "number 3"},
			{lists[4], 1, 1, ""}, // the trouble is over
			{lists[5][:80], 1, 2, "is not a revocation list"},
			{lists[5], 2, 2, ""},
			{lists[4], 2, 3, "number 4"},
		} {
			write(t, dir, "ca.crl", step.write)
			time.Sleep(30 * time.Second)
			synctest.Wait()
			f.mu.Lock()
			if len(f.sets) != step.sets || len(f.errs) != step.errs || step.says != "" && !strings.Contains(f.errs[len(f.errs)-1].Error(), step.says) {
				t.Errorf("%d sets and %d errors, want %d and %d: %v", len(f.sets), len(f.errs), step.sets, step.errs, f.errs)
			}
			f.mu.Unlock()
		}
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

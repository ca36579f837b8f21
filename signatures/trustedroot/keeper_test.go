package trustedroot_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/theupdateframework/go-tuf/v2/metadata"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
	"github.com/tidewaiter/tidewaiter/signatures/trustedroot"
)

// repository is a TUF repository with one key for all roles, served on loopback.
type repository struct {
	t       *testing.T
	dir     string
	url     string
	signer  signature.Signer
	root    []byte
	version int64
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	r := &repository{t: t, dir: t.TempDir()}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	r.must(err)
	r.signer, err = signature.LoadSigner(private, crypto.Hash(0))
	r.must(err)
	key, err := metadata.KeyFromPublicKey(public)
	r.must(err)
	root := metadata.Root(time.Now().AddDate(1, 0, 0))
	for _, role := range []string{"root", "targets", "snapshot", "timestamp"} {
		r.must(root.Signed.AddKey(key, role))
	}
	_, err = root.Sign(r.signer)
	r.must(err)
	r.root, err = root.ToBytes(false)
	r.must(err)
	r.write("1.root.json", r.root)
	server := httptest.NewServer(http.FileServer(http.Dir(r.dir)))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func (r *repository) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *repository) write(name string, data []byte) {
	r.t.Helper()
	r.must(os.MkdirAll(filepath.Dir(filepath.Join(r.dir, name)), 0o755))
	r.must(os.WriteFile(filepath.Join(r.dir, name), data, 0o644))
}

// publish makes content the trusted root. The metadata have the next version and are valid until a
// time.
func (r *repository) publish(content []byte, until time.Time) {
	r.t.Helper()
	r.version++
	sum := sha256.Sum256(content)
	r.write("targets/"+hex.EncodeToString(sum[:])+"."+trustedroot.DefaultTarget, content)
	file, err := metadata.TargetFile().FromBytes(trustedroot.DefaultTarget, content, "sha256")
	r.must(err)
	targets, snapshot, timestamp := metadata.Targets(until), metadata.Snapshot(until), metadata.Timestamp(until)
	targets.Signed.Version, snapshot.Signed.Version, timestamp.Signed.Version = r.version, r.version, r.version
	targets.Signed.Targets[trustedroot.DefaultTarget] = file
	snapshot.Signed.Meta["targets.json"] = metadata.MetaFile(r.version)
	timestamp.Signed.Meta["snapshot.json"] = metadata.MetaFile(r.version)
	_, err = targets.Sign(r.signer)
	r.must(err)
	_, err = snapshot.Sign(r.signer)
	r.must(err)
	_, err = timestamp.Sign(r.signer)
	r.must(err)
	for name, m := range map[string]interface{ ToBytes(bool) ([]byte, error) }{
		fmt.Sprintf("%d.targets.json", r.version): targets, fmt.Sprintf("%d.snapshot.json", r.version): snapshot, "timestamp.json": timestamp,
	} {
		data, err := m.ToBytes(false)
		r.must(err)
		r.write(name, data)
	}
}

// roots are two trusted roots that differ.
func roots(t *testing.T) (a, b []byte) {
	return signaturestest.NewDeployment(t).TrustedRoot(t, nil), signaturestest.NewDeployment(t).TrustedRoot(t, nil)
}

func wantFile(t *testing.T, path string, want []byte) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, or the file has another trusted root", err)
	}
}

// The file follows the repository. A valid file stays if the repository has nothing, rubbish, an
// older state, an expired one, or one with other keys. A restart begins with the existing file.
func TestTrustedRootFollowsItsRepository(t *testing.T) {
	t.Parallel()
	r, next := newRepository(t), time.Now().AddDate(0, 1, 0)
	first, second := roots(t)
	r.publish(first, next)
	source := trustedroot.Source{File: filepath.Join(t.TempDir(), "root.json"), Mirror: r.url, Root: r.root}
	type told struct {
		at  time.Time
		err error
	}
	done := make(chan told)
	fake := clocktesting.NewFakeClock(time.Now())
	keeper := &trustedroot.Keeper{Sources: []trustedroot.Source{source}, Interval: time.Minute, Clock: fake,
		Done: func(_ trustedroot.Source, at time.Time, err error) { done <- told{at, err} }}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); keeper.Run(ctx) }()
	refreshed := func(step bool) told {
		t.Helper()
		if step {
			fake.Step(time.Minute)
		}
		select {
		case d := <-done:
			return d
		case <-time.After(time.Minute):
			t.Fatal("nothing was refreshed")
		}
		return told{}
	}
	good := func(d told, want []byte) {
		t.Helper()
		if d.err != nil || d.at.IsZero() {
			t.Errorf("at %v: %v", d.at, d.err)
		}
		wantFile(t, source.File, want)
	}
	good(refreshed(false), first)
	r.publish(second, next)
	good(refreshed(true), second)
	last := refreshed(true)
	good(last, second)

	bad := func(what string) {
		t.Helper()
		if d := refreshed(true); d.err == nil || !d.at.Equal(last.at) {
			t.Errorf("%s: at %v, %v", what, d.at, d.err)
		}
		wantFile(t, source.File, second)
	}
	r.publish([]byte(`{"mediaType":"x"}`), next)
	bad("not a trusted root")
	r.publish(first, time.Now().Add(-time.Hour))
	bad("expired")
	r.version -= 3
	r.publish(first, next)
	bad("an older state")
	other := newRepository(t)
	other.version = 100
	other.publish(first, next)
	r.must(os.Rename(r.dir, r.dir+".away"))
	r.must(os.Rename(other.dir, r.dir))
	bad("other keys")
	r.must(os.RemoveAll(r.dir))
	bad("nothing")
	stop()
	<-ended

	// The file is enough to start, and the old state is still refused.
	restarted := &trustedroot.Keeper{Sources: keeper.Sources}
	if err := restarted.Missing(); err != nil {
		t.Error(err)
	}
	wantFile(t, source.File, second)
}

// A policy that names a missing file cannot be read. If the file cannot be downloaded, the error
// gives the reason.
func TestMissingTrustedRoot(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	first, _ := roots(t)
	source := trustedroot.Source{File: filepath.Join(t.TempDir(), "root.json"), Mirror: r.url, Root: r.root}
	keeper := &trustedroot.Keeper{Sources: []trustedroot.Source{source}}
	if err := keeper.Missing(); err == nil {
		t.Error("an empty repository has one")
	}
	r.publish(first, time.Now().AddDate(0, 1, 0))
	if err := keeper.Missing(); err != nil {
		t.Error(err)
	}
	wantFile(t, source.File, first)
	source.Root = newRepository(t).root
	source.File = filepath.Join(t.TempDir(), "root.json")
	if err := (&trustedroot.Keeper{Sources: []trustedroot.Source{source}}).Missing(); err == nil {
		t.Error("a repository of other keys has one")
	}
	large := bytes.Repeat([]byte(" "), 2<<20)
	r.publish(append(large, first...), time.Now().AddDate(0, 1, 0))
	source.Root, source.File = r.root, filepath.Join(t.TempDir(), "root.json")
	if err := (&trustedroot.Keeper{Sources: []trustedroot.Source{source}}).Missing(); err == nil {
		t.Error("two megabytes are taken")
	}
}

// After a crash, damaged metadata of a repository do not prevent updates of the file.
func TestHalfWrittenKnowledgeIsReplaced(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	root, _ := roots(t)
	r.publish(root, time.Now().AddDate(0, 1, 0))
	source := trustedroot.Source{File: filepath.Join(t.TempDir(), "root.json"), Mirror: r.url, Root: r.root}
	keeper := &trustedroot.Keeper{Sources: []trustedroot.Source{source}}
	r.must(keeper.Missing())
	var known []string
	r.must(filepath.WalkDir(source.File+".tuf", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			known = append(known, path)
		}
		return err
	}))
	if len(known) < 5 {
		t.Fatalf("only %v is known of a repository", known)
	}
	for _, file := range known {
		data, err := os.ReadFile(file)
		r.must(err)
		for name, left := range map[string][]byte{"nothing": {}, "half": data[:len(data)/2]} {
			r.must(os.WriteFile(file, left, 0o600))
			r.must(os.Remove(source.File))
			if err := keeper.Missing(); err != nil {
				t.Errorf("%s of %s: %v", name, filepath.Base(file), err)
				r.must(os.WriteFile(file, data, 0o600))
				r.must(keeper.Missing())
				continue
			}
			wantFile(t, source.File, root)
		}
	}
}

// Only signed content is used. If a repository adds another part to its signed metadata, under the
// same key or one that differs in case, its own trusted root is not accepted.
func TestAttackTwoSignedParts(t *testing.T) {
	t.Parallel()
	genuine, forged := roots(t)
	for _, name := range []string{"timestamp.json", "1.snapshot.json", "1.targets.json"} {
		for what, edit := range map[string]func(signed, signatures, other string) string{
			"signed twice": func(s, sig, o string) string {
				return `{"signed":` + s + `,"signed":` + o + `,"signatures":` + sig + `}`
			},
			"signed twice, the other way": func(s, sig, o string) string {
				return `{"signed":` + o + `,"signed":` + s + `,"signatures":` + sig + `}`
			},
			"signed and Signed": func(s, sig, o string) string {
				return `{"signed":` + s + `,"Signed":` + o + `,"signatures":` + sig + `}`
			},
			"Signed and signed": func(s, sig, o string) string {
				return `{"Signed":` + o + `,"signed":` + s + `,"signatures":` + sig + `}`
			},
			"its parts twice": func(s, sig, o string) string {
				return `{"signed":` + s[:len(s)-1] + `,` + o[1:] + `,"signatures":` + sig + `}`
			},
			"its parts twice, the others": func(s, sig, o string) string {
				return `{"signed":` + o[:len(o)-1] + `,` + s[1:] + `,"signatures":` + sig + `}`
			},
			"its parts in two spellings": func(s, sig, o string) string {
				return `{"signed":` + s[:len(s)-1] + `,` + upper(o)[1:] + `,"signatures":` + sig + `}`
			},
			"its parts, the others before": func(s, sig, o string) string {
				return `{"signed":` + upper(o)[:len(o)-1] + `,` + s[1:] + `,"signatures":` + sig + `}`
			},
			"a second document after it": func(s, sig, o string) string {
				return `{"signed":` + s + `,"signatures":` + sig + `}{"signed":` + o + `}`
			},
		} {
			r, evil := newRepository(t), newRepository(t)
			r.publish(genuine, time.Now().AddDate(0, 1, 0))
			evil.publish(forged, time.Now().AddDate(0, 1, 0))
			part := func(from *repository) (signed, signatures string) {
				data, err := os.ReadFile(filepath.Join(from.dir, name))
				r.must(err)
				var parts map[string]json.RawMessage
				r.must(json.Unmarshal(data, &parts))
				return string(parts["signed"]), string(parts["signatures"])
			}
			signed, signatures := part(r)
			other, _ := part(evil)
			r.write(name, []byte(edit(signed, signatures, other)))
			sum := sha256.Sum256(forged)
			r.write("targets/"+hex.EncodeToString(sum[:])+"."+trustedroot.DefaultTarget, forged)
			source := trustedroot.Source{File: filepath.Join(t.TempDir(), "root.json"), Mirror: r.url, Root: r.root}
			if err := (&trustedroot.Keeper{Sources: []trustedroot.Source{source}}).Missing(); err == nil {
				wantFile(t, source.File, genuine)
			}
			if got, err := os.ReadFile(source.File); err == nil && bytes.Equal(got, forged) {
				t.Errorf("%s of %s: the forged root was taken", what, name)
			}
		}
	}
}

// upper returns an object with its own keys in capitals.
func upper(object string) string {
	return regexp.MustCompile(`"(targets|meta|version|expires|spec_version)":`).ReplaceAllStringFunc(object, strings.ToUpper)
}

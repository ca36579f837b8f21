package containers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"go.podman.io/image/v5/pkg/docker/config"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/room"
)

// helperFolder is the first folder of PATH, with helpers: "quick" answers, "itself" and "child"
// write a line to the file started and then wait until somebody writes an answer to the named pipe
// of the host. "itself" reads it, and "child" has cat read it. "leaves" answers, and leaves a
// process that holds the pipe open.
type helperFolder struct {
	t    *testing.T
	path string
}

func newHelpers(t *testing.T) helperFolder {
	t.Helper()
	h := helperFolder{t, t.TempDir()}
	t.Setenv("PATH", h.path+":"+os.Getenv("PATH"))
	began := "#!/bin/sh\nread host\ncd " + h.path + "\n[ -p $host ] || mkfifo $host\necho $host >>started\n"
	writeFile(t, began+"read answer <$host\necho \"$answer\"\n", h.path, "docker-credential-itself")
	writeFile(t, began+"cat $host\n", h.path, "docker-credential-child")
	writeFile(t, began+"exec 3<>$host\nsleep 1000 <&3 >/dev/null 2>&1 &\necho '{\"Username\":\"leaves\",\"Secret\":\"p-leaves\"}'\n", h.path, "docker-credential-leaves")
	writeFile(t, "#!/bin/sh\nread host\ncase $host in\nno.*) echo 'credentials not found in native keychain'; exit 1;;\nbad.*) exit 1;;\ntoken.*) user='<token>';;\n*) user=$host;;\nesac\n"+
		"echo '{\"Username\":\"'$user'\",\"Secret\":\"p-'$host'\"}'\n", h.path, "docker-credential-quick")
	return h
}

// unread returns once no process reads from the named pipe of the host.
func (h helperFolder) unread(host string) {
	h.t.Helper()
	for range poll(h.t, "a process still reads the pipe of "+host) {
		pipe, err := os.OpenFile(filepath.Join(h.path, host), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if errors.Is(err, syscall.ENXIO) {
			return
		}
		if err != nil {
			h.t.Fatal(err)
		}
		pipe.Close()
	}
}

// started returns how often helpers that wait have been started, once there are so many.
func (h helperFolder) started(least int) int {
	h.t.Helper()
	for range poll(h.t, "helpers are not started") {
		text, _ := os.ReadFile(filepath.Join(h.path, "started"))
		if n := strings.Count(string(text), "\n"); n >= least {
			return n
		}
	}
	return 0
}

// answer has the helper that waits for a host give an answer.
func (h helperFolder) answer(host, user string) {
	h.t.Helper()
	for range poll(h.t, "no helper waits for "+host) {
		pipe, err := os.OpenFile(filepath.Join(h.path, host), os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if errors.Is(err, syscall.ENXIO) || errors.Is(err, fs.ErrNotExist) {
			continue // nobody reads yet
		}
		if err == nil {
			_, err = fmt.Fprintf(pipe, "{\"Username\":%q,\"Secret\":\"p-%s\"}\n", user, user)
			pipe.Close()
		}
		if err != nil {
			h.t.Fatal(err)
		}
		return
	}
}

// poll yields until the loop is left, and fails after minutes.
func poll(t *testing.T, what string) func(yield func(struct{}) bool) {
	return func(yield func(struct{}) bool) {
		t.Helper()
		for end := time.Now().Add(3 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if !yield(struct{}{}) {
				return
			}
		}
		t.Fatal(what)
	}
}

// withHelpers returns files that name helpers for hosts, and their clock.
func withHelpers(t *testing.T, hosts string) (*Files, *clocktesting.FakeClock) {
	t.Helper()
	f := newFiles(t, Options{AuthFile: writeFile(t, `{"auths":{"file.example.com":{"auth":"ZmlsZTpwLWZpbGU="}},"credHelpers":{`+hosts+`}}`, t.TempDir(), "auth.json"), Root: t.TempDir()})
	c := clocktesting.NewFakeClock(time.Now())
	f.clock = c
	return f, c
}

// begin has the helper of a repository's host asked, and does not wait for its answer.
func begin(t *testing.T, f *Files, repository string) *call {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.ResolveContext(ctx, resource(t, repository)); !errors.Is(err, context.Canceled) {
		t.Fatalf("%s: %v", repository, err)
	}
	host, _, _ := strings.Cut(repository, "/")
	f.mu.Lock()
	defer f.mu.Unlock()
	for q, c := range f.calls {
		if q.host == host {
			return c
		}
	}
	t.Fatalf("no helper is at work for %s", host)
	return nil
}

func resource(t *testing.T, repository string) authn.Resource {
	t.Helper()
	r, err := name.NewRepository(repository)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// wantTimeout fails unless an error is a timeout that says this.
func wantTimeout(t *testing.T, err error, says string) {
	t.Helper()
	var e *pull.Error
	if !errors.As(err, &e) || e.Reason != pull.Timeout || !strings.Contains(e.Message, says) {
		t.Errorf("the error is %v, want a timeout that says %q", err, says)
	}
}

// idle waits until no helper runs.
func idle(t *testing.T, f *Files) {
	t.Helper()
	for range poll(t, "a helper does not end") {
		f.mu.Lock()
		n := len(f.calls)
		f.mu.Unlock()
		if n == 0 {
			return
		}
	}
}

const noAnswer = "docker-credential-itself did not answer within 10s when it was asked for hangs.example.com"

// A helper that hangs is one process, however many repositories of its host are asked for. It holds
// up no other host, and is ended.
func TestAHelperThatHangsHoldsUpItsHostAlone(t *testing.T) {
	h := newHelpers(t)
	f, c := withHelpers(t, `"hangs.example.com":"itself","good.example.com":"quick"`)
	var at *call
	for i := range 3 * maxHelpers {
		at = begin(t, f, fmt.Sprintf("hangs.example.com/x%d", i))
	}
	h.started(1)
	for repository, want := range map[string]string{"good.example.com/x": "good.example.com", "file.example.com/x": "file"} {
		if got := user(t, f, repository); got != want {
			t.Errorf("beside it, %s has the credentials of %q", repository, got)
		}
	}
	c.Step(helperPatience)
	<-at.done
	wantTimeout(t, at.err, noAnswer)
	idle(t, f) // it has ended
	if n := h.started(1); n != 1 {
		t.Errorf("%d helpers were started for a host", n)
	}
	at = begin(t, f, "hangs.example.com/x")
	h.answer("hangs.example.com", "late")
	if <-at.done; at.err != nil || at.found.Username != "late" {
		t.Errorf("when it answers: %+v, %v", at.found, at.err)
	}
	idle(t, f)
}

// All repositories of a host that want credentials at a time get one answer, which no other host
// gets.
func TestOneHelperAnswersForAHost(t *testing.T) {
	h := newHelpers(t)
	f, _ := withHelpers(t, `"slow.example.com":"itself","other.example.com":"itself"`)
	var slow *call
	for i := range 20 {
		at := begin(t, f, fmt.Sprintf("slow.example.com/x%d", i))
		if slow != nil && at != slow {
			t.Error("a repository has its own helper")
		}
		slow = at
	}
	other := begin(t, f, "other.example.com/x")
	h.answer("slow.example.com", "a")
	h.answer("other.example.com", "b")
	<-slow.done
	<-other.done
	if slow.err != nil || other.err != nil || slow.found.Username != "a" || other.found.Username != "b" {
		t.Errorf("%+v, %v; %+v, %v", slow.found, slow.err, other.found, other.err)
	}
	idle(t, f)
	if n := h.started(2); n != 2 {
		t.Errorf("%d helpers were started for two hosts", n)
	}
}

// A helper that takes too long is ended with everything that it started, so nothing piles up and
// the host can be asked again at once.
func TestAHelperIsEndedWithItsChildren(t *testing.T) {
	h := newHelpers(t)
	f, c := withHelpers(t, `"hangs.example.com":"child"`)
	for n := range 3 {
		at := begin(t, f, "hangs.example.com/x")
		h.started(n + 1)
		c.Step(helperPatience)
		<-at.done
		wantTimeout(t, at.err, "docker-credential-child did not answer")
		h.unread("hangs.example.com")
		idle(t, f)
	}
	at := begin(t, f, "hangs.example.com/x")
	h.started(4)
	h.answer("hangs.example.com", "late")
	if <-at.done; at.err != nil || at.found.Username != "late" {
		t.Errorf("when it answers: %+v, %v", at.found, at.err)
	}
	idle(t, f)
}

// What a helper leaves running when it has answered is ended.
func TestAHelperThatAnswersLeavesNothing(t *testing.T) {
	h := newHelpers(t)
	f, _ := withHelpers(t, `"leaves.example.com":"leaves"`)
	if got := user(t, f, "leaves.example.com/x"); got != "leaves" {
		t.Errorf("the credentials of %q", got)
	}
	h.unread("leaves.example.com")
}

// However many hosts have a helper that hangs, a bounded number of them runs; who waits in vain for
// a turn is told so. Another helper is asked meanwhile.
func TestHelpersOfAllHostsAreBounded(t *testing.T) {
	h := newHelpers(t)
	f, c := withHelpers(t, `"a.example.com":"child","b.example.com":"child","c.example.com":"child","d.example.com":"quick"`)
	f.running = room.New(3, 2)
	begin(t, f, "a.example.com/x")
	begin(t, f, "b.example.com/x")
	h.started(2)
	at := begin(t, f, "c.example.com/x")
	for range poll(t, "the third does not wait for its turn") {
		if c.Waiters() == 3 {
			break
		}
	}
	if got := user(t, f, "file.example.com/x"); got != "file" {
		t.Errorf("the credentials of %q", got)
	}
	if got := user(t, f, "d.example.com/x"); got != "d.example.com" {
		t.Errorf("the credentials of %q", got)
	}
	c.Step(helperPatience)
	<-at.done
	wantTimeout(t, at.err, "was not asked for c.example.com: it runs for as many other hosts as it may")
	if n := h.started(2); n != 2 {
		t.Errorf("%d helpers run", n)
	}
	idle(t, f)
}

// Credentials are those that config.GetCredentials finds, wherever they are.
func TestCredentialsAreThoseOfTheLibrary(t *testing.T) {
	h := newHelpers(t)
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(h.path, "run"))
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(h.path, "config"))
	t.Setenv("DOCKER_CONFIG", filepath.Join(h.path, "docker"))
	t.Setenv("REGISTRY_AUTH_FILE", "")
	files := func(first string) {
		writeFile(t, first, h.path, "run/containers/auth.json")
		writeFile(t, `{"auths":{"second.example.com":{"auth":"MjoyCg=="},"all.example.com":{"auth":"MjoyCg=="}},"credHelpers":{"helped.example.com":"quick","no.example.com":"quick"}}`, h.path, "config/containers/auth.json")
		writeFile(t, `{"auths":{"third.example.com":{"auth":"Mzoz"},"all.example.com":{"auth":"Mzoz"},"no.example.com":{"auth":"Mzoz"},"https://index.docker.io/v1/":{"auth":"aHViOmh1Yg=="}},"credHelpers":{"docker.io":"quick"}}`, h.path, "docker/config.json")
	}
	keys := []string{"docker.io/library/busybox"}
	for _, host := range []string{"first", "second", "third", "all", "helped", "no", "bad", "token", "nowhere", "none"} {
		for _, path := range []string{"", "/team", "/team/app", "/other"} {
			keys = append(keys, host+".example.com"+path)
		}
	}
	same := func(what string, f *Files) {
		t.Helper()
		found := 0
		for _, key := range keys {
			want, wantErr := config.GetCredentials(f.system, key)
			got, err := f.credentials(t.Context(), key)
			if got != inGeneral(want) || (err == nil) != (wantErr == nil) {
				t.Errorf("%s: %s: %+v, %v, want %+v, %v", what, key, got, err, want, wantErr)
			}
			if want.Username != "" || want.IdentityToken != "" {
				found++
			}
		}
		if what != "damaged" && found < 10 {
			t.Errorf("%s: only %d have credentials", what, found)
		}
	}
	first := `{"auths":{"first.example.com":{"auth":"MTox"},"helped.example.com/team":{"auth":"MTox"},"token.example.com/team":{"auth":"MTox"}},` +
		`"credHelpers":{"bad.example.com":"quick","token.example.com":"quick","none.example.com":"nowhere"}}`
	files(first)
	same("files", newFiles(t, Options{}))
	same("a file", newFiles(t, Options{AuthFile: filepath.Join(h.path, "run/containers/auth.json")}))
	files("{")
	same("damaged", newFiles(t, Options{}))
	files(first)

	root := t.TempDir()
	writeFile(t, `credential-helpers = ["quick", "containers-auth.json", "nowhere"]`, root, "etc/containers/registries.conf")
	same("registries.conf", newFiles(t, Options{Root: root}))
	root = t.TempDir() // registries.conf is read once
	writeFile(t, `credential-helpers = ["containers-auth.json", "quick"]`, root, "etc/containers/registries.conf")
	same("registries.conf, files first", newFiles(t, Options{Root: root}))
}

// Tokens that docker keeps without a password are found where the password of a key would be, in
// docker's and in podman's file.
func TestTokensWithoutPasswords(t *testing.T) {
	t.Setenv("REGISTRY_AUTH_FILE", "")
	const auths = `{"auths":{"identity.example.com":{"identitytoken":"i-1"},"registry.example.com":{"registrytoken":"r-1"},"both.example.com":{"auth":"","identitytoken":"i-2","registrytoken":"r-2"},` +
		`"https://index.docker.io/v1/":{"identitytoken":"i-hub"},"https://url.example.com/v2/":{"registrytoken":"r-url"},` +
		`"parts.example.com":{"identitytoken":"i-host"},"parts.example.com/team":{"identitytoken":"i-team"},"parts.example.com/empty":{},` +
		`"password.example.com":{"auth":"dXNlcjpwdw==","registrytoken":"r-3"}}}`
	for file, at := range map[string]string{"config.json": "docker", "auth.json": "config/containers"} {
		dir := t.TempDir()
		for name, path := range map[string]string{"XDG_RUNTIME_DIR": "run", "XDG_CONFIG_HOME": "config", "DOCKER_CONFIG": "docker"} {
			t.Setenv(name, filepath.Join(dir, path))
		}
		writeFile(t, auths, dir, filepath.Join(at, file))
		for _, f := range []*Files{newFiles(t, Options{}), newFiles(t, Options{AuthFile: filepath.Join(dir, at, file)})} {
			for repository, want := range map[string]authn.AuthConfig{
				"identity.example.com/app": {IdentityToken: "i-1"}, "registry.example.com/team/app": {RegistryToken: "r-1"},
				"both.example.com/app": {IdentityToken: "i-2", RegistryToken: "r-2"}, "index.docker.io/library/app": {IdentityToken: "i-hub"},
				"url.example.com/app": {RegistryToken: "r-url"}, "parts.example.com/app": {IdentityToken: "i-host"},
				"parts.example.com/team/app": {IdentityToken: "i-team"}, "parts.example.com/empty/app": {}, "parts.example.com/teams/app": {IdentityToken: "i-host"},
				"password.example.com/app": {Username: "user", Password: "pw"}, "none.example.com/app": {},
			} {
				found, err := f.Resolve(resource(t, repository))
				if err != nil {
					t.Fatalf("%s: %s: %v", file, repository, err)
				}
				if got, err := authn.Authorization(t.Context(), found); err != nil || got.Username != want.Username || got.Password != want.Password || got.IdentityToken != want.IdentityToken || got.RegistryToken != want.RegistryToken {
					t.Errorf("%s: %s: %+v, %v; want %+v", file, repository, got, err, want)
				}
			}
		}
	}
}

// What a helper says is read up to a bound.
func TestAHelperThatSaysTooMuch(t *testing.T) {
	h := newHelpers(t)
	writeFile(t, "#!/bin/sh\nprintf '{\"Username\":\"a\",\"Secret\":\"'\nhead -c $(cat) /dev/zero | tr '\\0' x\necho '\"}'\n", h.path, "docker-credential-long")
	f, _ := withHelpers(t, `"1000":"long","1000000":"long"`) // the hosts are lengths
	if c, err := f.credentials(t.Context(), "1000"); err != nil || len(c.Password) != 1000 {
		t.Errorf("a long password has %d bytes, %v", len(c.Password), err)
	}
	if c, err := f.credentials(t.Context(), "1000000"); err == nil {
		t.Errorf("a password of %d bytes is read", len(c.Password))
	}
}

// An import from a registry whose helper hangs has the reason that pauses the registry.
func TestAnImportWhoseHelperHangs(t *testing.T) {
	h := newHelpers(t)
	registry := registrytest.New(t, registrytest.WithAuth(registrytest.Auth{Scheme: "basic", Username: "user", Password: "p-user"}))
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:v1", image)
	f, c := withHelpers(t, fmt.Sprintf("%q:%q", registry.Host, "itself"))
	im, err := importer.New(importer.Options{Keychain: f, Files: f})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(im.Close)
	importing := func() chan error {
		done := make(chan error, 1)
		go func() {
			_, err := im.Import(t.Context(), parse(t, registry.Host+"/team/app:v1"), &registrytest.Images{})
			done <- err
		}()
		return done
	}
	done := importing()
	h.started(1)
	c.Step(helperPatience)
	err = <-done
	var e *pull.Error
	if !errors.As(err, &e) || e.Reason != pull.Timeout || !e.Temporary() || !strings.Contains(err.Error(), "docker-credential-itself") || !strings.Contains(err.Error(), registry.Host+"/team/app:v1") {
		t.Errorf("the error is %v", err)
	}
	idle(t, f)
	done = importing()
	h.started(2)
	h.answer(registry.Host, "user")
	if err := <-done; err != nil {
		t.Errorf("when it answers: %v", err)
	}
}

// What docker login keeps in a credsStore is found there, for the hosts that it has noted in the
// file. Others are not asked about, so a store that is not installed hinders no pull without
// credentials.
func TestCredsStore(t *testing.T) {
	newHelpers(t)
	const auths = `{"auths":{"stored.example.com":{},"https://index.docker.io/v1/":{},"file.example.com":{"auth":"ZmlsZTpwLWZpbGU="},"helped.example.com":{}},"credHelpers":{"helped.example.com":"nowhere"},"credsStore":`
	with := func(store string) *Files {
		return newFiles(t, Options{AuthFile: writeFile(t, auths+`"`+store+`"}`, t.TempDir(), "config.json"), Root: t.TempDir()})
	}
	for repository, want := range map[string]string{
		"stored.example.com/app": "stored.example.com", "file.example.com/app": "file", "other.example.com/app": "",
		"index.docker.io/library/app": "https://index.docker.io/v1/",
	} {
		found, err := with("quick").Resolve(resource(t, repository))
		if err != nil {
			t.Fatalf("%s: %v", repository, err)
		}
		if got, err := authn.Authorization(t.Context(), found); err != nil || got.Username != want {
			t.Errorf("%s: %q, %v; want %q", repository, got.Username, err, want)
		}
	}
	for repository, fails := range map[string]bool{"stored.example.com/app": true, "helped.example.com/app": true, "other.example.com/app": false, "file.example.com/app": false} {
		if _, err := with("nowhere").Resolve(resource(t, repository)); (err != nil) != fails {
			t.Errorf("%s, with a store that is not installed: %v", repository, err)
		}
	}
}

// The registries that files have credentials for are named by their hosts.
func TestHosts(t *testing.T) {
	t.Parallel()
	f := newFiles(t, Options{AuthFile: writeFile(t, `{"auths":{"https://index.docker.io/v1/":{},"quay.io/acme":{},"quay.io":{},"https://ghcr.io":{}},"credHelpers":{"x.dkr.ecr.eu-west-1.amazonaws.com":"ecr-login"}}`, t.TempDir(), "auth.json"), Root: t.TempDir()})
	if got, want := fmt.Sprint(f.Hosts()), "[docker.io ghcr.io quay.io x.dkr.ecr.eu-west-1.amazonaws.com]"; got != want {
		t.Errorf("there are credentials for %s, want %s", got, want)
	}
}

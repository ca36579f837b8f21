package containers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	helpers "github.com/docker/docker-credential-helpers/client"
	"github.com/docker/docker-credential-helpers/credentials"
	"github.com/google/go-containerregistry/pkg/authn"
	"go.podman.io/image/v5/pkg/docker/config"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"
	"go.podman.io/storage/pkg/homedir"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

const (
	// helperPatience is how long a credential helper may take, and before that how long it may wait
	// for its turn.
	helperPatience = 10 * time.Second
	// maxHelpers bounds how many helpers run at a time. A host has one of each helper that it is
	// configured with.
	maxHelpers = 16
	// maxHelperAnswer bounds the output of a helper, in bytes.
	maxHelperAnswer = 64 << 10
)

// Resolve implements authn.Keychain.
func (f *Files) Resolve(r authn.Resource) (authn.Authenticator, error) {
	return f.ResolveContext(context.Background(), r)
}

// ResolveContext implements authn.ContextKeychain: the credentials of the longest part of the
// resource's name that has some. A helper that does not answer within ten seconds is an
// *importer.Error with the reason Timeout.
func (f *Files) ResolveContext(ctx context.Context, r authn.Resource) (authn.Authenticator, error) {
	found, err := f.credentials(ctx, key(r))
	switch {
	case err != nil:
		return nil, err
	case found == authn.AuthConfig{}:
		return authn.Anonymous, nil
	}
	return authn.FromConfig(found), nil
}

// key is the name under which the credentials of a repository are kept.
func key(r authn.Resource) string {
	name := r.String()
	if rest, ok := strings.CutPrefix(name, "index.docker.io"); ok {
		return "docker.io" + rest // go-containerregistry's name for it
	}
	return name
}

// credentials looks where config.GetCredentials looks, in its order, but runs the helpers itself:
// GetCredentials can neither share their answers nor end them. And it finds docker's tokens, which
// GetCredentials passes over.
func (f *Files) credentials(ctx context.Context, key string) (found authn.AuthConfig, err error) {
	if named := f.system.DockerAuthConfig; named != nil {
		return inGeneral(*named), nil
	}
	places, err := sysregistriesv2.CredentialHelpers(f.system)
	if err != nil {
		return found, err
	}
	host, _, _ := strings.Cut(key, "/")
	var failed []error
	for _, place := range places {
		if place == sysregistriesv2.AuthenticationFileHelper {
			found, err = f.inFiles(ctx, key, host)
			for _, other := range reference.OtherNames(host) {
				if err == nil && found == (authn.AuthConfig{}) {
					found, err = f.inFiles(ctx, other+strings.TrimPrefix(key, host), other)
				}
			}
		} else {
			found, err = f.ask(ctx, question{place, host})
		}
		if found != (authn.AuthConfig{}) {
			return found, nil
		}
		failed = append(failed, err)
	}
	return found, errors.Join(failed...)
}

// inFiles looks in the files with credentials. A file may name a helper for a host, which then
// counts alone, or one that keeps what docker login does not write into the file.
func (f *Files) inFiles(ctx context.Context, key, host string) (found authn.AuthConfig, err error) {
	for _, file := range f.authFiles() {
		inFile := readAuthFile(file.AuthFilePath)
		own, store := inFile.helpers(host)
		if own != nil {
			found, err = f.ask(ctx, *own)
		} else {
			var read types.DockerAuthConfig
			if read, err = config.GetCredentials(&file, key); err == nil && read == (types.DockerAuthConfig{}) {
				found = inFile.tokens(key)
			} else {
				found = inGeneral(read)
			}
		}
		if store != nil && err == nil && found == (authn.AuthConfig{}) {
			found, err = f.ask(ctx, *store)
		}
		if err != nil || found != (authn.AuthConfig{}) {
			return found, err
		}
	}
	return found, nil
}

// authFiles returns the files of containers-auth.json(5) in their order, each with no
// registries.conf.
func (f *Files) authFiles() []types.SystemContext {
	none := types.SystemContext{SystemRegistriesConfPath: os.DevNull, SystemRegistriesConfDirPath: os.DevNull}
	file := func(path ...string) types.SystemContext {
		c := none
		c.AuthFilePath = filepath.Join(path...)
		return c
	}
	if path := f.system.AuthFilePath; path != "" {
		return []types.SystemContext{file(path)}
	}
	home := homedir.Get()
	run := filepath.Join(home, ".config/containers")
	if runtime.GOOS == "linux" {
		run = filepath.Join(f.options.Root, "/run/containers", strconv.Itoa(os.Getuid()))
		if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && f.options.Root == "" {
			run = filepath.Join(dir, "containers")
		}
	}
	legacy := none
	legacy.LegacyFormatAuthFilePath = filepath.Join(home, ".dockercfg")
	return []types.SystemContext{
		file(run, "auth.json"),
		file(cmp.Or(os.Getenv("XDG_CONFIG_HOME"), filepath.Join(home, ".config")), "containers/auth.json"),
		file(cmp.Or(os.Getenv("DOCKER_CONFIG"), filepath.Join(home, ".docker")), "config.json"),
		legacy,
	}
}

// Hosts names the registries for which the files have credentials, or a helper that may have some.
func (f *Files) Hosts() (all []string) {
	for _, of := range f.authFiles() {
		file := readAuthFile(cmp.Or(of.AuthFilePath, of.LegacyFormatAuthFilePath))
		for name := range maps.Keys(file.Auths) {
			if _, address, isURL := strings.Cut(name, "://"); isURL {
				name = address
			}
			host, _, _ := strings.Cut(name, "/")
			if host == "index.docker.io" {
				host = reference.DockerHub
			}
			all = append(all, host)
		}
		all = slices.AppendSeq(all, maps.Keys(file.CredHelpers))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// inGeneral is what the library has found, in the terms of go-containerregistry.
func inGeneral(found types.DockerAuthConfig) authn.AuthConfig {
	return authn.AuthConfig{Username: found.Username, Password: found.Password, IdentityToken: found.IdentityToken}
}

// authFile is what config.GetCredentials does not read of a file with credentials.
type authFile struct {
	CredHelpers map[string]string `json:"credHelpers"`
	CredsStore  string            `json:"credsStore"`
	Auths       map[string]struct {
		IdentityToken string `json:"identitytoken"`
		RegistryToken string `json:"registrytoken"`
	} `json:"auths"`
}

// readAuthFile reads a file. For a file that cannot be read it returns nothing, because
// config.GetCredentials returns the error.
func readAuthFile(path string) (file authFile) {
	if text, err := os.ReadFile(path); err != nil || json.Unmarshal(text, &file) != nil {
		return authFile{}
	}
	return file
}

// tokens returns the tokens of the entry that config.GetCredentials uses: the entry for the longest
// part of the key, or else the entry for the host as a URL.
func (file authFile) tokens(key string) authn.AuthConfig {
	for name := key; ; {
		if entry, ok := file.Auths[name]; ok {
			return authn.AuthConfig{IdentityToken: entry.IdentityToken, RegistryToken: entry.RegistryToken}
		}
		end := strings.LastIndexByte(name, '/')
		if end < 0 {
			break
		}
		name = name[:end]
	}
	host, _, _ := strings.Cut(key, "/")
	for _, name := range slices.Sorted(maps.Keys(file.Auths)) {
		_, address, isURL := strings.Cut(name, "://")
		if noted, _, _ := strings.Cut(address, "/"); isURL && (noted == host || noted == "index.docker.io" && host == "docker.io") {
			return authn.AuthConfig{IdentityToken: file.Auths[name].IdentityToken, RegistryToken: file.Auths[name].RegistryToken}
		}
	}
	return authn.AuthConfig{}
}

// helpers returns what a file has helpers asked for a host: the helper of the host, or docker's
// credsStore if docker login has noted there that it keeps something.
func (file authFile) helpers(host string) (own, store *question) {
	if helper, ok := file.CredHelpers[host]; ok {
		return &question{helper, host}, nil
	}
	if file.CredsStore == "" {
		return nil, nil
	}
	noted := []string{host, "https://" + host}
	if host == "docker.io" {
		noted = []string{"https://index.docker.io/v1/", "index.docker.io", host}
	}
	for _, name := range noted {
		if _, ok := file.Auths[name]; ok {
			return nil, &question{file.CredsStore, name}
		}
	}
	return nil, nil
}

// question is a request to a credential helper.
type question struct{ helper, host string }

func (q question) program() string { return "docker-credential-" + q.helper }

func (q question) tooLate(format string, args ...any) error {
	return &pull.Error{Reason: pull.Timeout, Message: fmt.Sprintf("the credential helper %s "+format, append([]any{printable.Line(q.program(), 100)}, args...)...)}
}

// call is a running helper, for all callers with the same question. It may have failed and still
// run: its end is awaited, so that those that cannot be ended do not pile up.
type call struct {
	once  sync.Once
	done  chan struct{} // closed once found and err are set
	found authn.AuthConfig
	err   error
}

func (c *call) answer(found authn.AuthConfig, err error) {
	c.once.Do(func() {
		c.found, c.err = found, err
		close(c.done)
	})
}

// ask runs a helper, or waits for the run that another caller began.
func (f *Files) ask(ctx context.Context, q question) (authn.AuthConfig, error) {
	f.mu.Lock()
	c := f.calls[q]
	if c == nil {
		c = &call{done: make(chan struct{})}
		f.calls[q] = c
		go f.run(q, c)
	}
	f.mu.Unlock()
	select {
	case <-c.done:
		return c.found, c.err
	case <-ctx.Done():
		return authn.AuthConfig{}, context.Cause(ctx)
	}
}

// run runs a helper and ends it if it takes too long.
func (f *Files) run(q question, c *call) {
	defer func() {
		f.mu.Lock()
		delete(f.calls, q)
		f.mu.Unlock()
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	turn := f.clock.AfterFunc(helperPatience, cancel)
	end, err := f.running.Acquire(ctx, q.helper, 1)
	if err == nil {
		defer end()
	}
	if err != nil || !turn.Stop() {
		c.answer(authn.AuthConfig{}, q.tooLate("was not asked for %s: it runs for as many other hosts as it may, or as many helpers run, and none ended within %s", q.host, helperPatience))
		return
	}
	limit := f.clock.AfterFunc(helperPatience, func() {
		c.answer(authn.AuthConfig{}, q.tooLate("did not answer within %s when it was asked for %s", helperPatience, q.host))
		cancel()
	})
	defer limit.Stop()
	given, err := helpers.Get(func(args ...string) helpers.Program {
		cmd := exec.CommandContext(ctx, q.program(), args...)
		cmd.Stderr = os.Stderr
		inOwnGroup(cmd)
		cmd.Cancel = func() error { return endGroup(cmd) }
		return program{cmd}
	}, q.host)
	switch {
	case credentials.IsErrCredentialsNotFound(err):
		c.answer(authn.AuthConfig{}, nil)
	case err != nil:
		c.answer(authn.AuthConfig{}, fmt.Errorf("%s for %s: %w", q.program(), q.host, err))
	case given.Username == "<token>":
		c.answer(authn.AuthConfig{IdentityToken: given.Secret}, nil)
	default:
		c.answer(authn.AuthConfig{Username: given.Username, Password: given.Secret}, nil)
	}
}

// program is a helper of whose answer a bounded part is read. It implements helpers.Program.
type program struct{ *exec.Cmd }

func (p program) Input(in io.Reader) { p.Stdin = in }

// Output returns the program's answer once it has ended, and ends what it left running.
func (p program) Output() ([]byte, error) {
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(out, maxHelperAnswer))
	out.Close()
	defer endGroup(p.Cmd)
	return text, errors.Join(err, p.Wait())
}

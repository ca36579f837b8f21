// Package containers reads the files in which people tell skopeo, podman and buildah about
// registries, so that whoever has set those up need not say it again:
//
//   - credentials: containers-auth.json(5), merged with docker's config.json and asked for from
//     credential helpers as skopeo does;
//   - certificates: containers-certs.d(5), and docker's certs.d;
//   - registries.conf: containers-registries.conf(5), of which insecure, blocked, locations and mirrors count here.
//
// The reading is that of go.podman.io/image, which those programs use.
package containers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"go.podman.io/image/v5/pkg/docker/config"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/pkg/tlsclientconfig"
	"go.podman.io/image/v5/types"
	"k8s.io/utils/lru"
)

// Options say which files are read; the zero value is the user's and the system's.
type Options struct {
	// AuthFile is read for credentials, and no other file: skopeo's --authfile. Empty is
	// REGISTRY_AUTH_FILE of the environment, or else all files that skopeo looks for.
	AuthFile string
	// Credentials are used for every registry, if not nil: skopeo's --creds.
	Credentials *authn.AuthConfig
	// CertDir has the certificates for every registry: skopeo's --cert-dir. Empty is the
	// folder of the registry's host in certs.d.
	CertDir string
	// Hosts have the certificates of single hosts, each with its port if it is written with one,
	// instead of their folders.
	Hosts map[string]Certificates
	// Mirrors count before those of registries.conf, the longest source that matches alone.
	Mirrors []Mirrors
	// Root is put before the system's paths, for tests.
	Root string
	// Home is the user's home directory, for tests; empty is the real one.
	Home string
}

// Certificates are those of one host.
type Certificates struct {
	// CA has authorities beside the system's, as PEM blocks.
	CA []byte
	// Dir is a folder as one in certs.d: *.crt are authorities, *.cert and *.key client certificates.
	Dir string
}

// Mirrors are those of one source, as in an ImageDigestMirrorSet or an ImageTagMirrorSet of config.openshift.io/v1.
type Mirrors struct {
	// Source is a host with its port, or a host and the beginning of a path; or *.example.com for all hosts below one.
	Source string
	// Digests and Tags are asked in order, for references with a digest and for those without one: each is a host, or
	// a host and a path, that stands for Source.
	Digests, Tags []string
	// NeverContactSource asks nobody but these.
	NeverContactSource bool
}

// Files are these files. They are read when they are needed; registries.conf once.
type Files struct {
	options  Options
	system   *types.SystemContext
	patience time.Duration
	helpers  chan struct{} // held by each look for credentials
	mirrors  []*sysregistriesv2.Registry
	found    *lru.Cache // host/repository → *sysregistriesv2.Registry, see find
}

const (
	// helperPatience is how long a credential helper may take.
	helperPatience = 10 * time.Second
	// maxHelpers run at a time, those that never end included.
	maxHelpers = 16
	// maxFound is how many repositories are remembered with what registries.conf says of them.
	maxFound = 1024
)

// New checks that the files exist that were named.
func New(o Options) (*Files, error) {
	flag := "--authfile"
	if o.AuthFile == "" && o.Root == "" {
		flag, o.AuthFile = "REGISTRY_AUTH_FILE", os.Getenv("REGISTRY_AUTH_FILE")
	}
	if o.AuthFile != "" {
		if _, err := os.Stat(o.AuthFile); err != nil {
			return nil, fmt.Errorf("%s: %w", flag, err)
		}
	}
	if o.CertDir != "" {
		if info, err := os.Stat(o.CertDir); err != nil {
			return nil, fmt.Errorf("--cert-dir: %w", err)
		} else if !info.IsDir() {
			return nil, fmt.Errorf("--cert-dir: %s is not a folder", o.CertDir)
		}
	}
	f := &Files{
		options:  o,
		patience: helperPatience,
		system:   &types.SystemContext{AuthFilePath: o.AuthFile, RootForImplicitAbsolutePaths: o.Root},
		helpers:  make(chan struct{}, maxHelpers),
		found:    lru.New(maxFound),
	}
	for _, m := range o.Mirrors {
		r, err := m.registry()
		if err != nil {
			return nil, err
		}
		f.mirrors = append(f.mirrors, r)
	}
	if o.Credentials != nil {
		f.system.DockerAuthConfig = &types.DockerAuthConfig{Username: o.Credentials.Username, Password: o.Credentials.Password}
	}
	return f, nil
}

// ParseCredentials reads USER[:PASSWORD], the form of --creds.
func ParseCredentials(s string) (*authn.AuthConfig, error) {
	user, password, _ := strings.Cut(s, ":")
	if user == "" {
		return nil, errors.New("--creds has no user name: it is USER[:PASSWORD]")
	}
	return &authn.AuthConfig{Username: user, Password: password}, nil
}

// Resolve implements authn.Keychain.
func (f *Files) Resolve(r authn.Resource) (authn.Authenticator, error) {
	return f.ResolveContext(context.Background(), r)
}

// ResolveContext implements authn.ContextKeychain: the credentials of the longest part of the
// resource's name that has some. A helper that does not answer within ten seconds is an error.
func (f *Files) ResolveContext(ctx context.Context, r authn.Resource) (authn.Authenticator, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, f.patience, fmt.Errorf("looking for credentials for %s took longer than %s: does a credential helper hang?", r.RegistryStr(), f.patience))
	defer cancel()
	select {
	case f.helpers <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	type answer struct {
		types.DockerAuthConfig
		err error
	}
	answered := make(chan answer, 1)
	go func() {
		defer func() { <-f.helpers }()
		found, err := config.GetCredentials(f.system, key(r))
		answered <- answer{found, err}
	}()
	select {
	case a := <-answered:
		switch {
		case a.err != nil:
			return nil, a.err
		case a.DockerAuthConfig == types.DockerAuthConfig{}:
			return authn.Anonymous, nil
		}
		return authn.FromConfig(authn.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken}), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// key is the name of a repository as credentials are kept by it.
func key(r authn.Resource) string {
	name := r.String()
	if rest, ok := strings.CutPrefix(name, "index.docker.io"); ok {
		return "docker.io" + rest // go-containerregistry's name for it
	}
	return name
}

// TLS is what is special about a host in canonical form, which has its port if that is not 443: authorities beside the
// system's, and client certificates. It is nil if nothing is.
func (f *Files) TLS(host string) (*tls.Config, error) {
	own := f.options.Hosts[host]
	dir := own.Dir
	if dir == "" && own.CA == nil {
		if dir = f.options.CertDir; dir == "" {
			dir = f.certDir(host)
		}
	}
	if dir == "" && own.CA == nil {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if own.CA != nil {
		pool, err := x509.SystemCertPool()
		if err != nil {
			return nil, err
		}
		if !pool.AppendCertsFromPEM(own.CA) {
			return nil, fmt.Errorf("certificates for %s: there is no certificate in PEM", host)
		}
		c.RootCAs = pool
	}
	if dir != "" {
		if err := tlsclientconfig.SetupCertificates(dir, c); err != nil {
			return nil, fmt.Errorf("certificates for %s: %w", host, err)
		}
	}
	return c, nil
}

// certDir is the first folder of a host that exists, in the order of containers-certs.d(5).
func (f *Files) certDir(host string) string {
	home := f.options.Home
	if home == "" {
		home, _ = os.UserHomeDir() // none: the system's only
	}
	dirs := []string{filepath.Join(f.options.Root, "/etc/containers/certs.d"), filepath.Join(f.options.Root, "/etc/docker/certs.d")}
	if home != "" {
		dirs = append([]string{filepath.Join(home, ".config/containers/certs.d")}, dirs...)
	}
	for _, dir := range dirs {
		dir = filepath.Join(dir, host)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return dir
		}
	}
	return ""
}

// Registry is what registries.conf says of host/repository.
func (f *Files) Registry(name string) (insecure, blocked bool, err error) {
	r, err := f.find(name)
	if err != nil || r == nil {
		return false, false, err
	}
	return r.Insecure, r.Blocked, nil
}

// find returns the entry of registries.conf for host/repository, or nil. Importers ask with each request, so it is remembered.
func (f *Files) find(name string) (*sysregistriesv2.Registry, error) {
	if r, ok := f.found.Get(name); ok {
		return r.(*sysregistriesv2.Registry), nil
	}
	r, err := sysregistriesv2.FindRegistry(f.system, name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("registries.conf: %w", err)
	}
	f.found.Add(name, r)
	return r, nil
}

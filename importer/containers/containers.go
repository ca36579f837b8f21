// Package containers reads the files in which users already have settings of registries for skopeo,
// podman and buildah:
//
//   - credentials: containers-auth.json(5), merged with docker's config.json and asked for from
//     credential helpers as skopeo does;
//   - certificates: containers-certs.d(5), and docker's certs.d;
//   - registries.conf: containers-registries.conf(5), where insecure, blocked, locations and mirrors
//     count here.
//
// go.podman.io/image reads the files, as in those programs.
package containers

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/pkg/tlsclientconfig"
	"go.podman.io/image/v5/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/room"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// Options choose the files; the zero value reads the user's and the system's.
type Options struct {
	// AuthFile is the only file that is read for credentials: skopeo's --authfile. If it is empty,
	// REGISTRY_AUTH_FILE of the environment names the file, or else all files that skopeo looks for
	// are read.
	AuthFile string
	// Credentials are used for every registry, if not nil: skopeo's --creds.
	Credentials *authn.AuthConfig
	// CertDir has the certificates for every registry: skopeo's --cert-dir. If it is empty, each
	// registry has the folder of its host in certs.d.
	CertDir string
	// Hosts have the certificates of single hosts, in place of their folders. A host has its port
	// if it is written with one.
	Hosts map[string]Certificates
	// Mirrors take precedence over registries.conf. Only the longest source that matches counts.
	Mirrors []Mirrors
	// Root is put before the system's paths, for tests.
	Root string
	// Home is the user's home directory, for tests; empty is the real one.
	Home string
}

// Certificates are the certificates of one host.
type Certificates struct {
	// CA has authorities beside the system's, as PEM blocks.
	CA []byte
	// Dir is a folder like those in certs.d: *.crt are authorities, *.cert and *.key client
	// certificates.
	Dir string
}

// Mirrors are the mirrors of one source, as in an ImageDigestMirrorSet or an ImageTagMirrorSet of
// config.openshift.io/v1.
type Mirrors struct {
	// Source is a host with its port, or a host and the beginning of a path; or *.example.com for
	// all hosts below a domain.
	Source string
	// Digests and Tags are tried in order, Digests for references with a digest and Tags for others.
	// Each is a host, or a host and a path, that replaces Source.
	Digests, Tags []string
	// NeverContactSource is true if images are read only from the mirrors.
	NeverContactSource bool
}

// Files are these files. They are read when they are needed; registries.conf once.
type Files struct {
	options Options
	system  *types.SystemContext
	mirrors []*sysregistriesv2.Registry
	found   *lru.Cache // host/repository → entry, see find

	clock   clock.WithDelayedExecution
	running *room.Room // a place is held by each run; one helper has half of them
	mu      sync.Mutex
	calls   map[question]*call // helpers at work
}

// maxFound is how many repositories are remembered with their settings in registries.conf.
const maxFound = 1024

// New checks that the named files exist.
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
		options: o,
		system:  &types.SystemContext{AuthFilePath: o.AuthFile, RootForImplicitAbsolutePaths: o.Root},
		found:   lru.New(maxFound),
		clock:   clock.RealClock{},
		running: room.New(maxHelpers, maxHelpers/2),
		calls:   map[question]*call{},
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

// TLS returns the settings of a host in canonical form: authorities beside the system's, and client
// certificates. It is nil if the host has none. If the host has no folder, a folder under another
// name of the host counts.
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
		if err := trusted.WholePEM(own.CA); err != nil {
			return nil, fmt.Errorf("certificates for %s: %w", host, err)
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

// certDir returns the first folder of a host that exists, in the order of containers-certs.d(5).
func (f *Files) certDir(host string) string {
	home := f.options.Home
	if home == "" {
		home, _ = os.UserHomeDir() // without one, only the system's
	}
	dirs := []string{filepath.Join(f.options.Root, "/etc/containers/certs.d"), filepath.Join(f.options.Root, "/etc/docker/certs.d")}
	if home != "" {
		dirs = append([]string{filepath.Join(home, ".config/containers/certs.d")}, dirs...)
	}
	for _, name := range append([]string{host}, reference.OtherNames(host)...) {
		for _, dir := range dirs {
			dir = filepath.Join(dir, name)
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				return dir
			}
		}
	}
	return ""
}

// Registry returns the settings of host/repository in registries.conf.
func (f *Files) Registry(name string) (insecure, blocked bool, err error) {
	e, err := f.find(name)
	if err != nil || e.Registry == nil {
		return false, false, err
	}
	return e.Insecure, e.Blocked, nil
}

// entry is the entry of registries.conf for host/repository, nil if there is none, and the name by
// which it was found.
type entry struct {
	*sysregistriesv2.Registry
	name string
}

// find returns the entry of registries.conf for host/repository, under that name or another of the
// host's. Importers ask with each request, so it remembers.
func (f *Files) find(name string) (entry, error) {
	if e, ok := f.found.Get(name); ok {
		return e.(entry), nil
	}
	host, _, _ := strings.Cut(name, "/")
	var e entry
	for _, other := range append([]string{host}, reference.OtherNames(host)...) {
		as := other + strings.TrimPrefix(name, host)
		r, err := sysregistriesv2.FindRegistry(f.system, as)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return entry{}, fmt.Errorf("registries.conf: %w", err)
		}
		if r != nil {
			e = entry{r, as}
			break
		}
	}
	f.found.Add(name, e)
	return e, nil
}

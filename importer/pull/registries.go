package pull

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Registry has the settings of a registry or a part of it.
type Registry struct {
	// Prefix is a host with its port, or a host and the beginning of a repository path:
	// "registry.example.com:5000", "quay.io/acme". It matches whole path elements. Only the longest
	// matching prefix counts.
	Prefix string
	// Insecure allows plain HTTP, and TLS whose certificate is not verified.
	Insecure bool
	// TokenHosts are token servers, beside the registry itself, to which credentials for this registry
	// may be sent, at any address. A host has the port of the realm's URL. The token servers of Docker
	// Hub and gitlab.com are built in.
	TokenHosts []string
	// Blocked forbids imports from the registry.
	Blocked bool
	// RequestsPerSecond replaces Limits.HostRate for the host, unless it is zero.
	RequestsPerSecond float64
	// RequestsAtATime replaces Limits.HostConcurrency for the host, unless it is zero.
	RequestsAtATime int
	// Signatures is another repository with the signatures and attestations of these images, as
	// cosign writes them with COSIGN_REPOSITORY; "" if there is none.
	Signatures string
}

// Files are the settings of registries in the machine's files; see package containers.
type Files interface {
	// Registry returns, for host/repository or a host, whether plain HTTP and unverified TLS are
	// allowed, and whether reading is forbidden.
	Registry(name string) (insecure, blocked bool, err error)
	// PullSources returns where to read a reference, in order: its mirrors, then the location to which
	// the files rewrite it, which is mostly the reference itself. A location that is blocked is left
	// out.
	PullSources(ref reference.Reference) ([]Source, error)
	// TLS returns the settings of a host in canonical form, nil if it has none. host has a port only
	// if it was written with one.
	TLS(host string) (*tls.Config, error)
}

type registries struct {
	entries reference.Prefixes[Registry]
	files   Files // used where no entry matches; nil if there are none
	// insecure holds for all registries without an entry.
	insecure bool
}

func newRegistries(in []Registry, files Files, insecure bool) (registries, error) {
	rs, err := newEntries(in)
	if err != nil {
		return registries{}, err
	}
	if files != nil {
		if _, _, err := files.Registry("docker.io"); err != nil { // the files are read once
			return registries{}, err
		}
	}
	return registries{rs, files, insecure}, nil
}

func newEntries(in []Registry) (entries reference.Prefixes[Registry], err error) {
	for i, r := range in {
		prefix, err := reference.ParsePrefix(r.Prefix)
		if err != nil {
			return entries, fmt.Errorf("registries[%d]: %w", i, err)
		}
		if r.RequestsPerSecond < 0 || r.RequestsAtATime < 0 {
			return entries, fmt.Errorf("registries[%d]: %v requests a second and %d at a time must not be negative", i, r.RequestsPerSecond, r.RequestsAtATime)
		}
		if (r.RequestsPerSecond > 0 || r.RequestsAtATime > 0) && prefix.Repository != "" {
			return entries, fmt.Errorf("registries[%d]: limits apply to a whole host: give them to the entry with the prefix %q", i, prefix.Host)
		}
		r.Prefix = prefix.Prefix()
		if r.Signatures != "" {
			signatures, err := reference.ParseRepository(r.Signatures)
			if err != nil {
				return entries, fmt.Errorf("registries[%d]: signatures %q is not a repository, such as registry.example.com/signatures: %w", i, r.Signatures, err)
			}
			r.Signatures = signatures.Name()
		}
		if err := entries.Add(prefix, r); err != nil {
			return entries, fmt.Errorf("registries[%d]: %w", i, err)
		}
	}
	return entries, nil
}

// lookup finds the entry for "host" or "host/repository". Without one it returns a Registry without
// a prefix, from the files or the default.
func (rs registries) lookup(where string) Registry {
	host, repository, _ := strings.Cut(where, "/")
	r, _, ok := rs.entries.Longest(reference.Reference{Host: host, Repository: repository})
	if ok {
		return r
	}
	if rs.files != nil {
		// newRegistries has read the files and would have returned their error
		r.Insecure, r.Blocked, _ = rs.files.Registry(where)
	}
	r.Insecure = r.Insecure || rs.insecure
	return r
}

// canonicalHost is the host of a URL in the form that prefixes have.
func canonicalHost(host string) string {
	if canonical, err := reference.ParseHost(host); err == nil {
		return canonical
	}
	return host
}

// isLoopback reports whether a URL's host, with or without port, is this
// machine. Names other than localhost are not resolved.
func isLoopback(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

package importer

import (
	"crypto/x509"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer/guard"
)

// Options configure an Importer. The zero value is complete: all platforms, the
// caller's docker or podman credentials, layers as the manifest says.
type Options struct {
	// Keychain finds credentials for a registry or repository. Nil reads what
	// docker login and podman login left, and asks credential helpers.
	Keychain authn.Keychain
	// Registries are settings of single registries.
	Registries []Registry
	// Files are the settings of the machine's files, for registries that Registries has no entry for;
	// nil is none. Their TLS settings apply to all registries.
	Files Files
	// Insecure allows plain HTTP and unverified TLS for registries that Registries has no entry for.
	Insecure bool
	// AllowedNetworks are ranges that registries may lead us into with redirects and token servers,
	// although the ranges are not public; see package guard.
	AllowedNetworks guard.Networks
	// RootCAs verify registries' certificates; nil is the system's.
	RootCAs *x509.CertPool
	// Platforms select children of an index, as os/architecture[/variant][:os.version]; empty selects
	// all. Without a variant every variant matches. The beginning of a version is enough:
	// windows/amd64:10.0.20348 is also 10.0.20348.2527. An image that is referenced by itself is
	// imported whatever its platform.
	Platforms []string
	// Layers is LayersFromManifest if empty.
	Layers LayersMode
	// Signatures finds the signatures of each image; nil looks for none.
	Signatures SignatureFinder
	// SignaturesAge is how old a search for signatures may be, when an import begins, to be used
	// instead of another; zero allows none. An Importer for one run may use a day, so that each digest
	// is searched once. [Importer.ForgetSignatures] overrides it.
	SignaturesAge time.Duration
	// Progress, if set, is called with each Event. Calls may be concurrent
	// and should return soon.
	Progress func(Event)
	// UserAgent is sent with every request; empty is "tidewaiter".
	UserAgent string
	// Limits bound what is asked of registries and of this machine.
	Limits Limits
	// Clock is for tests; nil is the real one.
	Clock clock.WithDelayedExecution
}

// LayersMode says what is learned of an image's layers.
type LayersMode string

const (
	// LayersFromManifest takes digest, size and type from the manifest and
	// does not ask the registry for layers.
	LayersFromManifest LayersMode = "manifest"
	// LayersVerify streams every layer and checks its digest and size, and the digest of its
	// uncompressed content against the config. Layers that may not be distributed are kept elsewhere,
	// and are not fetched.
	LayersVerify LayersMode = "verify"
)

// Limits have a default for every field that is zero.
type Limits struct {
	// Concurrency is how many children of one index are read at a time (4).
	Concurrency int
	// HostConcurrency is how many requests one host serves us at a time (8).
	HostConcurrency int
	// HostRate is how many requests a second one host gets, after a burst of HostBurst (two seconds'
	// worth). Zero starts at 200 and adapts, between 10 and 6,400, to what the host can bear; Docker
	// Hub gets 20.
	HostRate  float64
	HostBurst int
	// Attempts is how often a request is tried that fails for a passing reason (3).
	Attempts int
	// MaxWait is the longest a request waits on a registry's Retry-After
	// (20 s). When the registry asks for longer the request fails, and so
	// does every other for that host until the time has come.
	MaxWait time.Duration
	// Stall is how long a registry may send nothing (30 s).
	Stall time.Duration
	// MinRate is the least speed of a body, in bytes per second, averaged over the time spent waiting
	// for it, once that exceeds Stall (1024).
	MinRate int64
	// Request is the longest a manifest, a config, a list or a token may
	// take (2 min); Layer is the same for a layer (1 h).
	Request, Layer time.Duration
	// JobManifests, JobRequests and JobBytes bound what one job asks of registries: manifests read
	// (1,024); requests made, with those for signatures and repeated ones (10,000); and bytes read,
	// without those of layers (512 MiB). A job that needs more ends with reason OverBudget.
	JobManifests, JobRequests, JobBytes int64
	// JobContent is how many bytes the layers of one job may unpack to, beyond 50 times the bytes that
	// were read of them (1 GiB).
	JobContent int64
	// LayerBytes bounds the bytes of the layers that are verified at a time, by all jobs together (256
	// MiB); a larger layer is verified alone. One image has at most Concurrency of them.
	LayerBytes int64
	// JobTime is the longest a job may take (15 min; 12 h where layers are verified).
	JobTime time.Duration
	// Recycle is how long facts about a host or a repository are used: how to greet it, and which
	// credentials (30 min).
	Recycle time.Duration
}

// Bounds that are not for tuning.
const (
	maxHosts        = 256  // hosts remembered
	maxRepositories = 1024 // repositories remembered
	maxChildren     = 1000 // entries of one index
	maxDepth        = 3    // indexes within indexes
)

func (l Limits) withDefaults(layers LayersMode) Limits {
	setDefault(&l.Concurrency, 4)
	setDefault(&l.HostConcurrency, 8)
	setDefault(&l.Attempts, 3)
	setDefault(&l.MaxWait, 20*time.Second)
	setDefault(&l.Stall, 30*time.Second)
	setDefault(&l.MinRate, 1024)
	setDefault(&l.Request, 2*time.Minute)
	setDefault(&l.Layer, time.Hour)
	setDefault(&l.JobManifests, 1024)
	setDefault(&l.JobRequests, 10_000)
	setDefault(&l.JobBytes, 512<<20)
	setDefault(&l.JobContent, 1<<30)
	setDefault(&l.LayerBytes, 256<<20)
	if layers == LayersVerify {
		setDefault(&l.JobTime, 12*time.Hour)
	}
	setDefault(&l.JobTime, 15*time.Minute)
	setDefault(&l.Recycle, 30*time.Minute)
	return l
}

func setDefault[T int | int64 | float64 | time.Duration](field *T, value T) {
	if *field == 0 {
		*field = value
	}
}

func (l Limits) validate() error {
	if l.Concurrency < 0 || l.HostConcurrency < 0 || l.HostRate < 0 || l.HostBurst < 0 || l.Attempts < 0 || l.MaxWait < 0 ||
		l.Stall < 0 || l.MinRate < 0 || l.Request < 0 || l.Layer < 0 || l.Recycle < 0 ||
		l.JobManifests < 0 || l.JobRequests < 0 || l.JobBytes < 0 || l.JobContent < 0 || l.LayerBytes < 0 || l.JobTime < 0 {
		return fmt.Errorf("limits must not be negative: %+v", l)
	}
	return nil
}

var platformPattern = regexp.MustCompile(`^[a-z0-9]+/[a-z0-9_]+(/[a-z0-9.]+)?(:[0-9A-Za-z.]+)?$`)

func (o Options) validate() error {
	for _, p := range o.Platforms {
		if !platformPattern.MatchString(p) {
			if !strings.Contains(p, "/") && isArchitecture(p) {
				return fmt.Errorf("platform %q is an architecture without its operating system; did you mean linux/%s?", p, p)
			}
			return fmt.Errorf("platform %q is not os/architecture or os/architecture/variant, such as linux/arm64", p)
		}
	}
	switch o.Layers {
	case "", LayersFromManifest, LayersVerify:
	default:
		return fmt.Errorf("layers mode %q is neither %q nor %q", o.Layers, LayersFromManifest, LayersVerify)
	}
	return o.Limits.validate()
}

// EventKind is a step of an import.
type EventKind string

const (
	// EventResolved: the digest behind the reference is known.
	EventResolved EventKind = "Resolved"
	// EventFetched: a manifest and what belongs to it has been read.
	EventFetched EventKind = "Fetched"
	// EventVerified: one layer has been streamed and checked.
	EventVerified EventKind = "Verified"
	// EventStored: an Image is stored; see Action.
	EventStored EventKind = "Stored"
	// EventSkipped: a child of an index is not imported; see Detail.
	EventSkipped EventKind = "Skipped"
)

// Event tells of the progress of an import.
type Event struct {
	Kind EventKind
	// Reference is the canonical form of the imported reference.
	Reference string
	// Digest is the manifest's or, in EventVerified, the layer's.
	Digest string
	// Platform is os/architecture[/variant][:os.version]; empty for an index and where it is not known.
	Platform string
	// Action is set in EventStored.
	Action Action
	// Detail says why, in EventSkipped.
	Detail string
}

// isArchitecture tells whether a word is a GOARCH that images are made for.
func isArchitecture(s string) bool {
	switch s {
	case "386", "amd64", "arm", "arm64", "loong64", "mips64le", "ppc64le", "riscv64", "s390x":
		return true
	}
	return false
}

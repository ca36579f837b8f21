package importer

import (
	"crypto/x509"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer/guard"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

// Options configure an Importer. The zero value is complete: all platforms, the
// caller's docker or podman credentials, layers as the manifest says.
type Options struct {
	// Keychain finds credentials for a registry or repository. Nil reads what
	// docker login and podman login left, and asks credential helpers.
	Keychain authn.Keychain
	// Registries are settings of single registries.
	Registries []pull.Registry
	// Files has the settings from the machine's files, for registries without an entry in Registries;
	// nil is none. Its TLS settings apply to all registries.
	Files pull.Files
	// Insecure allows plain HTTP and unverified TLS for registries without an entry in Registries.
	Insecure bool
	// AllowedNetworks are address ranges that are not public, into which redirects and token servers
	// of registries may lead all the same; see package guard.
	AllowedNetworks guard.Networks
	// RootCAs verify registries' certificates; nil is the system's.
	RootCAs *x509.CertPool
	// Platforms select children of an index, as os/architecture[/variant][:os.version]; empty
	// selects all. Without a variant every variant matches. The beginning of a version is enough:
	// windows/amd64:10.0.20348 is also 10.0.20348.2527. An image that is referenced by itself is
	// imported whatever its platform.
	Platforms []string
	// Layers is LayersFromManifest if empty.
	Layers LayersMode
	// Signatures finds the signatures of each image; nil looks for none.
	Signatures SignatureFinder
	// SignaturesAge is how old an earlier search for signatures may be, when an import begins, to be
	// used instead of a new search; zero always searches. An Importer for one run may use a day, so
	// that each digest is searched once. [Importer.ForgetSignatures] overrides it.
	SignaturesAge time.Duration
	// Progress, if set, is called with each Event. Calls may be concurrent
	// and should return soon.
	Progress func(Event)
	// UserAgent is sent with every request; empty is "tidewaiter".
	UserAgent string
	// Limits bound the requests to registries, and the resources of this machine.
	Limits pull.Limits
	// Others are other programs that send requests to the same registries; nil for none.
	Others pull.Others
	// Clock is for tests; nil is the real one.
	Clock clock.WithDelayedExecution
}

// LayersMode selects how much an import learns about an image's layers.
type LayersMode string

const (
	// LayersFromManifest takes digest, size and type from the manifest and
	// does not ask the registry for layers.
	LayersFromManifest LayersMode = "manifest"
	// LayersVerify streams every layer and checks its digest and size, and the digest of its
	// uncompressed content against the config. Nondistributable layers are not in the registry, and
	// are not fetched.
	LayersVerify LayersMode = "verify"
)

// Bounds that are not for tuning.
const (
	maxChildren = 1000 // entries of one index
	maxDepth    = 3    // indexes within indexes
)

// ErrPlatform is in errors about Options.Platforms.
var ErrPlatform = errors.New("platform")

var platformPattern = regexp.MustCompile(`^[A-Za-z0-9]+/[A-Za-z0-9_-]+(/[A-Za-z0-9.]+)?(:[0-9A-Za-z.]+)?$`)

func (o Options) validate() error {
	for _, p := range o.Platforms {
		if !platformPattern.MatchString(p) {
			if !strings.Contains(p, "/") && isArchitecture(p) {
				return fmt.Errorf("%w %q is an architecture without its operating system; did you mean linux/%s?", ErrPlatform, p, p)
			}
			return fmt.Errorf("%w %q is not os/architecture or os/architecture/variant, such as linux/arm64", ErrPlatform, p)
		}
	}
	switch o.Layers {
	case "", LayersFromManifest, LayersVerify:
	default:
		return fmt.Errorf("layers mode %q is neither %q nor %q", o.Layers, LayersFromManifest, LayersVerify)
	}
	return o.Limits.Validate()
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

// Event reports the progress of an import.
type Event struct {
	Kind EventKind
	// Reference is the canonical form of the imported reference.
	Reference string
	// Digest is the manifest's or, in EventVerified, the layer's.
	Digest string
	// Platform is os/architecture[/variant][:os.version]; empty for an index and where it is not
	// known.
	Platform string
	// Action is set in EventStored.
	Action Action
	// Detail is the reason, in EventSkipped.
	Detail string
}

// isArchitecture reports whether s is an architecture for which images are built.
func isArchitecture(s string) bool {
	switch s {
	case "386", "aarch64", "amd64", "arm", "arm64", "loong64", "mips64le", "ppc64le", "riscv64", "s390x", "x86_64":
		return true
	}
	return false
}

package find

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// Options configures a Finder.
type Options struct {
	// RegistriesDirs are folders of registries.d files, see containers-registries.d(5). If two folders
	// have a file of the same name, the first folder's is read. The default are containers/image's
	// folders. To use none, name a folder that does not exist.
	RegistriesDirs []string
	// Storage is the folder with the signatures of images that no registries.d file mentions. The
	// default is containers/image's folder.
	Storage string
	// Lookaside sends requests to lookaside storage, and decides where a redirect may lead. If it is
	// nil, storage behind a URL is not read. It is not used for registries: for these, Find has its
	// own transport.
	Lookaside http.RoundTripper
	// Demands are the policies that apply; nil demands everything of all images.
	Demands Demands
	// Timeout bounds one search; the default is a minute.
	Timeout time.Duration
	// Clock is for tests; nil is the real one.
	Clock clock.PassiveClock
}

// Demands are policies, such as a policy.Set.
type Demands interface {
	// Demands reports whether policies demand signatures, or attestations, of an image, given as a
	// repository with a digest. If so, the tag for them is requested even if the list of tags lacks
	// it, because a proxy's list may be incomplete.
	Demands(image reference.Reference) (signatures, attestations bool)
}

// everything demands signatures and attestations of each image.
type everything struct{}

func (everything) Demands(reference.Reference) (signatures, attestations bool) { return true, true }

// Finder searches registries. It is safe for concurrent use.
type Finder struct {
	lookasides *lookasides
	transport  http.RoundTripper
	demands    Demands
	timeout    time.Duration
	memory     *memory
}

// New reads the registries.d files and returns a Finder.
func New(o Options) (*Finder, error) {
	f := &Finder{transport: o.Lookaside, timeout: o.Timeout, demands: cmp.Or[Demands](o.Demands, everything{})}
	if f.timeout <= 0 {
		f.timeout = time.Minute
	}
	f.memory = newMemory(cmp.Or[clock.PassiveClock](o.Clock, clock.RealClock{}))
	dirs := o.RegistriesDirs
	if len(dirs) == 0 {
		dirs = defaultRegistriesDirs()
	}
	var err error
	f.lookasides, err = loadLookasides(dirs, cmp.Or(o.Storage, defaultStorage()))
	return f, err
}

// Forget drops what is cached about a repository's registry and its tags. Call it after a change
// there was reported.
func (f *Finder) Forget(repository name.Repository) { f.memory.forget(repository) }

// Listed takes all tags of a repository, and the time when the caller began to read the list, so
// that searches need not read it again.
func (f *Finder) Listed(repository name.Repository, tags []string, read time.Time) {
	f.memory.listed(repository, tags, read)
}

// countCandidate counts one more candidate and reports whether it may be read.
func (s *search) countCandidate() bool {
	if s.looked >= MaxLooked {
		if !s.dropped {
			s.dropped = true
			s.cut("more than %d signatures and referrers; the rest was skipped", MaxLooked)
		}
		return false
	}
	s.looked++
	return true
}

func (s *search) add(typ string, content []byte) {
	if len(content) == 0 || len(content) > MaxSignature {
		say := s.notUsable
		if typ == signatures.TypeAttestation {
			say = s.warn
		}
		say("a %s signature of %d bytes was left out; 1 to %d are kept", typ, len(content), MaxSignature)
		return
	}
	sum := sha256.Sum256(content)
	key := typ + hex.EncodeToString(sum[:])
	if s.seen[key] {
		return
	}
	s.seen[key] = true
	if s.bytes += len(content); s.bytes > maxFound {
		s.cut("a signature of %d bytes was left out: together they have more than %d", len(content), maxFound)
		return
	}
	s.found = append(s.found, imagev1.ImageSignature{
		ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(s.digest, content)},
		Type:       typ,
		Content:    content,
	})
}

// holding records that a manifest contains signatures, if there are now more signatures than
// before.
func (s *search) holding(m *manifest, before int) {
	if len(s.found) > before && !slices.Contains(s.manifests, m.digest) {
		s.manifests = append(s.manifests, m.digest)
	}
}

// notUsable warns that something may be a signature but cannot be used. Every user who may push to
// the repository can cause this.
func (s *search) notUsable(format string, args ...any) {
	s.warn(format, args...)
	if s.unusable == "" {
		s.unusable = clip(fmt.Sprintf(format, args...))
	}
}

// cut is notUsable for a search that skips something.
func (s *search) cut(format string, args ...any) {
	s.isCut = true
	s.notUsable(format, args...)
}

// notRead warns that there may be signatures that could not be read from the registry, or from
// whatever answers in its place.
func (s *search) notRead(format string, args ...any) {
	s.warn(format, args...)
	if s.unread == "" {
		s.unread = clip(fmt.Sprintf(format, args...))
	}
}

func (s *search) warn(format string, args ...any) {
	if len(s.warnings) < maxWarnings {
		s.warnings = append(s.warnings, clip(fmt.Sprintf(format, args...)))
	}
}

func (s *search) annotations() map[string]string {
	values := map[string]string{
		signatures.AnnotationAttestations: encode(s.attestations),
		annotation.Documents:              encode(s.documents),
		annotation.Unread:                 s.unread,
		annotation.Unusable:               s.unusable,
		annotation.Manifests:              encode(s.manifests),
		signatures.AnnotationWarnings:     encode(s.warnings),
	}
	if s.isCut {
		values[annotation.Cut] = "true"
	}
	maps.DeleteFunc(values, func(_, value string) bool { return value == "" })
	return values
}

// encode returns values as JSON, "" if there are none.
func encode[T any](values []T) string {
	if len(values) == 0 {
		return ""
	}
	b, _ := json.Marshal(values) // marshalling texts and numbers does not fail
	return string(b)
}

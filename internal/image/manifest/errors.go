package manifest

import (
	"errors"
	"fmt"
)

// Faults in the bytes of a manifest or a config. Errors of this package wrap exactly
// one of these; test with errors.Is. ErrNoManifest is ErrInvalid, too.
var (
	// ErrTooLarge: more bytes than MaxManifestSize or MaxConfigSize.
	ErrTooLarge = errors.New("too large")
	// ErrInvalid: the bytes break a rule of their own format.
	ErrInvalid = errors.New("invalid")
	// ErrNoManifest: the bytes are not a manifest at all, so no program runs them: nothing, a web
	// page, the beginning of a manifest, or an object that names neither config and layers nor
	// manifests.
	ErrNoManifest = fmt.Errorf("%w: not a manifest", ErrInvalid)
	// ErrAmbiguous: two readers could understand the bytes differently.
	ErrAmbiguous = errors.New("ambiguous")
	// ErrUnsupported: a media type or schema version that this package does not know.
	ErrUnsupported = errors.New("unsupported")
	// ErrNotAnImage: a well-formed manifest of something that is not a container image.
	ErrNotAnImage = errors.New("not an image")
	// ErrDigestMismatch: the bytes are not the ones the digest names.
	ErrDigestMismatch = errors.New("digest mismatch")
)

package manifest

import "errors"

// What can be wrong with the bytes of a manifest or a config. Errors of this package wrap exactly
// one of these; test with errors.Is.
var (
	// ErrTooLarge: more bytes than MaxManifestSize or MaxConfigSize.
	ErrTooLarge = errors.New("too large")
	// ErrInvalid: the bytes break a rule of their own format.
	ErrInvalid = errors.New("invalid")
	// ErrAmbiguous: two readers could understand the bytes differently.
	ErrAmbiguous = errors.New("ambiguous")
	// ErrUnsupported: a media type or schema version that this package does not know.
	ErrUnsupported = errors.New("unsupported")
	// ErrNotAnImage: a well-formed manifest of something that is not a container image.
	ErrNotAnImage = errors.New("not an image")
	// ErrDigestMismatch: the bytes are not the ones the digest names.
	ErrDigestMismatch = errors.New("digest mismatch")
)

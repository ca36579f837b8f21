// Package manifest turns the bytes a registry serves into facts about an image.
//
// Start with [Parse] for a manifest of any of the five formats in use (OCI image manifest, OCI
// index, Docker schema 2, Docker manifest list, Docker schema 1) and [ParseConfig] for an image's
// config. [Derive] fills the server-computed fields of an image.openshift.io/v1 Image from the
// manifest and config that the Image carries.
//
// The package is pure: bytes in, values or an error out; no network, no clock, no storage.
// Everything it reads is outside input, so it promises:
//
//   - bounded work: [MaxManifestSize] and [MaxConfigSize] are checked before anything is parsed;
//   - one reading: a manifest that two conforming readers could understand differently (both layers
//     and manifests, a mediaType that contradicts the content type, duplicate or case-variant keys)
//     is refused with [ErrAmbiguous] and never guessed at, see CVE-2021-41190;
//   - a nil result with every error.
//
// It does not check a manifest against the digest it was fetched by: call [Manifest.Verify].
package manifest

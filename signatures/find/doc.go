// Package find collects what a registry holds about who made an image: cosign signatures, sigstore
// bundles, OpenPGP signatures, Notary envelopes, attestations, and links to what else is attached.
// It judges nothing.
//
// Where it looks, for one image digest:
//
//   - referrers of the digest, by the OCI 1.1 API with all its pages, or by the fallback tag where
//     the registry has no such API: sigstore bundles, cosign's oci-1-1 mode, Notary envelopes,
//     attestations;
//   - the tags that cosign derives from the digest: sha256-<hex>.sig (signatures) and .att
//     (attestations);
//   - OpenShift's signature extension, if the registry announces it;
//   - lookaside storage, if a registries.d file names one for the image.
//
// Signatures of an index are not looked up for its platforms, nor the other way round: each digest
// has its own.
//
// Everything is bounded (Max…): sizes are checked before and while reading, and what lies over a
// bound is left out with a warning.
package find

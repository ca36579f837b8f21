// Package find reads from a registry what shows who made an image: cosign signatures, sigstore
// bundles, OpenPGP signatures, Notary envelopes, attestations, and links to other attached
// artifacts. It does not judge any of them.
//
// Where it looks, for one image digest:
//
//   - referrers of the digest, by all pages of the OCI 1.1 API, or by the fallback tag if the
//     registry has no such API: sigstore bundles, cosign's oci-1-1 mode, Notary envelopes,
//     attestations;
//   - the tags that cosign derives from the digest: sha256-<hex>.sig (signatures) and .att
//     (attestations);
//   - OpenShift's signature extension, if the registry announces it;
//   - lookaside storage, if a registries.d file names one for the image.
//
// The search for a platform does not include signatures of its index, nor the reverse: each digest
// has its own.
//
// Everything is bounded (Max…): sizes are checked before and while reading, and whatever exceeds a
// bound is left out with a warning.
package find

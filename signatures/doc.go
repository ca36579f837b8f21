// Package signatures decides who signed an image and whether that meets the policies.
//
// A verdict is a pure function of a signature's bytes, the image, the policies and a time. Verify
// judges one signature, VerifyImage all signatures of an Image object. Neither opens a connection
// or reads a clock. The bytes stored in an Image are self-contained, so verdicts can be computed
// again whenever policies change or time passes.
//
//	set, err := policy.Load("policies/")
//	verdict := signatures.Verify(signature, signatures.Image{Digest: d, Reference: ref}, set, now)
//	changed, covered := signatures.VerifyImage(image, set, now, nil)
//
// Other packages: signatures/find reads signatures from a registry, signatures/policy reads
// policies, signatures/internal/sigstore, gpg and notary do the cryptography and return
// signatures/evidence, internal/payload parses the signed bytes.
//
// docs/reference/signatures.md explains what a verdict means, and what it does not mean.
package signatures

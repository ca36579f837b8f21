// Package signatures says who signed an image and whether that is enough.
//
// A verdict is a pure function of a signature's bytes, the image, the policies and a clock: Verify
// judges one signature, VerifyImage all that an Image object carries, and neither opens a
// connection or asks the time. The bytes stored in an Image are self-contained, so verdicts can be
// computed again whenever policies change or time passes.
//
//	set, err := policy.Load("policies/")
//	verdict := signatures.Verify(signature, signatures.Image{Digest: d, Reference: ref}, set, now)
//	changed, covered := signatures.VerifyImage(image, set, now)
//
// Around it: signatures/find collects signatures from a registry, signatures/policy reads trust
// policies, signatures/internal/sigstore and signatures/internal/gpg do the cryptography and return
// signatures/evidence, signatures/payload reads what was signed.
//
// What a verdict means, and what it does not, is in docs/reference/signatures.md.
package signatures

// Package sigstore verifies cosign signatures and sigstore bundles: with a public key
// (KeyVerifier), with certificates of Fulcio or of a whole sigstore deployment
// (CertificateVerifier), or with a private CA (PKIVerifier). It is the only package that knows
// sigstore-go.
//
// FromBlob and FromBundle parse. A Verifier then says whether its root of trust vouches for the
// parsed Signature. The caller judges whether the digest and the reference inside are the right
// ones, and only after Verify succeeded. They are in Signature.SimpleSigning, Signature.Statement
// or Signature.SignedDigest.
//
// Nothing here opens a connection or reads the clock.
package sigstore

// Package sigstore verifies cosign signatures and sigstore bundles: with a public key
// (KeyVerifier), with certificates of Fulcio or of a whole sigstore deployment
// (CertificateVerifier), or with a private CA (PKIVerifier). It is the only package that knows
// sigstore-go.
//
// FromBlob and FromBundle parse a Signature. A Verifier then decides whether its root of trust
// vouches for it. Only after Verify has succeeded, the caller judges the digest and the reference
// in Signature.SimpleSigning, Signature.Statement or Signature.SignedDigest.
//
// Nothing here opens a connection or reads the clock.
package sigstore

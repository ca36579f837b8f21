// Package payload reads what an image signature says: the bytes that were signed, and the envelope
// a signature travels in. It believes nothing; it only makes sure that two readers of the same
// bytes cannot understand them differently.
//
// Three formats:
//
//   - simple signing (ParseSimpleSigning): the JSON document that `cosign sign` and `gpg --sign`
//     (as containers/image drives it) put under a signature: digest, reference, optional claims.
//   - in-toto statements (ParseStatement): what a sigstore bundle's DSSE envelope carries.
//   - the sigstore blob (ParseBlob, Blob.Marshal): one cosign signature with its payload and
//     annotations as a single self-contained string of bytes, the format containers/image keeps in
//     lookaside storage.
//
// All JSON is read by Object, which refuses duplicate keys, keys that differ from an expected one
// only in case, and trailing data: encoding/json lets the last of two keys win and matches without
// regard to case, so a document could show a harmless digest to one reader and another digest to
// the verifier.
package payload

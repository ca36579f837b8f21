// Package gzipparts joins parts that were compressed separately into one gzip stream. So a part
// that many responses have in common is compressed once.
//
// A gzip member (RFC 1952) is a header, a deflate stream (RFC 1951) and a trailer with the CRC-32
// and the length of the text. A deflate stream can be cut after an empty stored block, which ends
// at a byte (zlib's "sync flush"). Blocks that refer to nothing before them can follow any others.
// A part is a run of such blocks. A Writer concatenates parts and computes the trailer from their
// checksums alone. Several gzip members in a row would be simpler and are valid gzip, too, but not
// every HTTP client continues after the first.
package gzipparts

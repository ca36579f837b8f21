// Package gzipparts puts one gzip stream together from parts that were compressed
// before, each on its own. So a part that many responses have in common is compressed
// once.
//
// A gzip member (RFC 1952) is a header, a deflate stream (RFC 1951) and a trailer with
// the CRC-32 and the length of the text. Deflate's blocks can be cut at a byte where an
// empty stored block ends (zlib's "sync flush"). Blocks that refer to nothing before
// them can follow any others. So a part is such a run of blocks. A Writer concatenates
// parts and computes the trailer from their checksums alone. Several members one after
// another would be simpler and are gzip, too, but not every HTTP client reads on after
// the first.
package gzipparts

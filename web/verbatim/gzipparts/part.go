package gzipparts

import (
	"bytes"
	"hash/crc32"

	"github.com/klauspost/compress/flate"
)

// Sum is what the end of a stream needs to know of a text in it. That of no text
// is the zero Sum.
type Sum struct {
	size, crc uint32 // modulo 2^32, and CRC-32 (IEEE)
	// shift is what the CRC-32 of what stands before the text is multiplied by.
	shift uint32
}

// Append compresses text, of less than 4 GiB, about as well as gzip -1, and appends
// that to buf: deflate blocks that can stand anywhere in a stream, as they end at a
// byte, are none of them the last, and refer to nothing before them.
func Append(buf, text []byte) ([]byte, Sum) {
	b := bytes.NewBuffer(buf)
	// Writing to memory does not fail, and there is no other error.
	_ = flate.StatelessDeflate(b, text, false, nil)
	size := uint32(len(text))
	return b.Bytes(), Sum{size: size, crc: crc32.ChecksumIEEE(text), shift: shiftOf(size)}
}

// Then is the Sum of s's text followed by next's.
func (s Sum) Then(next Sum) Sum {
	switch {
	case s.shift == 0:
		return next
	case next.shift == 0:
		return s
	}
	return Sum{size: s.size + next.size, crc: times(next.shift, s.crc) ^ next.crc, shift: times(s.shift, next.shift)}
}

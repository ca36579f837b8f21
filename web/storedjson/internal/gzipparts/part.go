package gzipparts

import (
	"bytes"
	"hash/crc32"

	"github.com/klauspost/compress/flate"
)

// Sum has the data about a text that the trailer of a stream needs. The zero Sum belongs to the
// empty text.
type Sum struct {
	size, crc uint32 // modulo 2^32, and CRC-32 (IEEE)
	// shift is the factor for the CRC-32 of the texts before this one.
	shift uint32
}

// Append compresses text, of less than 4 GiB, about as well as gzip -1, and appends the result to
// buf. The result is deflate blocks that can be anywhere in a stream: they end at a byte, none is
// marked as the last, and they refer to nothing before them.
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

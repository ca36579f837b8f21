package gzipparts

import (
	"bytes"
	"hash/crc32"

	"github.com/klauspost/compress/flate"
)

// Part is a compressed text that can stand anywhere in a stream.
type Part struct {
	// Deflated are deflate blocks that end at a byte, none of them the last one of
	// a stream. They refer to nothing before them.
	Deflated []byte
	// Size is the length of the text in bytes, CRC its CRC-32 (IEEE).
	Size, CRC uint32
	// shift is what the CRC-32 of what stands before the part is multiplied by.
	shift uint32
}

// New compresses text, of less than 4 GiB, about as well as gzip -1.
func New(text []byte) Part {
	var b bytes.Buffer
	b.Grow(len(text)/3 + 64)
	// Writing to memory does not fail, and there is no other error.
	_ = flate.StatelessDeflate(&b, text, false, nil)
	return Part{Deflated: b.Bytes(), Size: uint32(len(text)), CRC: crc32.ChecksumIEEE(text), shift: shiftOf(uint32(len(text)))}
}

package gzipparts

import "hash/crc32"

// A CRC-32 is the remainder of the text, taken as a polynomial over GF(2), by a polynomial of
// degree 32. The CRC-32 of two texts in a row is therefore
//
//	crc(a b) = crc(a) * x^(8*len(b)) + crc(b)
//
// (the inversions at both ends cancel each other; the idea is from zlib's crc32_combine). As
// everywhere with this CRC, the highest bit is the factor of x^0.

const one = 1 << 31 // the polynomial 1

// times is a * b modulo the polynomial.
func times(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			product ^= b
		}
		// b * x
		carry := b & 1
		b >>= 1
		if carry != 0 {
			b ^= crc32.IEEE
		}
	}
	return product
}

// shifts[k] is x^(8 * 2^k).
var shifts = func() (s [32]uint32) {
	s[0] = one >> 8
	for k := 1; k < len(s); k++ {
		s[k] = times(s[k-1], s[k-1])
	}
	return s
}()

// shiftOf is x^(8*size).
func shiftOf(size uint32) uint32 {
	shift := uint32(one)
	for k := 0; size != 0; k, size = k+1, size>>1 {
		if size&1 != 0 {
			shift = times(shifts[k], shift)
		}
	}
	return shift
}

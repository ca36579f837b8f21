package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/s2"
)

// A value is stored unchanged, such as JSON, or after a header with its form and its expiry in Unix
// milliseconds, 0 for never. (etcd's leases are not used, because they delete several keys at one
// revision.) A value whose first byte looks like a header is always stored with one.
const (
	asIs = 1 // the value follows unchanged
	// the value follows as a block of S2, which takes a fifth of zstd's time and 1.4 times its bytes
	zipped      = 2
	forms       = 8 // a byte up to this begins a header; unknown forms belong to later releases
	headerBytes = 9
	// minZipped is the smallest value that is compressed, in bytes: for smaller values, etcd's own
	// overhead is larger.
	minZipped = 1 << 10
)

// pack returns the stored form of a value. With zip it compresses the value if that makes it
// smaller.
func pack(value []byte, expires int64, zip bool) []byte {
	if zip && len(value) >= minZipped {
		if block := s2.Encode(nil, value); headerBytes+len(block) < len(value) {
			return append(header(zipped, expires), block...)
		}
	}
	if expires == 0 && !hasHeader(value) {
		return value
	}
	return append(header(asIs, expires), value...)
}

func header(form byte, expires int64) []byte {
	return binary.BigEndian.AppendUint64([]byte{form}, uint64(expires))
}

// hasHeader reports whether a stored value begins with a header.
func hasHeader(stored []byte) bool { return len(stored) > 0 && stored[0] <= forms && stored[0] > 0 }

// unpack is the inverse of pack.
func unpack(stored []byte) (value []byte, expires int64, err error) {
	if !hasHeader(stored) {
		return stored, 0, nil
	}
	if stored[0] > zipped {
		return nil, 0, fmt.Errorf("a later release has written the value (form %d): upgrade this server", stored[0])
	}
	if len(stored) < headerBytes {
		return nil, 0, errors.New("the value has a header that is too short")
	}
	expires = int64(binary.BigEndian.Uint64(stored[1:]))
	value = stored[headerBytes:]
	if stored[0] == zipped {
		var size int
		if size, err = s2.DecodedLen(value); err == nil && size > maxMessage {
			err = fmt.Errorf("it would have %d bytes", size)
		}
		if err == nil {
			value, err = s2.Decode(nil, value)
		}
		if err != nil {
			return nil, 0, fmt.Errorf("the value cannot be decompressed: %w", err)
		}
	} else if expires == 0 && !hasHeader(value) {
		err = errors.New("the value has a header that no server of ours writes")
	}
	if expires < 0 {
		err = errors.New("the value expires before 1970")
	}
	if err != nil {
		return nil, 0, err
	}
	return value, expires, nil
}

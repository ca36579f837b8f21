package etcd

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/s2"
)

// A value is stored as it is, such as JSON, or after a header: its form, and when it expires in
// Unix milliseconds, 0 for never. etcd's leases would end several keys at one revision. A value
// that begins like a header has one.
const (
	asIs = 1 // the value follows as it is
	// the value follows as a block of S2, which costs a fifth of the time of zstd and 1.4 times its
	// bytes
	zipped      = 2
	forms       = 8 // up to here a byte begins a header; other forms are those of later releases
	headerBytes = 9
	// minZipped is how many bytes a value has at least that is compressed: of a smaller one etcd's
	// own part is larger.
	minZipped = 1 << 10
)

// pack returns what is stored for a value. With zip it is compressed if that makes it smaller.
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

// hasHeader also counts what is empty in etcd, which has no form.
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

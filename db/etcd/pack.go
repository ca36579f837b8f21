package etcd

import (
	"encoding/binary"
	"errors"
)

// A value that expires has a header: headed, and the time in Unix milliseconds. So has a value that begins like one. All
// others, such as JSON, are stored as they are. etcd's leases would end several keys at one revision.
const (
	headed      = 1
	headerBytes = 9
)

func pack(value []byte, expires int64) []byte {
	if expires == 0 && (len(value) == 0 || value[0] != headed) {
		return value
	}
	return append(binary.BigEndian.AppendUint64([]byte{headed}, uint64(expires)), value...)
}

// unpack is the inverse of pack.
func unpack(stored []byte) (value []byte, expires int64, err error) {
	if len(stored) == 0 || stored[0] != headed {
		return stored, 0, nil
	}
	if len(stored) < headerBytes {
		return nil, 0, errors.New("the value has a header that is too short")
	}
	expires = int64(binary.BigEndian.Uint64(stored[1:]))
	value = stored[headerBytes:]
	if expires < 0 || expires == 0 && (len(value) == 0 || value[0] != headed) {
		return nil, 0, errors.New("the value has a header that no server of ours writes")
	}
	return value, expires, nil
}

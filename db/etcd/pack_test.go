package etcd

import (
	"bytes"
	"testing"
)

// FuzzUnpack: what unpack takes is what pack makes of its answer, and pack's values come back.
func FuzzUnpack(f *testing.F) {
	for _, seed := range [][]byte{nil, []byte(`{"kind":"Image"}`), {1}, {1, 0, 0, 0, 0, 0, 0, 0, 7, 'v'}, pack([]byte{1, 2}, 0), pack(nil, 1<<40), {1, 255, 0, 0, 0, 0, 0, 0, 0}} {
		f.Add(seed, int64(len(seed)))
	}
	f.Fuzz(func(t *testing.T, stored []byte, expires int64) {
		if value, at, err := unpack(stored); err == nil && !bytes.Equal(pack(value, at), stored) {
			t.Errorf("%q is read as %q until %d, which is written as %q", stored, value, at, pack(value, at))
		}
		if expires < 0 {
			return
		}
		if value, at, err := unpack(pack(stored, expires)); err != nil || !bytes.Equal(value, stored) || at != expires {
			t.Errorf("%q until %d is read back as %q until %d, %v", stored, expires, value, at, err)
		}
	})
}

package db_test

import (
	"bytes"
	"testing"

	"github.com/tidewaiter/tidewaiter/db"
)

// FuzzUnpackIndexed: if bytes unpack, packing the result and unpacking it again gives the same
// entries.
func FuzzUnpackIndexed(f *testing.F) {
	for _, seed := range [][]byte{nil, {1, 0}, {1, 3, 'a', 'b', 'c'}, {0x80, 1, 1, 'x', 2, 0}, {1}, {1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1}} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		packed, err := db.UnpackIndexed(b)
		if err != nil {
			return
		}
		if len(packed) > len(b) {
			t.Errorf("%x packs to %x", b, packed)
		}
		again, err := db.UnpackIndexed(packed)
		if err != nil || !bytes.Equal(again, packed) {
			t.Errorf("%x packs to %x, that to %x, %v", b, packed, again, err)
		}
	})
}

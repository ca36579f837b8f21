package etcd

import (
	"bytes"
	"strings"
	"testing"
)

// FuzzUnpack: unpack returns the values that pack got, compressed or not. An uncompressed value has
// only one stored form, and the size of an unpacked value is bounded.
func FuzzUnpack(f *testing.F) {
	large := []byte(strings.Repeat(`{"kind":"Image"}`, minZipped))
	for _, seed := range [][]byte{nil, []byte(`{"kind":"Image"}`), {1}, {1, 0, 0, 0, 0, 0, 0, 0, 7, 'v'}, pack([]byte{1, 2}, 0, false), pack(nil, 1<<40, false), {1, 255, 0, 0, 0, 0, 0, 0, 0},
		large, pack(large, 0, true), pack(large, 7, true), {2, 0, 0, 0, 0, 0, 0, 0, 7, 'v'}, {forms}} {
		f.Add(seed, int64(len(seed)))
	}
	f.Fuzz(func(t *testing.T, stored []byte, expires int64) {
		switch value, at, err := unpack(stored); {
		case err != nil:
		case len(value) > maxMessage:
			t.Errorf("%d bytes are read as %d", len(stored), len(value))
		case len(stored) > 0 && stored[0] == zipped: // compressors differ
		case !bytes.Equal(pack(value, at, false), stored):
			t.Errorf("%q is read as %q until %d, which is written as %q", stored, value, at, pack(value, at, false))
		}
		if expires < 0 {
			return
		}
		for _, zip := range []bool{false, true} {
			if value, at, err := unpack(pack(stored, expires, zip)); err != nil || !bytes.Equal(value, stored) || at != expires {
				t.Errorf("%q until %d is read back as %q until %d, %v", stored, expires, value, at, err)
			}
		}
	})
}

// TestPackCompresses: pack compresses only large values that become smaller. unpack refuses the
// form of a later release.
func TestPackCompresses(t *testing.T) {
	for text, want := range map[string]bool{
		`{"kind":"Lease"}`: false,
		strings.Repeat(`{"kind":"Image"}`, 1+minZipped/16): true,
	} {
		for _, zip := range []bool{false, true} {
			if stored := pack([]byte(text), 0, zip); len(stored) < len(text)/2 != (want && zip) {
				t.Errorf("%d bytes are stored as %d, with compression %v", len(text), len(stored), zip)
			}
		}
	}
	if value, _, err := unpack([]byte{zipped + 1, 'v'}); err == nil || !strings.Contains(err.Error(), "later release") {
		t.Errorf("the value of a later release is read as %q, %v", value, err)
	}
}

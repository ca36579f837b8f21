package gzipparts

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os/exec"
	"testing"
)

// unzip decompresses b, which must be exactly one member.
func unzip(b []byte) ([]byte, error) {
	r := bytes.NewReader(b)
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	text, err := io.ReadAll(z)
	if err == nil && r.Len() > 0 {
		err = fmt.Errorf("%d bytes follow the stream", r.Len())
	}
	return text, err
}

func write(t testing.TB, texts ...[]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := NewWriter(&b)
	for _, text := range texts {
		if err := w.Write(Append(nil, text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// FuzzWriter: with any parts, the stream is one gzip member with their texts one after another.
func FuzzWriter(f *testing.F) {
	f.Add([]byte(""), 1, 0)
	f.Add([]byte("a"), 1, 1)
	f.Add([]byte(`{"kind":"Image","metadata":{"name":"sha256:0"}},`), 7, 40000)
	f.Add(bytes.Repeat([]byte("layer"), 1000), 1000, 3)
	f.Fuzz(func(t *testing.T, text []byte, cut, repeat int) {
		cut, repeat = max(cut, 1), min(max(repeat, 0), 1<<16/(len(text)+1))
		text = bytes.Repeat(text, repeat+1)
		var texts [][]byte
		for rest := text; len(rest) > 0 && len(texts) < 100; {
			n := min(cut, len(rest))
			if len(texts) == 99 {
				n = len(rest)
			}
			texts, rest = append(texts, rest[:n]), rest[n:]
		}
		if got, err := unzip(write(t, texts...)); err != nil || !bytes.Equal(got, text) {
			t.Fatalf("%d bytes became %d, or others: %v", len(text), len(got), err)
		}
	})
}

func TestChecksumOfParts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		a, b := make([]byte, r.IntN(300)), make([]byte, r.IntN(1<<r.IntN(18)))
		for _, s := range [][]byte{a, b} {
			for i := range s {
				s[i] = byte(r.Uint32())
			}
		}
		got := times(shiftOf(uint32(len(b))), crc32.ChecksumIEEE(a)) ^ crc32.ChecksumIEEE(b)
		if want := crc32.ChecksumIEEE(append(a[:len(a):len(a)], b...)); got != want {
			t.Fatalf("%d and %d bytes: %08x, want %08x", len(a), len(b), got, want)
		}
	}
}

// TestGzipReadsIt: another implementation can read the stream, and finds nothing after the first
// member.
func TestGzipReadsIt(t *testing.T) {
	path, err := exec.LookPath("gzip")
	if err != nil {
		t.Skip("no gzip on this machine: FuzzWriter uses Go's")
	}
	text := bytes.Repeat([]byte(`{"a":"0123456789"},`), 20000)
	cmd := exec.Command(path, "-dc")
	cmd.Stdin = bytes.NewReader(write(t, text[:100], text[100:50000], nil, text[50000:]))
	got, err := cmd.Output()
	if err != nil || !bytes.Equal(got, text) {
		t.Errorf("gzip -dc: %d of %d bytes, %v", len(got), len(text), err)
	}
}

type failing struct{ after int }

var errFull = errors.New("full")

func (f *failing) Write(p []byte) (int, error) {
	if f.after -= len(p); f.after < 0 {
		return 0, errFull
	}
	return len(p), nil
}

func TestWriterKeepsItsError(t *testing.T) {
	incompressible := make([]byte, 100<<10)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range incompressible {
		incompressible[i] = byte(r.Uint32())
	}
	p, sum := Append(nil, incompressible)
	w := NewWriter(&failing{after: 150 << 10})
	for i, want := range []error{nil, errFull, errFull} {
		if err := w.Write(p, sum); !errors.Is(err, want) {
			t.Errorf("write %d: %v, want %v", i, err, want)
		}
	}
	if err := w.Close(); !errors.Is(err, errFull) {
		t.Errorf("close: %v", err)
	}
	w = NewWriter(io.Discard)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := w.Write(p, sum); err == nil {
		t.Error("a part was written after the end")
	}
}

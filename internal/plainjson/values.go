package plainjson

import (
	"encoding/base64"
	"time"
)

// These values are read as by encoding/json: null is nil or zero, as if the value were absent, and
// an empty list or object is not nil.

// Text reads a string or null.
func (r *Reader) Text() string {
	if r.Null() {
		return ""
	}
	return r.String()
}

// Number reads a whole number or null.
func (r *Reader) Number() int64 {
	if r.Null() {
		return 0
	}
	return r.Int()
}

// Flag reads true, false or null.
func (r *Reader) Flag() bool { return !r.Null() && r.Bool() }

// Time reads a time as metav1.Time does, in the form of RFC 3339 and to the local zone, or null.
func (r *Reader) Time() (t time.Time) {
	if r.Null() {
		return t
	}
	parsed, err := time.Parse(time.RFC3339, r.String())
	if err != nil {
		r.Fail()
		return t
	}
	return parsed.Local()
}

// Base64 reads bytes, in a string of base64, or null.
func (r *Reader) Base64() []byte {
	if r.Null() {
		return nil
	}
	s, escaped := r.text()
	if escaped {
		s = []byte(unquote(s, true))
	}
	b := make([]byte, base64.StdEncoding.DecodedLen(len(s)))
	n, err := base64.StdEncoding.Decode(b, s)
	if err != nil || r.failed {
		r.Fail()
		return nil
	}
	return b[:n]
}

// Texts reads a list of strings or null.
func (r *Reader) Texts() []string { return List(r, (*Reader).Text) }

// List reads a list or null, each item with read.
func List[T any](r *Reader, read func(*Reader) T) []T {
	if r.Null() {
		return nil
	}
	list := []T{}
	for more := r.Open('['); more; more = r.More(']') {
		list = append(list, read(r))
	}
	return list
}

// Map reads an object or null, each value with read. A key that comes twice is not plain.
func Map[T any](r *Reader, read func(*Reader) T) map[string]T {
	if r.Null() {
		return nil
	}
	m := map[string]T{}
	n := 0
	for more := r.Open('{'); more; more = r.More('}') {
		key := r.Key()
		m[key] = read(r)
		n++
	}
	if len(m) != n {
		r.Fail()
	}
	return m
}

// Pointer reads a value with read; null is nil.
func Pointer[T any](r *Reader, read func(*Reader) T) *T {
	if r.Null() {
		return nil
	}
	v := read(r)
	return &v
}

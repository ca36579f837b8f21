// Package plainjson reads JSON that is plain: every reader of JSON understands it in the same way.
//
// Most documents are plain, and to read them so costs a fraction of encoding/json, which is ready
// for anything. A document that is not plain may still be good JSON: a caller needs another reader
// for it, which then also says what is wrong with it.
package plainjson

import (
	"bytes"
	"iter"
	"math"
	"strings"
	"unicode/utf8"
)

// maxDepth bounds the nesting of what is skipped, far below what other readers allow.
const maxDepth = 100

// maxDigits is how many digits the greatest int64 has.
const maxDigits = 19

// Reader reads one document from front to back. It stops at the first thing that is not plain, or
// not what was asked for: after that its methods return zero values, and Done is false.
//
// Not plain are: bytes that are not UTF-8, escapes of surrogates, keys with escapes, numbers with
// an exponent or more digits than an int64 has, and deep nesting. null is a value of its own, which
// only Null, Skip and Raw walk over.
type Reader struct {
	data   []byte
	pos    int
	failed bool
}

// New returns a Reader of a document.
func New(document []byte) *Reader { return &Reader{data: document} }

// Done reports whether the document was read to its end, and all of it was plain.
func (r *Reader) Done() bool {
	r.next()
	return !r.failed && r.pos == len(r.data)
}

// Failed reports whether something was not plain.
func (r *Reader) Failed() bool { return r.failed }

// Fail ends reading: the caller has a reason why the document is not plain.
func (r *Reader) Fail() {
	r.failed = true
	r.pos = len(r.data)
}

// Open walks over a bracket, { or [, and reports whether anything is between it and its closing
// bracket. If not, it walks over that, too.
func (r *Reader) Open(bracket byte) (more bool) {
	if r.next() != bracket {
		r.Fail()
		return false
	}
	r.pos++
	if r.next() == bracket+2 { // as } and ] are, in ASCII
		r.pos++
		return false
	}
	return !r.failed
}

// More walks over the comma before the next item of an object or list, or over its closing bracket.
func (r *Reader) More(closing byte) bool {
	switch r.next() {
	case ',':
		r.pos++
		return true
	case closing:
		r.pos++
		return false
	}
	r.Fail()
	return false
}

// Key walks over a key of an object and the colon behind it.
func (r *Reader) Key() string { return string(r.key()) }

func (r *Reader) key() []byte {
	key, escaped := r.text()
	if escaped || r.next() != ':' {
		r.Fail()
		return nil
	}
	r.pos++
	return key
}

// Fields are the known keys of an object, at most 64.
type Fields []string

// Of walks over an object and yields each of its keys; the loop must walk over the value. A known
// key that comes twice or in another case is not plain: readers differ over it. Nor is an object
// that the loop leaves before its end.
func (f Fields) Of(r *Reader) iter.Seq[string] {
	return func(yield func(string) bool) {
		var seen uint64
		for more := r.Open('{'); more; more = r.More('}') {
			if !yield(f.key(r, &seen)) {
				r.Fail()
				return
			}
		}
	}
}

// key walks over a key; seen remembers the known ones.
func (f Fields) key(r *Reader, seen *uint64) string {
	key := r.key()
	for i, known := range f {
		if string(key) == known {
			if *seen&(1<<i) != 0 {
				r.Fail()
			}
			*seen |= 1 << i
			return known
		}
	}
	unknown := string(key)
	for _, known := range f {
		if strings.EqualFold(unknown, known) {
			r.Fail()
		}
	}
	return unknown
}

// Null walks over null, if that is what comes next.
func (r *Reader) Null() bool {
	return r.next() == 'n' && r.word("null")
}

// word walks over a word, if it comes next.
func (r *Reader) word(w string) bool {
	if rest := r.data[r.pos:]; len(rest) < len(w) || string(rest[:len(w)]) != w {
		return false
	}
	r.pos += len(w)
	return true
}

// String walks over a string and returns what it says.
func (r *Reader) String() string {
	return unquote(r.text())
}

// Bool walks over true or false.
func (r *Reader) Bool() bool {
	r.next()
	yes := r.word("true")
	if !yes && !r.word("false") {
		r.Fail()
	}
	return yes
}

// Int walks over a whole number.
func (r *Reader) Int() int64 {
	r.next()
	start := r.pos
	if !r.number() {
		r.Fail()
		return 0
	}
	digits, negative := bytes.CutPrefix(r.data[start:r.pos], []byte("-"))
	var n uint64 // maxDigits fit
	for _, c := range digits {
		if c < '0' || c > '9' || n > math.MaxInt64 {
			r.Fail()
			return 0
		}
		n = n*10 + uint64(c-'0')
	}
	if n > math.MaxInt64 {
		r.Fail() // the least int64 too
		return 0
	}
	if negative {
		return -int64(n)
	}
	return int64(n)
}

// Raw walks over a value of any kind and returns it as it stands. It is part of the document.
func (r *Reader) Raw() []byte {
	r.next()
	start := r.pos
	r.skip(0)
	if r.failed {
		return nil
	}
	return r.data[start:r.pos]
}

// Skip walks over a value of any kind.
func (r *Reader) Skip() { r.skip(0) }

func (r *Reader) skip(depth int) {
	if depth > maxDepth {
		r.Fail()
		return
	}
	switch c := r.next(); {
	case c == '{':
		for more := r.Open('{'); more; more = r.More('}') {
			r.text()
			if r.next() != ':' {
				r.Fail()
				return
			}
			r.pos++
			r.skip(depth + 1)
		}
	case c == '[':
		for more := r.Open('['); more; more = r.More(']') {
			r.skip(depth + 1)
		}
	case c == '"':
		r.text()
	case c == 't' || c == 'f':
		r.Bool()
	case c == 'n':
		if !r.Null() {
			r.Fail()
		}
	default:
		if !r.number() {
			r.Fail()
		}
	}
}

// number walks over a number; it returns false if there is none, or one that may be too great.
func (r *Reader) number() bool {
	if r.at('-') {
		r.pos++
	}
	whole := r.pos
	if r.at('0') {
		r.pos++
	} else if !r.digits() || r.pos-whole > maxDigits {
		return false
	}
	if r.at('.') {
		r.pos++
		if !r.digits() {
			return false
		}
	}
	return !r.at('e') && !r.at('E')
}

func (r *Reader) at(c byte) bool { return r.pos < len(r.data) && r.data[r.pos] == c }

// digits walks over digits; it returns false if there are none.
func (r *Reader) digits() bool {
	start := r.pos
	for r.pos < len(r.data) && '0' <= r.data[r.pos] && r.data[r.pos] <= '9' {
		r.pos++
	}
	return r.pos > start
}

// next walks over white space and returns the byte behind it; 0 at the end.
func (r *Reader) next() byte {
	for r.pos < len(r.data) {
		switch c := r.data[r.pos]; c {
		case ' ', '\t', '\r', '\n':
			r.pos++
		default:
			return c
		}
	}
	return 0
}

// ordinary are the bytes of a string that stand for themselves and are ASCII.
var ordinary = func() (is [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		is[c] = c != '"' && c != '\\'
	}
	return is
}()

// text walks over a string and returns what is between its quotes, as it stands, and whether that
// has escapes.
func (r *Reader) text() (raw []byte, escaped bool) {
	if r.next() != '"' {
		r.Fail()
		return nil, false
	}
	data, start, ascii := r.data, r.pos+1, true
	for i := start; i < len(data); {
		switch c := data[i]; {
		case ordinary[c]:
			i++
		case c == '"':
			raw = data[start:i]
			if !ascii && !utf8.Valid(raw) {
				r.Fail()
				return nil, false
			}
			r.pos = i + 1
			return raw, escaped
		case c == '\\':
			_, n := unescape(data[i:])
			if n == 0 {
				r.Fail()
				return nil, false
			}
			escaped = true
			i += n
		case c < ' ':
			r.Fail()
			return nil, false
		default:
			ascii = false
			i++
		}
	}
	r.Fail()
	return nil, false
}

// unquote returns the text of a string, in at most twice the memory that the text takes.
func unquote(raw []byte, escaped bool) string {
	if !escaped {
		return string(raw)
	}
	var b strings.Builder
	b.Grow(len(raw))
	for {
		i := bytes.IndexByte(raw, '\\')
		if i < 0 {
			b.Write(raw)
			if s := b.String(); b.Cap() > 2*len(s) {
				return strings.Clone(s)
			}
			return b.String()
		}
		b.Write(raw[:i])
		c, n := unescape(raw[i:])
		b.WriteRune(c)
		raw = raw[i+n:]
	}
}

// unescape returns the rune of the escape at the start of s, and its length; 0 if there is no
// escape, or half of a surrogate pair.
func unescape(s []byte) (r rune, n int) {
	if len(s) < 2 {
		return 0, 0
	}
	switch c := s[1]; c {
	case '"', '\\', '/':
		return rune(c), 2
	case 'b':
		return '\b', 2
	case 'f':
		return '\f', 2
	case 'n':
		return '\n', 2
	case 'r':
		return '\r', 2
	case 't':
		return '\t', 2
	case 'u':
		if len(s) < 6 {
			return 0, 0
		}
		for _, c := range s[2:6] {
			switch {
			case '0' <= c && c <= '9':
				c -= '0'
			case 'a' <= c|0x20 && c|0x20 <= 'f':
				c = c | 0x20 - 'a' + 10
			default:
				return 0, 0
			}
			r = r<<4 | rune(c)
		}
		if utf8.ValidRune(r) {
			return r, 6
		}
	}
	return 0, 0
}

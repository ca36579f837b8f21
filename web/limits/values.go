package limits

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"math/bits"
	"strings"
)

// values counts the values, fields and elements of lists, that a decoder would make from a body
// while the body is read. The count may be too high, but never too low. The cost of decoding and
// checking a body depends more on its values than on its bytes. Reading fails with errManyValues if
// there are more than maxValues.
type values struct {
	io.ReadCloser
	maxValues      int
	yaml, protobuf bool

	json            int // values outside of strings, if the text is JSON
	quoted, escaped bool

	// text counts what may be a value of YAML, also within strings: only a parser of YAML can know
	// where strings end.
	text int
	// before are the last two bytes.
	before [2]byte
	// begun is true after the first byte that is not a space. object is true if that byte opens a JSON
	// object.
	begun, object bool
}

// ofAlias is how many values a YAML alias counts as, because it repeats others.
const ofAlias = 1000

func newValues(contentType string, body io.ReadCloser, maxValues int) *values {
	media, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	return &values{ReadCloser: body, maxValues: maxValues, yaml: strings.Contains(media, "yaml"), protobuf: strings.Contains(media, "protobuf")}
}

// Read implements io.Reader.
func (v *values) Read(p []byte) (int, error) {
	n, err := v.ReadCloser.Read(p)
	if !v.protobuf {
		v.see(p[:n])
		if v.json > v.maxValues || v.yaml && !v.object && v.text > v.maxValues {
			return n, errManyValues
		}
	}
	return n, err
}

func (v *values) see(p []byte) {
	for i := 0; i < len(p); i++ {
		if v.quoted && !v.escaped {
			if i += plain(p[i:]); i == len(p) {
				break
			}
		}
		c := p[i]
		switch {
		case v.escaped:
			v.escaped = false
		case v.quoted && c == '\\':
			v.escaped = true
		case c == '"':
			v.quoted = !v.quoted
		case !v.quoted && (c == ',' || c == '{' || c == '['):
			v.json++
		}
	}
	if !v.yaml {
		return
	}
	for _, c := range p {
		first, last := v.before[0], v.before[1]
		switch {
		case c == ',' || c == '[' || c == '{':
			v.text++
		case c <= ' ' && (last == ':' || last == '-' || last == '?'):
			v.text++
		case c > ' ' && last == '*' && (first <= ' ' || first == ',' || first == '[' || first == '{' || first == ':'):
			v.text += ofAlias
		}
		v.before = [2]byte{last, c}
		if !v.begun && c > ' ' {
			v.begun, v.object = true, c == '{'
		}
	}
}

// plain returns how many bytes of quoted text come before the next quote or backslash. It compares
// eight bytes at a time, because most of a large body is text.
func plain(p []byte) (n int) {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	const quotes, escapes = '"' * ones, '\\' * ones
	for ; n+8 <= len(p); n += 8 {
		eight := binary.LittleEndian.Uint64(p[n:])
		quote, escape := eight^quotes, eight^escapes
		// In quote and escape, a byte is 0 where p has that character. found has the top bit of the
		// lowest such byte set.
		if found := ((quote-ones)&^quote | (escape-ones)&^escape) & tops; found != 0 {
			return n + bits.TrailingZeros64(found)/8
		}
	}
	for ; n < len(p) && p[n] != '"' && p[n] != '\\'; n++ {
	}
	return n
}

// count returns the number of values of body, which was read to its end. A body that is declared as
// YAML may be JSON.
func (v *values) count(body []byte) int {
	switch {
	case v.protobuf:
		n, _ := protobufValues(bytes.TrimPrefix(body, []byte("k8s\x00")), maxProtobufDepth)
		return n
	case v.yaml && !(v.object && json.Valid(body)):
		return v.text + 1
	}
	return v.json
}

// maxProtobufDepth is how deep messages are counted; no kind is deeper. Below it, every two bytes
// count as a field.
const maxProtobufDepth = 32

// protobufValues counts the fields of a message and of those in it. In the encoding, text and
// messages look alike, so text that could be a message counts as one. ok is false if body is not a
// message.
func protobufValues(body []byte, depth int) (n int, ok bool) {
	if depth == 0 {
		return len(body) / 2, true
	}
	for len(body) > 0 {
		tag, size := binary.Uvarint(body)
		if size <= 0 || tag>>3 == 0 {
			return n, false
		}
		body = body[size:]
		skip := uint64(0)
		switch tag & 7 {
		case 0:
			_, size := binary.Uvarint(body)
			if size <= 0 {
				return n, false
			}
			skip = uint64(size)
		case 1:
			skip = 8
		case 2:
			length, size := binary.Uvarint(body)
			if size <= 0 || length > uint64(len(body)-size) {
				return n, false
			}
			body = body[size:]
			if below, ok := protobufValues(body[:length], depth-1); ok {
				n += below
			}
			skip = length
		case 3, 4: // a group's begin and end
		case 5:
			skip = 4
		default:
			return n, false
		}
		if skip > uint64(len(body)) {
			return n, false
		}
		body = body[skip:]
		n++
	}
	return n, true
}

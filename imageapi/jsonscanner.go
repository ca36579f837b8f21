package imageapi

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxSkipDepth bounds the nesting of what a jsonScanner skips, far below what a decoder allows.
const maxSkipDepth = 100

// jsonScanner walks over a JSON object without decoding it. Where it goes on, it may have walked
// over what is no JSON; only text it has unquoted is known to be right.
type jsonScanner struct {
	data []byte
	pos  int
}

// space walks over white space.
func (s *jsonScanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

// at reports whether c comes next.
func (s *jsonScanner) at(c byte) bool { return s.pos < len(s.data) && s.data[s.pos] == c }

// take walks over white space and then c; false, if something else is there.
func (s *jsonScanner) take(c byte) bool {
	s.space()
	if !s.at(c) {
		return false
	}
	s.pos++
	return true
}

// text walks over a string and returns what is between its quotes, as it stands.
func (s *jsonScanner) text() (raw []byte, ok bool) {
	if !s.at('"') {
		return nil, false
	}
	start := s.pos + 1
	for at := start; ; {
		i := bytes.IndexByte(s.data[at:], '"')
		if i < 0 {
			return nil, false
		}
		at += i
		escapes := 0
		for s.data[at-1-escapes] == '\\' {
			escapes++ // ends at the opening quote, if not before
		}
		at++
		if escapes%2 == 0 {
			s.pos = at
			return s.data[start : at-1], true
		}
	}
}

// skip walks over a value: a string, everything up to the matching bracket, or a word.
func (s *jsonScanner) skip() bool {
	for depth := 0; s.pos < len(s.data); {
		switch s.data[s.pos] {
		case '"':
			if _, ok := s.text(); !ok {
				return false
			}
		case '{', '[':
			if depth++; depth > maxSkipDepth {
				return false
			}
			s.pos++
		case '}', ']':
			if depth--; depth < 0 {
				return false
			}
			s.pos++
		default:
			start := s.pos
			if end := bytes.IndexAny(s.data[s.pos:], `"{}[]`); depth > 0 && end > 0 {
				s.pos += end
			} else if depth == 0 {
				if end = bytes.IndexAny(s.data[s.pos:], ",} \t\r\n"); end > 0 {
					s.pos += end
				}
			}
			if s.pos == start {
				return false
			}
		}
		if depth == 0 {
			return true
		}
	}
	return false
}

// unquote walks over a string and stores what it says. It is false of what is no valid string, and
// of what is rare: bytes that are no UTF-8, and halves of surrogate pairs.
func (s *jsonScanner) unquote(to *string) bool {
	raw, ok := s.text()
	if !ok || !utf8.Valid(raw) {
		return false
	}
	var b strings.Builder
	b.Grow(len(raw))
	for i := 0; i < len(raw); {
		run := i
		for i < len(raw) && raw[i] != '\\' {
			if raw[i] < ' ' {
				return false
			}
			i++
		}
		b.Write(raw[run:i])
		if i == len(raw) {
			break
		}
		i++ // there is a byte after every backslash, or the string would not have ended
		switch c := raw[i]; c {
		case '"', '\\', '/':
			b.WriteByte(c)
		case 'b':
			b.WriteByte('\b')
		case 'f':
			b.WriteByte('\f')
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'u':
			if i+4 >= len(raw) {
				return false
			}
			r, err := strconv.ParseUint(string(raw[i+1:i+5]), 16, 16)
			if err != nil || utf16.IsSurrogate(rune(r)) {
				return false
			}
			b.WriteRune(rune(r))
			i += 4
		default:
			return false
		}
		i++
	}
	*to = b.String()
	return true
}

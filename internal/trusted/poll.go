package trusted

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// Contents are what files hold, by their paths.
type Contents map[string][]byte

// Poll decides when the changed contents of files that are read again and again count: not while
// a file is being written, and not if its end is missing.
type Poll struct {
	// InForce is what the files held when they were last taken over.
	InForce Contents

	seen    Contents
	outcome string
}

// Settled reports whether the files hold what they held at the last look, and whether reading them
// had the same outcome: an error, or a hash of what they mean.
func (p *Poll) Settled(now Contents, outcome string) bool {
	same := p.seen != nil && p.outcome == outcome && maps.EqualFunc(p.seen, now, bytes.Equal)
	p.seen, p.outcome = now, outcome
	if p.seen == nil {
		p.seen = Contents{}
	}
	return same
}

// Cut returns an error if a file may be half written: it has become empty, or holds only the
// beginning of its content in force. Comments, document separators and white space at the end may
// be missing. A deleted file is not cut.
func (p *Poll) Cut(now Contents) error {
	for _, path := range slices.Sorted(maps.Keys(now)) {
		before, rest := bytes.TrimSpace(p.InForce[path]), bytes.TrimSpace(now[path])
		if !bytes.HasPrefix(before, rest) {
			continue
		}
		begin := bytes.LastIndexByte(rest, '\n') + 1 // start of the last line, which may be cut, too
		last := bytes.TrimSpace(rest[begin:])
		for i, text := range bytes.Split(before[begin:], []byte("\n")) {
			text = bytes.TrimSpace(text)
			if i == 0 && bytes.Equal(text, last) || len(text) == 0 || text[0] == '#' || bytes.Equal(text, []byte("---")) || bytes.Equal(text, []byte("...")) {
				continue
			}
			line := 1 + bytes.Count(before[:begin], []byte("\n")) + i
			if len(rest) == 0 {
				return fmt.Errorf(`%s: it is empty, and was not; if nothing is to be in force, write a comment such as "# empty" into it`, path)
			}
			return fmt.Errorf(`%s: it ends early: line %d of what is in force, %s, and what follows it, are missing, as if the file were half written; if you have deleted them, end the file with a comment such as "# complete"`,
				path, line, strconv.Quote(printable.Line(string(text), maxLine)))
		}
	}
	return nil
}

// maxLine bounds a line in a message, in bytes.
const maxLine = 60

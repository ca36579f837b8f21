// Package advisories finds the packages of an image that an advisory is about. Advisories are
// documents in the OSV format (https://ossf.github.io/osv-schema/), as osv.dev, GitHub and
// distributions publish them.
//
//	set := advisories.NewSet()
//	err := advisories.Read(file, func(a *advisories.Advisory) error { return set.Add(a) })
//	found, err := set.Find(list)
//
// Package versions compares versions. Only the few fields that matter are read from a document. Two
// libraries are not used. The bindings of ossf/osv-schema weigh little, about 50 KiB and one module
// more than protobuf alone; but they are protobuf messages, which read the entire document, cannot
// be part of an API object, and evaluate no ranges. osv-scalibr exports an order of versions, which
// package versions has, too, but not what evaluates ranges; a module that uses it lists 199 others.
//
// # What is not known
//
// An SBOM names packages, versions and, at best, the release of the distribution. So the result is
// unknown, and neither affected nor unaffected, for an advisory about commits alone (see
// [Set.Add]), an invalid version, a package without a package URL, and a distribution's package
// without the release, or without the source package that advisories of Debian, Ubuntu and Alpine
// name.
package advisories

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// MaxDocument bounds a document.
const MaxDocument = 8 << 20 // bytes

// Advisory has the fields of a document that are used.
type Advisory struct {
	ID string `json:"id"`
	// Aliases are other names of the same vulnerability, and Upstream the names of advisories that
	// this one includes, such as the CVEs of a distribution's notice.
	Aliases  []string `json:"aliases,omitempty"`
	Upstream []string `json:"upstream,omitempty"`
	// Withdrawn is when the advisory was withdrawn.
	Withdrawn string     `json:"withdrawn,omitempty"`
	Affected  []Affected `json:"affected"`
}

// Affected is a package, and which of its versions are affected.
type Affected struct {
	Package struct {
		// Ecosystem may include a release: Debian:12.
		Ecosystem string `json:"ecosystem"`
		Name      string `json:"name"`
	} `json:"package"`
	Ranges   []Range  `json:"ranges,omitempty"`
	Versions []string `json:"versions,omitempty"`
}

// Range is a set of versions between events.
type Range struct {
	// Type is SEMVER, ECOSYSTEM or GIT.
	Type   string  `json:"type"`
	Events []Event `json:"events"`
}

// Event has exactly one field set.
type Event struct {
	Introduced   string `json:"introduced,omitempty"`
	Fixed        string `json:"fixed,omitempty"`
	LastAffected string `json:"last_affected,omitempty"`
	Limit        string `json:"limit,omitempty"`
}

// Read reads documents one after another, or one array of them, as a stream. For a document that is
// JSON but not an advisory, it calls yield with an error. Any other fault, and an error of yield,
// ends the reading. It holds one document at a time, of at most [MaxDocument] bytes.
func Read(r io.Reader, yield func(*Advisory, error) error) error {
	in := &bounded{r: r}
	buffered := bufio.NewReader(in)
	first, err := firstOf(buffered)
	if err == io.EOF {
		return nil
	}
	if err != nil {
		return err
	}
	d := json.NewDecoder(buffered)
	if first == '[' {
		if _, err := d.Token(); err != nil {
			return err
		}
	}
	for n := 1; first != '[' || d.More(); n++ {
		in.read = 0
		var raw json.RawMessage
		if err := d.Decode(&raw); err == io.EOF && first != '[' {
			return nil
		} else if err != nil {
			return fmt.Errorf("document %d cannot be read: %w", n, err)
		}
		a, err := parse(raw)
		if err != nil {
			err = fmt.Errorf("document %d %w", n, err)
		}
		if err := yield(a, err); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// firstOf returns the first byte that is not white space, and leaves it to be read.
func firstOf(r *bufio.Reader) (byte, error) {
	for {
		b, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		switch b {
		case ' ', '\t', '\r', '\n':
			continue
		}
		return b, r.UnreadByte()
	}
}

// bounded reads one document after another.
type bounded struct {
	r    io.Reader
	read int // of the document
}

// Read is part of [io.Reader].
func (b *bounded) Read(p []byte) (int, error) {
	if b.read > MaxDocument {
		return 0, fmt.Errorf("it has more than %d MiB", MaxDocument>>20)
	}
	n, err := b.r.Read(p)
	b.read += n
	return n, err
}

// parse reads a document. The text of an error completes a sentence about it.
func parse(raw []byte) (*Advisory, error) {
	if len(raw) > MaxDocument {
		return nil, fmt.Errorf("has more than %d MiB", MaxDocument>>20)
	}
	var a Advisory
	if err := json.Unmarshal(raw, &a); err != nil {
		return nil, fmt.Errorf("is not an advisory in the OSV format: %w", err)
	}
	for _, name := range slices.Concat([]string{a.ID}, a.Aliases, a.Upstream) {
		if name == "" || len(name) > packages.MaxName || printable.Line(name, 0) != name {
			return nil, errors.New("is not an advisory in the OSV format: an id is 1 to 256 printable bytes")
		}
	}
	return &a, nil
}

// Names are the advisory's id and its aliases.
func (a *Advisory) Names() []string { return append([]string{a.ID}, a.Aliases...) }

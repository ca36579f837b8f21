// Package sbom reads the documents that builders attach to images: SBOMs in SPDX 2 and CycloneDX
// JSON, and OpenVEX, bare or in an in-toto statement.
//
//	document, err := sbom.Read(content, "sha256:…")
//	statement, err := payload.ParseAttestation(content)
//	document, err = sbom.ReadStatement(statement, "sha256:…")
//
// It does not read signed envelopes. Package payload does, also for the packages that verify
// signatures, so that a document is read from the same bytes that were verified.
//
// Users who may push to a repository choose every byte. The libraries for SPDX and CycloneDX hold
// an entire document as objects, which can take forty times its size. So a document has at most
// [MaxDocument] bytes and is read as a stream, and a library gets one package at a time, with only
// the needed fields and at most 64 KiB. The memory is bounded by twice the document and 10,000
// packages.
package sbom

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// Bounds on a document.
const (
	MaxDocument = 16 << 20 // bytes, in the registry
	maxNested   = 16       // components within components
	maxPart     = 64 << 10 // bytes of the fields of one package that are read
	maxAuthor   = 256      // bytes
	maxElements = 200_000  // packages, files and statements that are read
)

// Document holds the kept fields of a document.
type Document struct {
	// Format is packages.FormatSPDX, FormatCycloneDX or FormatOpenVEX.
	Format string
	// Packages are at most packages.MaxPackages, and Statements at most packages.MaxStatements.
	Packages   []packages.Package
	Statements []packages.Statement
	// Author is the author that a VEX document names.
	Author string
	// Incomplete is the reason why packages or statements are missing here; "" if none are.
	Incomplete string
}

// Fill sets the fields of a source that come from the document.
func (d *Document) Fill(s *packages.Source) (err error) {
	s.Format, s.Count, s.Statements, s.Author, s.Problem = d.Format, int32(len(d.Packages)), d.Statements, d.Author, d.Incomplete
	s.Packages = nil
	s.Packed, err = packages.Pack(d.Packages)
	return err
}

// layer is a document, or one of the wrappers around it.
type layer struct {
	Type string          `json:"_type"`
	Data json.RawMessage `json:"Data"`

	SPDX      string          `json:"spdxVersion"`
	CycloneDX string          `json:"bomFormat"`
	Context   json.RawMessage `json:"@context"` // a text in OpenVEX and in SPDX 3
}

// Read reads an unsigned document that is attached to the image of a digest, bare or in a
// statement. A statement about another image is an error, and so is a document in another format.
// It takes bounded time and memory for any input.
func Read(content []byte, digest string) (*Document, error) {
	if len(content) > MaxDocument {
		return nil, fmt.Errorf("it has %d bytes, at most %d are read", len(content), MaxDocument)
	}
	var l layer
	if err := l.read(content); err != nil {
		return nil, err
	}
	if strings.HasPrefix(l.Type, "https://in-toto.io/Statement/") {
		statement, err := payload.ParseStatement(content)
		if err != nil {
			return nil, fmt.Errorf("it cannot be read: %w", err)
		}
		return ReadStatement(statement, digest)
	}
	return l.document(content, digest)
}

// ReadStatement reads the document in a statement's predicate. The statement must be about the
// image with the digest, and have the predicate type of a document: a signed provenance statement
// does not sign an SBOM, even if its predicate looks like one.
func ReadStatement(s *payload.Statement, digest string) (*Document, error) {
	switch {
	case !s.Covers(digest):
		return nil, errors.New("its statement is about another image")
	case !packages.IsDocument(s.PredicateType):
		return nil, fmt.Errorf("its statement is of the type %q, which is not one of an SBOM or a VEX document", printable.Line(s.PredicateType, packages.MaxName))
	case len(s.Predicate) == 0:
		return nil, errors.New("its statement has no predicate")
	}
	var l layer
	if err := l.read(s.Predicate); err != nil {
		return nil, err
	}
	// cosign 1 wrapped documents in an object of its own
	if len(l.Data) > 0 && l.SPDX == "" && l.CycloneDX == "" {
		content := l.Data
		l = layer{}
		if err := l.read(content); err != nil {
			return nil, err
		}
		return l.document(content, digest)
	}
	return l.document(s.Predicate, digest)
}

func (l *layer) read(content []byte) error {
	if text := bytes.TrimSpace(content); len(text) > 0 && text[0] != '{' {
		return errors.New("it is not a JSON object: only the JSON forms of SPDX, CycloneDX and OpenVEX are read")
	}
	if err := json.Unmarshal(content, l); err != nil {
		return fmt.Errorf("it cannot be read: %w", err)
	}
	return nil
}

// document reads the layer as a document for the image with a digest.
func (l *layer) document(content []byte, digest string) (*Document, error) {
	switch {
	case l.SPDX != "":
		return readSPDX(content, l.SPDX)
	case l.CycloneDX != "":
		return readCycloneDX(content, l.CycloneDX)
	case isOpenVEX(l.Context):
		return readOpenVEX(content, digest)
	}
	return nil, errors.New("it is neither SPDX 2, CycloneDX nor OpenVEX in JSON")
}

// errEnough ends the reading of a document after the bound is reached.
var errEnough = errors.New("enough")

// object calls member with each key of the object that comes next; member must read the value.
func object(d *json.Decoder, member func(key string) error) error {
	if err := open(d, '{'); err != nil {
		return err
	}
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		key, _ := token.(string)
		if err := member(key); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

// array calls element before each element of the array that comes next; element must read it.
func array(d *json.Decoder, element func() error) error {
	if err := open(d, '['); err != nil {
		return err
	}
	for d.More() {
		if err := element(); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}

func open(d *json.Decoder, delim json.Delim) error {
	token, err := d.Token()
	if err != nil {
		return err
	}
	if token != delim {
		return fmt.Errorf("%v where %v should be", token, delim)
	}
	return nil
}

// skip skips the next value.
func skip(d *json.Decoder) error {
	var value json.RawMessage
	return d.Decode(&value)
}

// part collects the needed fields of one package, as an object of their own.
type part struct {
	fields   map[string]json.RawMessage
	size     int
	tooLarge bool
}

func (p *part) add(d *json.Decoder, key string) error {
	var value json.RawMessage
	if err := d.Decode(&value); err != nil {
		return err
	}
	if p.size += len(value); p.size > maxPart {
		p.fields, p.tooLarge = nil, true
		return nil
	}
	if p.fields == nil {
		p.fields = map[string]json.RawMessage{}
	}
	p.fields[key] = value
	return nil
}

// into decodes the fields into a library's type for a package.
func (p *part) into(v any) error {
	b, err := json.Marshal(p.fields)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// collector keeps packages up to their bound.
type collector struct {
	Document
	digest string // of the image
	left   int    // packages or statements that could not be read
	looked int    // elements of all kinds
}

// count counts an element of a document, and ends the reading of one that has too many.
func (c *collector) count() error {
	if c.looked++; c.looked > maxElements {
		c.Incomplete = fmt.Sprintf("it has more than %d elements; the rest is not known", maxElements)
		return errEnough
	}
	return nil
}

func (c *collector) add(p packages.Package) error {
	if p = p.Bounded(); p.Name == "" {
		c.left++
		return nil
	}
	if len(c.Packages) == packages.MaxPackages {
		c.Incomplete = fmt.Sprintf("it has more than %d packages; the rest is not known", packages.MaxPackages)
		return errEnough
	}
	c.Packages = append(c.Packages, p)
	return nil
}

// finish returns the document, if it could be read.
func (c *collector) finish(err error) (*Document, error) {
	if err != nil && !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("it cannot be read: %w", err)
	}
	if c.Incomplete == "" && c.left > 0 {
		c.Incomplete = fmt.Sprintf("%d of its packages cannot be read", c.left)
		if c.Format == packages.FormatOpenVEX {
			c.Incomplete = fmt.Sprintf("statements that cannot be read: %d", c.left)
		}
	}
	return &c.Document, nil
}

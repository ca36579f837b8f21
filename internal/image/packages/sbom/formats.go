package sbom

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/package-url/packageurl-go"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// readSPDX reads SPDX 2.2 and 2.3 (https://spdx.github.io/spdx-spec/v2.3/), which have the same
// fields here.
func readSPDX(content []byte, version string) (*Document, error) {
	if !strings.HasPrefix(version, "SPDX-2.") {
		return nil, fmt.Errorf("%q is not read: SPDX 2 is", printable.Line(version, 32))
	}
	c := &collector{Document: Document{Format: packages.FormatSPDX}}
	d := json.NewDecoder(bytes.NewReader(content))
	return c.finish(object(d, func(key string) error {
		if key != "packages" {
			return skip(d)
		}
		return array(d, func() error {
			if err := c.count(); err != nil {
				return err
			}
			var fields part
			if err := object(d, func(key string) error {
				switch key {
				case "name", "versionInfo", "licenseConcluded", "licenseDeclared", "externalRefs", "primaryPackagePurpose":
					return fields.add(d, key)
				}
				return skip(d)
			}); err != nil {
				return err
			}
			var p spdx.Package
			if fields.tooLarge || fields.into(&p) != nil {
				c.left++
				return nil
			}
			if p.PrimaryPackagePurpose == "CONTAINER" { // the image itself
				return nil
			}
			out := packages.Package{Name: p.PackageName, Version: p.PackageVersion, License: cmp.Or(asserted(p.PackageLicenseConcluded), asserted(p.PackageLicenseDeclared))}
			for _, r := range p.PackageExternalReferences {
				if r != nil && r.RefType == "purl" {
					out.PURL = r.Locator
					break
				}
			}
			return c.add(out)
		})
	}))
}

// asserted returns a licence of SPDX; "" if the document does not have one.
func asserted(license string) string {
	if license == "NOASSERTION" || license == "NONE" {
		return ""
	}
	return license
}

// readCycloneDX reads CycloneDX (https://cyclonedx.org/specification/overview/), all versions.
func readCycloneDX(content []byte, format string) (*Document, error) {
	if format != cyclonedx.BOMFormat {
		return nil, fmt.Errorf("its format %q is unknown", printable.Line(format, 32))
	}
	c := &collector{Document: Document{Format: packages.FormatCycloneDX}}
	d := json.NewDecoder(bytes.NewReader(content))
	return c.finish(object(d, func(key string) error {
		if key != "components" {
			return skip(d)
		}
		return array(d, func() error { return c.component(d, 0) })
	}))
}

// component reads a component and those within it.
func (c *collector) component(d *json.Decoder, depth int) error {
	if depth == maxNested {
		return fmt.Errorf("components are nested more than %d deep", maxNested)
	}
	if err := c.count(); err != nil {
		return err
	}
	var fields part
	if err := object(d, func(key string) error {
		switch key {
		case "components":
			return array(d, func() error { return c.component(d, depth+1) })
		case "type", "group", "name", "version", "purl", "licenses":
			return fields.add(d, key)
		}
		return skip(d)
	}); err != nil {
		return err
	}
	var p cyclonedx.Component
	if fields.tooLarge || fields.into(&p) != nil {
		c.left++
		return nil
	}
	switch p.Type {
	case cyclonedx.ComponentTypeFile, cyclonedx.ComponentTypeData, cyclonedx.ComponentTypeContainer, cyclonedx.ComponentTypeCryptographicAsset:
		return nil // not packages
	}
	out := packages.Package{Name: p.Name, Version: p.Version, PURL: p.PackageURL}
	if p.Group != "" && !strings.HasPrefix(p.PackageURL, "pkg:maven/") {
		out.Name = p.Group + "/" + p.Name
	}
	if p.Licenses != nil {
		var all []string
		for _, l := range *p.Licenses {
			switch {
			case l.Expression != "":
				all = append(all, l.Expression)
			case l.License != nil:
				all = append(all, cmp.Or(l.License.ID, l.License.Name))
			}
		}
		out.License = strings.Join(all, " AND ")
	}
	return c.add(out)
}

const openVEX = "https://openvex.dev/ns"

func isOpenVEX(context json.RawMessage) bool {
	var text string
	return json.Unmarshal(context, &text) == nil && (text == openVEX || strings.HasPrefix(text, openVEX+"/"))
}

// readOpenVEX reads OpenVEX (https://github.com/openvex/spec). Its library would add a dozen
// modules for these five fields.
func readOpenVEX(content []byte, digest string) (*Document, error) {
	c := &collector{Document: Document{Format: packages.FormatOpenVEX}, digest: digest}
	d := json.NewDecoder(bytes.NewReader(content))
	return c.finish(object(d, func(key string) error {
		switch key {
		case "author":
			if err := d.Decode(&c.Author); err != nil {
				return err
			}
			c.Author = printable.Line(c.Author, maxAuthor)
			return nil
		case "statements":
			return array(d, func() error { return c.statement(d) })
		}
		return skip(d)
	}))
}

func (c *collector) statement(d *json.Decoder) error {
	if err := c.count(); err != nil {
		return err
	}
	var fields part
	if err := object(d, func(key string) error {
		switch key {
		case "vulnerability", "status", "justification", "products":
			return fields.add(d, key)
		}
		return skip(d)
	}); err != nil {
		return err
	}
	if len(c.Statements) == packages.MaxStatements {
		c.Incomplete = fmt.Sprintf("it has more than %d statements; the rest is not known", packages.MaxStatements)
		return errEnough
	}
	var s struct {
		// a text in version 0.0.1, otherwise an object
		Vulnerability json.RawMessage `json:"vulnerability"`
		Status        string          `json:"status"`
		Justification string          `json:"justification"`
		Products      []product       `json:"products"`
	}
	if fields.tooLarge || fields.into(&s) != nil {
		c.left++
		return nil
	}
	isAnother := func(p product) bool { return p.isAnotherImage(c.digest) }
	if len(s.Products) > 0 && !slices.ContainsFunc(s.Products, func(p product) bool { return !isAnother(p) }) {
		return nil
	}
	var named struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(s.Vulnerability, &named.Name) != nil && json.Unmarshal(s.Vulnerability, &named) != nil {
		c.left++
		return nil
	}
	out := packages.Statement{Vulnerability: named.Name, Status: s.Status, Justification: s.Justification}.Bounded()
	if out.Vulnerability == "" || out.Status == "" {
		c.left++
		return nil
	}
	c.Statements = append(c.Statements, out)
	return nil
}

// product is the subject of an OpenVEX statement. In version 0.0.1 it is a text.
type product struct{ names []string }

// UnmarshalJSON is part of [json.Unmarshaler].
func (p *product) UnmarshalJSON(b []byte) error {
	var fields struct {
		ID          string            `json:"@id"`
		Identifiers map[string]string `json:"identifiers"`
	}
	var id string
	if json.Unmarshal(b, &id) == nil {
		p.names = []string{id}
		return nil
	}
	err := json.Unmarshal(b, &fields)
	p.names = []string{fields.ID, fields.Identifiers["purl"]}
	return err
}

// isAnotherImage reports whether a product names an image with another digest: one document may be
// attached to all images of a release.
func (p product) isAnotherImage(digest string) bool {
	named := false
	for _, name := range p.names {
		purl, err := packageurl.FromString(name)
		if err != nil || purl.Type != packageurl.TypeOCI || purl.Version == "" {
			continue
		}
		if purl.Version == digest {
			return false
		}
		named = true
	}
	return named
}

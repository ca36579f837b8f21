package packages

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/klauspost/compress/gzip"
)

// maxUnpacked bounds the lines of a document's packages, in bytes: 10,000 packages have some 1 MB.
const maxUnpacked = 16 << 20

// Pack packs packages as [Source.Packed] has them; nil for none. A text with a tab or a line break
// is an error.
func Pack(all []Package) ([]byte, error) {
	if len(all) == 0 {
		return nil, nil
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	for i := range all {
		p := &all[i]
		fields := []string{p.Name, p.Version, p.PURL, p.License}
		if strings.ContainsAny(strings.Join(fields, ""), "\t\n") {
			return nil, fmt.Errorf("package %q has a tab or a line break in it", p.Name)
		}
		if _, err := io.WriteString(w, strings.Join(fields, "\t")+"\n"); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Unpack is the inverse of Pack. It takes bounded time and memory for any input.
func Unpack(packed []byte) (all []Package, err error) {
	if len(packed) == 0 {
		return nil, nil
	}
	if len(packed) > MaxPacked {
		return nil, fmt.Errorf("%d bytes of packed packages, at most %d are read", len(packed), MaxPacked)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	n, err := io.Copy(&b, io.LimitReader(r, maxUnpacked+1))
	if err != nil {
		return nil, err
	}
	if n > maxUnpacked {
		return nil, fmt.Errorf("packed packages have more than %d bytes", maxUnpacked)
	}
	lines := b.String()
	count := strings.Count(lines, "\n")
	if count > MaxPackages {
		return nil, fmt.Errorf("%d packages, at most %d are read", count, MaxPackages)
	}
	all = make([]Package, 0, count)
	for lines != "" {
		line, rest, ok := strings.Cut(lines, "\n")
		name, line, ok1 := strings.Cut(line, "\t")
		version, line, ok2 := strings.Cut(line, "\t")
		purl, license, ok3 := strings.Cut(line, "\t")
		if !ok || !ok1 || !ok2 || !ok3 || strings.Contains(license, "\t") {
			return nil, errors.New("packed packages are not lines of four fields with tabs between")
		}
		all, lines = append(all, Package{name, version, purl, license}), rest
	}
	return all, nil
}

// All returns the packages of a document, packed or not.
func (s *Source) All() ([]Package, error) {
	if s.Packages != nil {
		return s.Packages, nil
	}
	return Unpack(s.Packed)
}

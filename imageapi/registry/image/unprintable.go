package image

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// Text of strangers is made printable where it becomes a field. A field selector finds images that
// an earlier release stored otherwise, and an update makes their fields printable.

// hasUnprintable reports whether fields that the server derives have unprintable text, or whether
// YAML cannot hold the text of manifest or config.
func hasUnprintable(image *imagev1.Image) bool {
	return !printable.IsYAML(image.DockerImageManifest) || !printable.IsYAML(image.DockerImageConfig) || isUnprintable(image.Annotations[annotation.Platform]) || hasUnprintableText(image.DockerImageMetadata.Raw) ||
		slices.ContainsFunc(image.DockerImageManifests, func(m imagev1.ImageManifest) bool {
			return isUnprintable(m.OS) || isUnprintable(m.Architecture) || isUnprintable(m.Variant)
		})
}

func isUnprintable(s string) bool { return printable.Line(s, 0) != s }

// hasUnprintableText reports whether a text of a JSON document is not printable. It is called for
// each Image that is written, so it reads only the bytes and their escapes.
func hasUnprintableText(doc []byte) bool {
	if !printable.IsPlain(doc) {
		text := strings.ReplaceAll(string(doc), "\r", " ") // white space between values is fine
		if printable.Text(text) != text {
			return true
		}
	}
	for {
		at := bytes.IndexByte(doc, '\\')
		if at < 0 || at+1 == len(doc) {
			return false
		}
		escape := doc[at+1:]
		switch doc = escape[1:]; escape[0] {
		case 'b', 'f', 'r':
			return true
		case 'u':
			code, err := strconv.ParseUint(string(escape[1:min(5, len(escape))]), 16, 16)
			r := rune(code)
			if utf16.IsSurrogate(r) && len(escape) >= 11 && escape[5] == '\\' && escape[6] == 'u' {
				low, _ := strconv.ParseUint(string(escape[7:11]), 16, 16)
				r = utf16.DecodeRune(r, rune(low)) // U+FFFD where the two are not a pair
			}
			if s := string(r); err == nil && printable.Text(s) != s {
				return true
			}
		}
	}
}

// makePrintable makes the text of derived fields printable. It does not change what image points
// to.
func makePrintable(image *imagev1.Image) error {
	if image.DockerImageManifest != "" {
		if err := manifest.Derive(image); err != nil {
			return err
		}
	}
	image.DockerImageManifests = slices.Clone(image.DockerImageManifests)
	for i := range image.DockerImageManifests {
		m := &image.DockerImageManifests[i]
		m.OS, m.Architecture, m.Variant = printable.Line(m.OS, 0), printable.Line(m.Architecture, 0), printable.Line(m.Variant, 0)
	}
	if p := image.Annotations[annotation.Platform]; isUnprintable(p) {
		image.Annotations = maps.Clone(image.Annotations)
		image.Annotations[annotation.Platform] = printable.Line(p, 0)
	}
	if !hasUnprintableText(image.DockerImageMetadata.Raw) {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(image.DockerImageMetadata.Raw))
	decoder.UseNumber()
	var doc any
	err := decoder.Decode(&doc)
	if err == nil {
		image.DockerImageMetadata.Raw, err = json.Marshal(printableValue(doc))
	}
	return err
}

// printableValue returns a JSON value with printable texts. Names that become equal become one.
func printableValue(value any) any {
	switch v := value.(type) {
	case string:
		return printable.Text(v)
	case []any:
		for i := range v {
			v[i] = printableValue(v[i])
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			out[printable.Text(name)] = printableValue(v[name])
		}
		return out
	}
	return value
}

package policy

import (
	"encoding/base64"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tidewaiter/tidewaiter/internal/nearest"
)

// Error says what is wrong with a policy document, and where.
type Error struct {
	File     string // "" for documents that were not in a file
	Document int    // counted from 1 within the file; 0 if the error is about the file
	Line     int    // counted from 1; 0 when unknown
	// path from the document's root, such as spec.policy.rootOfTrust; "" for the whole document
	Field string
	Err   error
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.File != "" {
		b.WriteString(e.File)
		if e.Line > 0 {
			fmt.Fprintf(&b, ":%d", e.Line)
		}
		b.WriteString(": ")
	}
	if e.Document > 0 {
		fmt.Fprintf(&b, "document %d: ", e.Document)
	}
	if e.File == "" && e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Field != "" {
		b.WriteString(e.Field + ": ")
	}
	b.WriteString(e.Err.Error())
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// decoded is a document with the line of each field that was present, by path.
type decoded struct {
	Document
	lines map[string]int
}

// line returns the line of the field or, if it is absent, of the nearest parent that is present.
func (d *decoded) line(path string) int {
	for {
		if n, ok := d.lines[path]; ok {
			return n
		}
		i := strings.LastIndexAny(path, ".[")
		if i < 0 {
			return d.lines[""]
		}
		path = path[:i]
	}
}

// decodeDocument fills a Document from a YAML node. It learns the structure by reflection over the
// json tags. It refuses keys that encoding/json or sigs.k8s.io/yaml would let pass: unknown,
// repeated and wrongly cased ones. It refuses aliases too: they are not needed, and can expand a
// small file without bound.
func decodeDocument(node *yaml.Node) (*decoded, error) {
	d := &decoded{lines: map[string]int{}}
	if err := d.value(node, reflect.ValueOf(&d.Document).Elem(), ""); err != nil {
		return nil, err
	}
	return d, nil
}

func (d *decoded) value(n *yaml.Node, v reflect.Value, path string) error {
	d.lines[path] = n.Line
	fail := func(format string, args ...any) error {
		return &Error{Line: n.Line, Field: path, Err: fmt.Errorf(format, args...)}
	}
	if n.Kind == yaml.AliasNode {
		return fail("YAML aliases are not supported: write the value out")
	}
	if v.Kind() == reflect.Interface { // ignored
		return nil
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(n, v.Elem(), path)
	case reflect.Struct:
		if n.Kind != yaml.MappingNode {
			return fail("must be a mapping with the keys %s", strings.Join(keysOf(v.Type()), ", "))
		}
		return d.structure(n, v, path)
	case reflect.String:
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
			return fail("must be a string")
		}
		v.SetString(n.Value)
		return nil
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if n.Kind != yaml.ScalarNode || (n.Tag != "!!str" && n.Tag != "!!binary") {
				return fail("must be a string holding base64")
			}
			data, err := base64.StdEncoding.DecodeString(n.Value)
			if err != nil {
				return fail("is not base64 (encode the file with `base64 -w0`, or give its name in the field that ends in Path): %w", err)
			}
			v.SetBytes(data)
			return nil
		}
		if n.Kind != yaml.SequenceNode {
			return fail("must be a list")
		}
		s := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
		for i, item := range n.Content {
			if err := d.value(item, s.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		v.Set(s)
		return nil
	}
	return fail("cannot be decoded into %s", v.Type())
}

func (d *decoded) structure(n *yaml.Node, v reflect.Value, path string) error {
	fields := map[string]int{}
	lenient := false
	for i := range v.NumField() {
		tag := jsonName(v.Type().Field(i))
		if tag == "-" { // a struct with such a field is read leniently
			lenient = true
			continue
		}
		fields[tag] = i
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := key.Value
		if path != "" {
			at = path + "." + key.Value
		}
		fail := func(format string, args ...any) error {
			return &Error{Line: key.Line, Field: at, Err: fmt.Errorf(format, args...)}
		}
		if key.Kind != yaml.ScalarNode || key.Tag != "!!str" {
			return fail("keys must be plain strings")
		}
		if first, ok := seen[key.Value]; ok {
			return fail("appears twice, first at line %d", first)
		}
		seen[key.Value] = key.Line
		i, ok := fields[key.Value]
		if err := check(v.Type(), key.Value, value); err != nil {
			return fail("%w", err)
		}
		switch {
		case ok:
			if err := d.value(value, v.Field(i), at); err != nil {
				return err
			}
		case !lenient:
			return fail("unknown field; known here: %s", strings.Join(keysOf(v.Type()), ", "))
		}
	}
	return nil
}

// check refuses a key of the metadata that is meant for this program and would have no effect.
func check(in reflect.Type, key string, value *yaml.Node) error {
	switch in {
	case reflect.TypeFor[Admission]():
		return checkAnnotation(key, value.Kind == yaml.ScalarNode && (value.Value == "" || value.Tag == "!!null"))
	case reflect.TypeFor[labels]():
		return checkLabel(key)
	case reflect.TypeFor[Metadata]():
		all := keysOf(in)
		if near := nearest.Likely(key, all); near != "" && !slices.Contains(all, key) {
			return fmt.Errorf("unknown field; did you mean %s?", near)
		}
		if near := meant(key); near != "" {
			return fmt.Errorf("has no meaning here: write %s under metadata.annotations", near)
		}
	}
	return nil
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		if name := jsonName(t.Field(i)); name != "-" {
			keys = append(keys, name)
		}
	}
	slices.Sort(keys)
	return keys
}

// jsonName is the key of a field in a document.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tidewaiter/tidewaiter/internal/nearest"
)

// unknownKey matches package yaml's error for an unknown key.
var unknownKey = regexp.MustCompile(`^line (\d+): field (.*) not found in type (.*)$`)

// wrongType matches package yaml's error for a value of another type.
var wrongType = regexp.MustCompile("^line (\\d+): cannot unmarshal !!(\\w+)(?: `(.*)`)? into (.*)$")

// wrongValue says in words what a value at a line should be. tag and goType are YAML's and Go's
// names of types.
func wrongValue(document []byte, line, tag, value, goType string) string {
	is := cmp.Or(map[string]string{"map": "a mapping", "seq": "a list", "null": "empty"}[tag], strconv.Quote(value))
	wants, example := "", ""
	switch {
	case strings.HasSuffix(goType, "time.Duration"):
		wants, example = "a duration with its unit", "90s, 10m or 6h"
		if tag == "int" {
			example = value + "s, " + value + "m or " + value + "h"
		}
	case strings.HasPrefix(goType, "[]string"):
		wants, example = "a list", "[a, b]"
		if value != "" && !strings.HasSuffix(value, "...") {
			example = "[" + value + "]"
		}
	case strings.HasPrefix(goType, "[]"):
		wants, example = "a list", "lines that each begin with \"- \""
	case strings.Contains(goType, "bool"):
		wants, example = "true or false", ""
	case strings.HasPrefix(strings.TrimPrefix(goType, "*"), "int"), strings.HasPrefix(goType, "uint"):
		wants = "a whole number"
	case strings.HasPrefix(strings.TrimPrefix(goType, "*"), "float"):
		wants = "a number"
	case strings.TrimPrefix(goType, "*") == "string":
		wants = "a text"
	default:
		wants = "a mapping, lines of key: value"
	}
	if example != "" {
		wants += ", such as " + example
		if strings.HasPrefix(example, "lines") {
			wants = strings.Replace(wants, ", such as ", ": ", 1)
		}
	}
	return fmt.Sprintf("%s is %s, and must be %s; docs/reference/config.md has all keys", keyAt(document, line, tag), is, wants)
}

// keyAt returns the path of the first key whose value is at a line and has a tag, as far as it can
// be told.
func keyAt(document []byte, line, tag string) string {
	var node yaml.Node
	_ = yaml.Unmarshal(document, &node)
	found := ""
	var look func(n *yaml.Node, path string)
	look = func(n *yaml.Node, path string) {
		for i, c := range n.Content {
			if n.Kind != yaml.MappingNode {
				look(c, path)
				continue
			}
			if i%2 == 1 {
				at := strings.TrimPrefix(path+"."+n.Content[i-1].Value, ".")
				if found == "" && strconv.Itoa(c.Line) == line && c.ShortTag() == "!!"+tag {
					found = at
				}
				look(c, at)
			}
		}
	}
	look(&node, "")
	return cmp.Or(found, "the value")
}

// lineOf returns the line of a key in a document, such as "registries[0].caFile", or of what is
// nearest above it; 0 if not even the first part of the path is there.
func lineOf(document *yaml.Node, path string) (line int) {
	if document.Kind != yaml.DocumentNode {
		return 0
	}
	node := document.Content[0]
	for _, step := range strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		if node.Kind == yaml.AliasNode {
			node = node.Alias
		}
		var next *yaml.Node
		switch node.Kind {
		case yaml.SequenceNode:
			if i, err := strconv.Atoi(step); err == nil && i < len(node.Content) {
				next = node.Content[i]
				line = next.Line
			}
		case yaml.MappingNode:
			for i := 0; i < len(node.Content); i += 2 {
				if node.Content[i].Value == step {
					next = node.Content[i+1]
					line = node.Content[i].Line
				}
			}
		}
		if next == nil {
			return line
		}
		node = next
	}
	return line
}

// explainKeys adds to the error of a document, which should have the keys of a type, the known key
// that is nearest to each unknown one.
func explainKeys(document []byte, of reflect.Type, err error) error {
	var t *yaml.TypeError
	if !errors.As(err, &t) {
		return err
	}
	above := aboveUnknown(document, of)
	lines := make([]string, 0, len(t.Errors))
	for _, line := range t.Errors {
		if m := unknownKey.FindStringSubmatch(line); m != nil {
			nearest := nearestKey(of, m[2][:min(len(m[2]), 64)], m[3], above[m[1]+" "+m[2]])
			line = fmt.Sprintf("line %s: there is no key %.64q here; did you mean %s? docs/reference/config.md has all keys", m[1], m[2], nearest)
		}
		if m := wrongType.FindStringSubmatch(line); m != nil {
			line = fmt.Sprintf("line %s: %s", m[1], wrongValue(document, m[1], m[2], m[3], m[4]))
		}
		lines = append(lines, line)
	}
	return errors.New(strings.Join(lines, "; "))
}

// aboveUnknown returns what is above the unknown keys of a document, such as "registries.", by line
// and key.
func aboveUnknown(document []byte, of reflect.Type) map[string][]string {
	known := map[string]bool{}
	configKeys(of, "", func(path, _ string) { known[path] = true })
	above := map[string][]string{}
	var node yaml.Node
	_ = yaml.Unmarshal(document, &node) // it is YAML, but no configuration
	documentKeys(&node, "", func(path string, key *yaml.Node) bool {
		if !known[path] {
			at := strconv.Itoa(key.Line) + " " + key.Value
			above[at] = append(above[at], strings.TrimSuffix(path, key.Value))
		}
		return known[path]
	})
	return above
}

// documentKeys calls yield with the path of each key below a node, such as "registries.prefix". It
// looks below a key if yield returns true.
func documentKeys(node *yaml.Node, above string, yield func(path string, key *yaml.Node) bool) {
	if node.Kind != yaml.MappingNode {
		for _, n := range node.Content {
			documentKeys(n, above, yield)
		}
		return
	}
	for i := 0; i < len(node.Content); i += 2 {
		path := above + node.Content[i].Value
		if yield(path, node.Content[i]) {
			documentKeys(node.Content[i+1], path+".", yield)
		}
	}
}

// configKeys calls yield with the path of each key of a type, such as "registries.prefix", and the
// type that has it, such as "config.Registry".
func configKeys(t reflect.Type, above string, yield func(path, in string)) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if name == "" || !f.IsExported() {
			continue
		}
		yield(above+name, t.String())
		configKeys(f.Type, above+name+".", yield)
	}
}

// nearestKey returns the path of the known key that needs the fewest changes. It prefers a key of
// the type in whose path begins with one of above, if at most half of key must change.
func nearestKey(all reflect.Type, key, in string, above []string) string {
	best, least := "", -1
	nearHere, leastHere := "", len(key)/2+1
	configKeys(all, "", func(path, of string) {
		dot := strings.LastIndexByte(path, '.') + 1
		n := nearest.Distance(strings.ToLower(key), strings.ToLower(path[dot:]))
		if least < 0 || n < least {
			best, least = path, n
		}
		if of == in && n < leastHere && slices.Contains(above, path[:dot]) {
			nearHere, leastHere = path, n
		}
	})
	return cmp.Or(nearHere, best)
}

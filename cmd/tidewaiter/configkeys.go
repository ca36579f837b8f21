package main

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// unknownKey matches package yaml's error for an unknown key.
var unknownKey = regexp.MustCompile(`^line (\d+): field (.*) not found in type (?:main\.)?(.*)$`)

// explainKeys adds to an error the known key that is nearest to each unknown one.
func explainKeys(err error) error {
	var t *yaml.TypeError
	if !errors.As(err, &t) {
		return err
	}
	lines := make([]string, 0, len(t.Errors))
	for _, line := range t.Errors {
		if m := unknownKey.FindStringSubmatch(line); m != nil {
			line = fmt.Sprintf("line %s: there is no key %.64q here; did you mean %s? docs/config.md has all keys", m[1], m[2], nearestKey(m[2][:min(len(m[2]), 64)], m[3]))
		}
		lines = append(lines, line)
	}
	return errors.New(strings.Join(lines, "; "))
}

// configKeys calls yield with the path of each key of a type, such as "registries.prefix", and the name of the type
// that has it.
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
		yield(above+name, t.Name())
		configKeys(f.Type, above+name+".", yield)
	}
}

// nearestKey returns the path of the known key that needs the fewest changes. It prefers a key of the type in, if at
// most half of key must change.
func nearestKey(key, in string) string {
	best, least := "", -1
	nearHere, leastHere := "", len(key)/2+1
	configKeys(reflect.TypeFor[config](), "", func(path, of string) {
		name := path[strings.LastIndexByte(path, '.')+1:]
		n := distance(strings.ToLower(key), strings.ToLower(name))
		if least < 0 || n < least {
			best, least = path, n
		}
		if of == in && n < leastHere {
			nearHere, leastHere = path, n
		}
	})
	return cmp.Or(nearHere, best)
}

// distance is how many insertions, deletions and replacements turn one text into another (Levenshtein). Keys are short.
func distance(from, to string) int {
	row := make([]int, len(to)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(from) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(to) {
			cost := diagonal
			if from[i] != to[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(to)]
}

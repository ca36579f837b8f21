package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

const (
	// maxReferenceLine bounds a line of a file of references, in bytes.
	maxReferenceLine = 4 << 10
	// maxReferences bounds what one command imports.
	maxReferences = 1_000_000
)

// collectReferences returns the arguments and what the files list, each read with
// parse so that a misspelt one is found before anything is done. The file "-" is
// stdin.
func collectReferences(args, files []string, stdin io.Reader, parse func(string) (reference.Reference, error)) ([]reference.Reference, error) {
	var out []reference.Reference
	for _, arg := range args {
		ref, err := parse(arg)
		if err != nil {
			return nil, explainReference(err)
		}
		out = append(out, ref)
	}
	for _, name := range files {
		listed, err := readReferences(name, stdin, parse)
		if err != nil {
			return nil, err
		}
		out = append(out, listed...)
		if len(out) > maxReferences {
			return nil, fmt.Errorf("these are more than %d references: import them in parts", maxReferences)
		}
	}
	return out, nil
}

func readReferences(name string, stdin io.Reader, parse func(string) (reference.Reference, error)) ([]reference.Reference, error) {
	r, display := stdin, "standard input"
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r, display = f, name
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, maxReferenceLine), maxReferenceLine)
	var out []reference.Reference
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), " #")
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if len(out) == maxReferences {
			return nil, fmt.Errorf("%s lists more than %d references: import them in parts", display, maxReferences)
		}
		ref, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", display, n, explainReference(err))
		}
		out = append(out, ref)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", display, err)
	}
	return out, nil
}

// explainReference adds the corrected command to an error about a reference.
func explainReference(err error) error {
	var bad *reference.Error
	if errors.As(err, &bad) && bad.Suggestion != "" {
		return withHint(err, "tidewaiter import %s", bad.Suggestion)
	}
	return err
}

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestDocumentedAttacks: each test that testdata/attacks.md names is there.
func TestDocumentedAttacks(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/attacks.md")
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	declaration := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err = filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 && d.Name() != ".ci" {
			if err == nil {
				err = fs.SkipDir
			}
			return err
		}
		if d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		for _, name := range declaration.FindAllSubmatch(source, -1) {
			declared[string(name[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllSubmatch(text, -1)
	if len(named) < 50 {
		t.Errorf("%d tests are named, want the table of attacks", len(named))
	}
	for _, name := range named {
		if !declared[string(name[1])] {
			t.Errorf("testdata/attacks.md names %s, which no file declares", name[1])
		}
	}
}

// documentedCommand is a command of ours in a document: a whole line of a block, or quoted in a
// text.
var documentedCommand = regexp.MustCompile("(?m)(?:^\\$? *|`)tidewaiter ([^`\n]*)")

// word is a word of a shell's command line, in quotes or bare.
var word = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)

// TestDocumentedCommands: each command that a document or `tidewaiter explain` gives is one, and
// has the flags that it is given.
func TestDocumentedCommands(t *testing.T) {
	t.Parallel()
	documents := []string{"../../README.md"}
	for _, pattern := range []string{"../../docs/*.md", "../../docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, found...)
	}
	commands := 0
	for _, document := range documents {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		unfolded := strings.ReplaceAll(string(text), "\\\n", " ")
		for _, line := range documentedCommand.FindAllStringSubmatch(unfolded, -1) {
			var args []string
			for _, w := range word.FindAllString(line[1], -1) {
				if strings.ContainsAny(w[:1], "#|>&;<\\") {
					break
				}
				args = append(args, strings.Trim(w, `'"`))
			}
			if len(args) == 0 || args[0] == "VERB" || args[0] == "is" { // a line that a server prints
				continue
			}
			commands++
			cmd, rest, err := newRootCommand().Find(args)
			if err == nil {
				err = cmd.ParseFlags(rest)
			}
			// Texts name a flag without its argument.
			if err != nil && !errors.Is(err, pflag.ErrHelp) && !strings.Contains(err.Error(), "flag needs an argument") {
				t.Errorf("%s: tidewaiter %s: %v", document, line[1], err)
			}
		}
	}
	if commands < 100 {
		t.Errorf("the documents have %d commands", commands)
	}
}

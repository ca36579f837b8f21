package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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

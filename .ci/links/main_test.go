package main

import (
	"slices"
	"testing"
	"testing/fstest"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	repository := fstest.MapFS{
		"README.md": {Data: []byte("# A\n[good](docs/a.md#two-words) [here](#a) [out](https://example.com/x.md)\n" +
			"[gone](docs/b.md) [no heading](docs/a.md#code) [nor here](#b)\n```\n[not text](nowhere)\n```\n`[nor this](nowhere)`\n")},
		"docs/a.md": {Data: []byte("# One\n\n## Two words\n```\n# code\n```\n")},
		"main.go":   {Data: []byte("// See docs/a.md, and docs/gone.md.\n")},
	}
	got, links := check(repository, []string{"README.md", "docs/a.md", "main.go", "deleted.md"})
	want := []string{
		"README.md links to docs/b.md, which does not exist",
		"README.md links to docs/a.md#code, and docs/a.md has no such heading",
		"README.md links to #b, and README.md has no such heading",
		"main.go names docs/gone.md, which does not exist",
	}
	if !slices.Equal(got, want) || links != 5 {
		t.Errorf("%d links, %q", links, got)
	}
}

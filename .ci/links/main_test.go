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

func TestStale(t *testing.T) {
	t.Parallel()
	repository := fstest.MapFS{
		"docs/a.md":                  {Data: []byte("`importer/pull`, `importer/pull.Look`, `importer/pull/look.go`, `TestLook`; `importer/spool`, `importer/pull.Ask`, `importer/pull/ask.go`, `TestAsk`, importer/prose\n")},
		"importer/pull/look.go":      {Data: []byte("package pull\n\n// Look is not importer/ahead.Look.\n// See [Look], [pull.Look], [Gone], [Look.Gone], [pull.Gone] and [http.Client]; [Gone](x) [Gone]: x.\nfunc Look() {}\n\nvar x = 1 // db/code\n")},
		"importer/pull/look_test.go": {Data: []byte("package pull\n\nfunc TestLook(t *testing.T) {}\n")},
	}
	got := stale(repository, []string{"docs/a.md", "importer/pull/look.go", "importer/pull/look_test.go"})
	want := []string{
		"docs/a.md names TestAsk, and no test is called so",
		"docs/a.md names importer/pull.Ask, which does not exist",
		"docs/a.md names importer/pull/ask.go, which does not exist",
		"docs/a.md names importer/spool, which does not exist",
		"importer/pull/look.go links to [Gone], which does not exist",
		"importer/pull/look.go links to [Look.Gone], which does not exist",
		"importer/pull/look.go links to [pull.Gone], which does not exist",
		"importer/pull/look.go names importer/ahead.Look, which does not exist",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestUnknown(t *testing.T) {
	t.Parallel()
	repository := fstest.MapFS{
		"docs/reference/flags.md":   {Data: []byte("`--grace`, `--data-dir`\n")},
		"docs/reference/metrics.md": {Data: []byte("`tidewaiter_running_pods`\n")},
		"docs/a.md": {Data: []byte("```\n$ tidewaiter prune --grace 1h --data-dir x | head --lines 1\nkubectl annotate tidewaiter.dev/prune=disabled\n" +
			"helm install tidewaiter --set x\n```\n`tidewaiter_running_pods`, `NoPolicy`, `tidewaiter:pruner`, `TestAsk`\n")},
		"docs/b.md": {Data: []byte("`tidewaiter prune --gracious`, tidewaiter_gone_pods, `NoSuchReason`, tidewaiter.dev/gone, tidewaiter:goner\n")},
		"a.go":      {Data: []byte("package a\n\nvar x = []string{\"NoPolicy\", \"tidewaiter.dev/prune\", \"tidewaiter:pruner\"}\n")},
		"a_test.go": {Data: []byte("package a // NoSuchReason\n")},
	}
	got := unknown(repository, []string{"docs/reference/flags.md", "docs/reference/metrics.md", "docs/a.md", "docs/b.md", "a.go", "a_test.go"})
	want := []string{
		"docs/b.md names --gracious, which the program does not have",
		"docs/b.md names NoSuchReason, which the program does not have",
		"docs/b.md names tidewaiter.dev/gone, which the program does not have",
		"docs/b.md names tidewaiter:goner, which the program does not have",
		"docs/b.md names tidewaiter_gone_pods, which the program does not have",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func TestUnnamed(t *testing.T) {
	t.Parallel()
	repository := fstest.MapFS{
		"docs/a.md":       {Data: []byte("`pull.Look` in `look.go`, `http.Client`; `pull.Ask` in `ask.go`, and `github.com/x/pull/pull.go`\n")},
		"a/pull/look.go":  {Data: []byte("package pull\n\n// Look reads. most is a bound. whole is true. See ahead.Look, ahead.Gone and later.go.\nfunc Look(whole bool) {}\n\n// lookAgain looks.\nfunc again() {}\n")},
		"a/ahead/look.go": {Data: []byte("package ahead\n\nfunc Look() {}\n")},
		"a/other.go":      {Data: []byte("package a\n\nimport (\n\t\"example.com/x/pull\"\n)\n\n// It is pull.Elsewhere.\nvar x = pull.Elsewhere\n")},
	}
	got := unnamed(repository, []string{"docs/a.md", "a/pull/look.go", "a/ahead/look.go", "a/other.go"})
	want := []string{
		`a/pull/look.go names ahead.Gone, which does not exist`,
		`a/pull/look.go names later.go, which does not exist`,
		`a/pull/look.go: a comment is about lookAgain, which "func again()" does not have`,
		`a/pull/look.go: a comment is about most, which "func Look(whole bool)" does not have`,
		"docs/a.md names ask.go, which does not exist",
		"docs/a.md names pull.Ask, which does not exist",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

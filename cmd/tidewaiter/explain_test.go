package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/cmd/internal/meanings"
	"github.com/tidewaiter/tidewaiter/internal/cli"
)

var writeMeanings = flag.String("write-meanings", "", "file to write the reference of verdicts and reasons to")

const meaningsDocument = "../../docs/reference/reasons.md"

// TestMeaningsDocument: docs/reference/reasons.md has what the verb explain says. To write it
// again:
//
//	go test ./cmd/tidewaiter -run TestMeaningsDocument -write-meanings ../../docs/reference/reasons.md
func TestMeaningsDocument(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("# Verdicts and reasons\n\n<!-- Written by TestMeaningsDocument in cmd/tidewaiter. -->\n\n`tidewaiter explain WORD` prints the same.\n")
	kind := ""
	for _, m := range meanings.All() {
		if m.Kind != kind {
			kind = m.Kind
			fmt.Fprintf(&b, "\n## %s\n\n| Word | Meaning | What to do |\n|---|---|---|\n", map[string]string{
				meanings.Verdict: "Verdicts", meanings.Reason: "Reasons of verdicts and of signatures' conditions", meanings.Import: "Reasons of failed imports",
			}[kind])
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", m.Word, m.Means, m.Next)
	}
	if *writeMeanings != "" {
		if err := os.WriteFile(*writeMeanings, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(meaningsDocument)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Errorf("%s is not up to date; run: go test ./cmd/tidewaiter -run TestMeaningsDocument -write-meanings %s", meaningsDocument, meaningsDocument)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"explain", "Unsigned"}, cli.ExitOK, []string{"Unsigned (verdict)", "What to do: Sign the image"}},
		{[]string{"explain", "digestmismatch"}, cli.ExitOK, []string{"DigestMismatch (reason)", "DigestMismatch (import reason)"}},
		{[]string{"explain", "Unknown:SearchIncomplete"}, cli.ExitOK, []string{"Unknown (verdict)", "SearchIncomplete (reason)"}},
		{[]string{"explain", "Unsinged"}, cli.ExitUsage, []string{`"Unsinged" is not a verdict or a reason`, "did you mean Unsigned?"}},
		{[]string{"explain"}, cli.ExitOK, []string{"KIND", "RateLimited"}},
		{[]string{"explain", "-o", "json", "NoPolicy"}, cli.ExitOK, []string{`"word": "NoPolicy"`}},
		{[]string{"explain", "-o", "yaml", "NoPolicy"}, cli.ExitOK, []string{"items:", "word: NoPolicy"}},
		{[]string{"explain", "-o", "name", "NoPolicy"}, cli.ExitOK, []string{"NoPolicy"}},
	} {
		var out strings.Builder
		if code := run(t.Context(), tt.args, nil, &out, &out); code != tt.code {
			t.Errorf("%q exits %d, want %d:\n%s", tt.args, code, tt.code, out.String())
		}
		for _, want := range tt.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q has no %q:\n%s", tt.args, want, out.String())
			}
		}
	}
}

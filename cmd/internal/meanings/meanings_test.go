package meanings

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

// constants returns the values of string constants of the package in dir. Their names begin with
// prefix, and their type, if they have one, is named Reason.
func constants(t *testing.T, dir, prefix string) (values []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no sources: %v", dir, err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 || !strings.HasPrefix(spec.Names[0].Name, prefix) {
				return true
			}
			ofType := ""
			switch x := spec.Type.(type) {
			case *ast.Ident:
				ofType = x.Name
			case *ast.SelectorExpr:
				ofType = x.Sel.Name
			}
			literal, ok := spec.Values[0].(*ast.BasicLit)
			if ok && literal.Kind == token.STRING && ofType == "Reason" {
				value, err := strconv.Unquote(literal.Value)
				if err != nil {
					t.Fatal(err)
				}
				values = append(values, value)
			}
			return true
		})
	}
	return values
}

// Every declared reason, and every verdict, has exactly one meaning of its kind.
func TestEveryWordHasAMeaning(t *testing.T) {
	declared := map[string][]string{
		Verdict: verdicts.All,
		Reason:  append(constants(t, "../../../signatures", "Reason"), constants(t, "../../../signatures/evidence", "")...),
		Import:  constants(t, "../../../importer/pull", ""),
	}
	known := map[string][]string{}
	for _, m := range All() {
		if slices.Contains(known[m.Kind], m.Word) {
			t.Errorf("the %s %s has two meanings", m.Kind, m.Word)
		}
		known[m.Kind] = append(known[m.Kind], m.Word)
	}
	for kind, words := range declared {
		if len(words) < 7 {
			t.Errorf("only %d words of the kind %q were found", len(words), kind)
		}
		for _, word := range words {
			if !slices.Contains(known[kind], word) {
				t.Errorf("the %s %s has no meaning", kind, word)
			}
		}
	}
}

func TestOf(t *testing.T) {
	for word, want := range map[string]int{"DigestMismatch": 2, "digestmismatch": 2, "Excepted": 2, "NoPolicy": 1, "NotImported": 1, "Unreadable": 1, "no such word": 0} {
		if got := Of(word); len(got) != want {
			t.Errorf("Of(%q) = %v, want %d", word, got, want)
		}
	}
}

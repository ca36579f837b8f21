package rooms

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// textReaders are the files that look into a message, with whose it is: of a library that gives no
// reason, or of several parts that people read together. What this program says itself has a
// reason, a field or an error that others compare.
var textReaders = map[string]string{
	"internal/cli/explain.go":                     "Kubernetes and net/http",
	"imageapi/registry/image/rest.go":             "apimachinery's merge patches",
	"signatures/internal/gpg/envelope.go":         "openpgp",
	"signatures/internal/sigstore/certificate.go": "sigstore-go",
	"signatures/internal/sigstore/demands.go":     "sigstore-go",
	"signatures/internal/sigstore/key.go":         "crypto/ecdsa and sigstore",
	"signatures/policyapi/serializer.go":          "encoding/json",
	"importer/pull/errors.go":                     "a host and a part are added to a message that lacks them",
}

// messages are the fields whose text is for people.
var messages = []string{"Message", "message", "Why", "why"}

// textsIn returns the variables of a file that get the text of an error.
func textsIn(file *ast.File) map[string]bool {
	texts := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		if set, ok := n.(*ast.AssignStmt); ok && len(set.Lhs) == len(set.Rhs) {
			for i, value := range set.Rhs {
				if name, ok := set.Lhs[i].(*ast.Ident); ok && isErrorText(value) {
					texts[name.Name] = true
				}
			}
		}
		return true
	})
	return texts
}

// isErrorText reports whether an expression is the text of an error.
func isErrorText(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) > 0 {
		return false
	}
	of, ok := call.Fun.(*ast.SelectorExpr)
	return ok && of.Sel.Name == "Error"
}

// readsText reports whether a call is one of package strings about the text of an error or of a
// message. texts are variables with such a text.
func readsText(call *ast.CallExpr, texts map[string]bool) bool {
	of, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) == 0 {
		return false
	}
	if in, ok := of.X.(*ast.Ident); !ok || in.Name != "strings" || slices.Contains([]string{"TrimSpace", "ToValidUTF8", "NewReader", "Join", "ReplaceAll", "ToLower"}, of.Sel.Name) {
		return false
	}
	switch text := call.Args[0].(type) {
	case *ast.SelectorExpr:
		return slices.Contains(messages, text.Sel.Name)
	case *ast.StarExpr:
		return false
	case *ast.Ident:
		return texts[text.Name]
	}
	return isErrorText(call.Args[0])
}

// No text is a protocol: nothing is decided by the words of a message that the program has written
// itself.
func TestNoTextIsAProtocol(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	eachSource(t, func(path string, set *token.FileSet, file *ast.File) {
		texts := textsIn(file)
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && readsText(call, texts) {
				if textReaders[path] != "" {
					used[path] = true
				} else {
					t.Errorf("%s looks into a message: give what it says a reason, a field or an error", set.Position(call.Pos()))
				}
			}
			return true
		})
	})
	for name, of := range textReaders {
		if _, err := os.Stat(filepath.Join("..", "..", name)); err != nil || !used[name] {
			t.Errorf("%s looks into no message (%s): it needs no exception", name, of)
		}
	}
}

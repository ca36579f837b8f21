package web

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// leftOut are the filters that the default chain of a server has and ours has not, with the reason.
var leftOut = map[string]string{
	"WithCORS":                    "no origins can be configured",
	"WithHSTS":                    "no directives can be configured",
	"WithImpersonation":           "WithConstrainedImpersonation takes its place, as the feature is on by default",
	"WithPriorityAndFairness":     "it needs its own API objects and their controller; limits.WithRequestLimits bounds requests of administrators, too",
	"WithProbabilisticGoaway":     "it spreads clients over servers, and there is one",
	"WithRetryAfter":              "it sends clients to another server, and there is none",
	"WithRoutine":                 "it saves the stack of a watch's preparation; watches of stored bytes are written where they are prepared",
	"WithMuxAndDiscoveryComplete": "it marks 404s from before all paths are known, and all are before the server listens",
}

// calls returns the names of the filters, after a qualifier, that a function of a file calls.
func calls(t *testing.T, file, function string) map[string]bool {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == function && fn.Recv == nil {
			ast.Inspect(fn, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if s, ok := call.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(s.Sel.Name, "With") {
						names[s.Sel.Name] = true
					}
				}
				return true
			})
		}
	}
	return names
}

// When Kubernetes adds a filter to its chain, it must be added here, or left out for a reason.
func TestChainIsKubernetesChain(t *testing.T) {
	pkg, err := build.Import("k8s.io/apiserver/pkg/server", ".", build.FindOnly)
	if err != nil {
		t.Fatal(err)
	}
	theirs := calls(t, filepath.Join(pkg.Dir, "config.go"), "DefaultBuildHandlerChain")
	ours := calls(t, "chain.go", "handlerChain")
	if len(theirs) < 20 {
		t.Fatalf("Kubernetes' chain has %d filters: it was not found", len(theirs))
	}
	for name := range theirs {
		if reason, left := leftOut[name]; ours[name] == left {
			t.Errorf("%s: in our chain %v, reason not to be: %q", name, ours[name], reason)
		}
	}
	for name := range leftOut {
		if !theirs[name] {
			t.Errorf("%s is left out, and Kubernetes' chain has it no longer", name)
		}
	}
}

package rooms

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ways are what may be done in one way only, with the functions that do it and who may call them:
// files, or folders with all that is below them. A function is that of a package of ours, as
// signatures.Ask, or a method by its name alone; with () only where it is called, if a field has
// the name, too.
var ways = []struct {
	what      string
	functions []string
	callers   []string
}{
	{"find out what a reference leads to: ask imageapi/answers", []string{"internal/image/tags.Now"}, []string{
		"imageapi/registry/image/named.go", // where a tag has led since a pod began
		"internal/controllers/notices",     // says what changed, before and after
		"imageapi/answers",
		// keep and show histories
		"imageapi/registry/imagetag", "imageapi/registry/imagestream", "imageapi/registry/imagestreamimport/tags.go",
		"importer", "internal/image/record", // write histories
		"imageapi/registry/imagerecord", // answers its writers what is recorded
	}},
	{"complete a reference that a person has shortened: ask imageapi/answers", []string{"internal/image/selectors.TagShort"}, []string{
		"imageapi/answers/resolve.go",
		"imageapi/registry/imagetag/storage.go", // has the index
	}},
	{"choose the verdict for a reference: ask imageapi/answers", []string{"signatures.Ask", "signatures.AskAnyway", "signatures.PoliciesFor"}, []string{
		"imageapi/answers/judge.go",
		"imageapi/answers/admission.go",   // which policies an image that is not stored waits for
		"imageapi/answers/resolve.go",     // which of several names counts
		"imageapi/answers/impact_acts.go", // as the policies of an act choose
	}},
	{"choose among the verdicts of an image: internal/image/verdicts and the storage of images do", []string{
		"internal/image/annotation.Judged", "internal/image/annotation.JudgedInNamespaces", "internal/image/annotation.JudgedAnywhere", "internal/image/annotation.JudgedFor", "internal/image/verdicts.Worse", "internal/image/verdicts.Worst",
	}, []string{
		"signatures", "internal/controllers/reverify",
		"imageapi/registry/image/fields.go", "imageapi/registry/image/indexverdict.go",
		// who vouches for an SBOM where a reference has it
		"internal/image/packages/vouch.go",
		// of an image that was just judged by --policy, without a server
		"cmd/tidewaiter/verify.go", "cmd/tidewaiter/verify_index.go",
	}},
	{"sum up the verdicts of an image: the storage of images does", []string{"signatures.Summary", "signatures.Attested", "signatures.Held"}, []string{
		"imageapi/registry/image/facts.go",
		"internal/controllers/inventory", // counts them
		// of an image that was just judged by --policy, without a server
		"cmd/tidewaiter/verify.go",
		"internal/controllers/reverify", // says what changed
		"cmd/internal/demo/demo.go",     // waits for the verdicts
		"internal/controllers/notices",  // says what changed
	}},
	{"judge: imageapi/answers does", []string{"Judge"}, []string{
		"imageapi/answers/answer.go", "imageapi/registry/image/asked.go",
		"imageapi/registry/imagestream/promotion.go", // asks imageapi/answers
		"web/admission/handler.go",                   // asks the Admitter, which asks imageapi/answers
	}},
	{"admit: imageapi/answers does", []string{"Admit"}, []string{
		"internal/server/admission.go", // gives the answer to web/admission
		"web/cluster.go",               // Kubernetes' admission to namespaces
	}},
	{"count or name the pods and the workloads of an image: imageapi/registry/image/use.go does", []string{"PodsUsing", "UsedBy", "Users", "NeededBy()", "InUse"}, []string{
		"imageapi/registry/image/use.go",
		// which indexes are used, so that use.go counts by them
		"imageapi/registry/image/indexes.go",
		"imageapi/answers/answer.go",          // asks use.go
		"imageapi/answers/impact_use.go",      // asks use.go
		"imageapi/answers/impact_unstored.go", // whom it knows of those that run what is not stored
		"imageapi/registry/imagestream",       // what is needed, by the storage of images
	}},
}

// module is the path of this module.
const module = "github.com/tidewaiter/tidewaiter/"

// called is a function that is named somewhere.
type called struct {
	function string
	at       token.Position
}

// namesIn returns the functions of our packages, and the methods, that a file names.
func namesIn(set *token.FileSet, file *ast.File) (all []called) {
	packages := map[string]string{}
	for _, i := range file.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		name := path[strings.LastIndexByte(path, '/')+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		packages[name] = path
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if s, ok := call.Fun.(*ast.SelectorExpr); ok {
				all = append(all, called{s.Sel.Name + "()", set.Position(s.Pos())})
			}
		}
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		function := s.Sel.Name
		if x, ok := s.X.(*ast.Ident); ok && packages[x.Name] != "" {
			path, ours := strings.CutPrefix(packages[x.Name], module)
			if !ours {
				return true
			}
			function = path + "." + function
		}
		all = append(all, called{function, set.Position(s.Pos())})
		return true
	})
	return all
}

// secondWays says which functions a file may not name. path is that of the file in the module; used
// notes who is allowed with a reason, by the way's number and the caller.
func secondWays(path string, names []called, used map[string]bool) (wrong []string) {
	for i, way := range ways {
		for _, name := range names {
			if !slices.Contains(way.functions, name.function) {
				continue
			}
			home := name.function[:max(0, strings.LastIndexByte(name.function, '.'))]
			if home != "" && filepath.Dir(path) == home {
				continue
			}
			at := slices.IndexFunc(way.callers, func(caller string) bool { return path == caller || strings.HasPrefix(path, caller+"/") })
			if at < 0 {
				wrong = append(wrong, fmt.Sprintf("%s:%d names %s: there is one way to %s", path, name.at.Line, name.function, way.what))
				continue
			}
			used[fmt.Sprint(i, way.callers[at])] = true
		}
	}
	return wrong
}

// eachSource calls visit with each file of Go but those of tests, and its path in the module.
func eachSource(t *testing.T, visit func(path string, set *token.FileSet, file *ast.File)) {
	t.Helper()
	root, files := filepath.Join("..", ".."), 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		in, err := filepath.Rel(root, path)
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == "testdata" || in == "e2e" || strings.HasPrefix(name, ".") && in != "."):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files++
		visit(filepath.ToSlash(in), set, file)
		return nil
	})
	if err != nil || files < 100 {
		t.Fatalf("%d files were read, %v", files, err)
	}
}

// One place answers a question: nobody else resolves a reference, chooses a verdict or counts what
// runs.
func TestThereIsNoSecondWay(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	eachSource(t, func(path string, set *token.FileSet, file *ast.File) {
		for _, wrong := range secondWays(path, namesIn(set, file), used) {
			t.Error(wrong)
		}
	})
	for i, way := range ways {
		for _, caller := range way.callers {
			if _, err := os.Stat(filepath.Join("..", "..", caller)); err != nil || !used[fmt.Sprint(i, caller)] {
				t.Errorf("%s names none of %v: it needs no exception (%v)", caller, way.functions, cmp.Or(err, nil))
			}
		}
	}
}

// The rule sees a second way under another name of the package, as a value that is passed on, and
// as a method of anything.
func TestSecondWaysAreSeen(t *testing.T) {
	const file = `package main

import (
	"github.com/other/signatures"
	verify "github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
)

func second(u usage) {
	digest, _ := tags.Now(nil)
	ask := verify.Ask
	u.index.PodsUsing([]string{digest}, nil)
	count := u.NeededBy("")
	signatures.Ask()
	tags.Name()
}
`
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, "second.go", file, 0)
	if err != nil {
		t.Fatal(err)
	}
	names := namesIn(set, parsed)
	wrong := strings.Join(secondWays("cmd/tidewaiter/second.go", names, map[string]bool{}), "\n")
	for _, want := range []string{"second.go:10 names internal/image/tags.Now", "second.go:11 names signatures.Ask", "second.go:12 names PodsUsing", "second.go:13 names NeededBy"} {
		if !strings.Contains(wrong, want) {
			t.Errorf("it is not seen that %s:\n%s", want, wrong)
		}
	}
	if n := strings.Count(wrong, "\n") + 1; n != 4 {
		t.Errorf("%d second ways:\n%s", n, wrong)
	}
	if wrong := secondWays("imageapi/answers/second.go", names, map[string]bool{}); len(wrong) != 3 {
		t.Errorf("who may find out what a reference leads to may not choose verdicts and count: %v", wrong)
	}
}

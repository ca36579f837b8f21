package table_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/table"
)

func TestQuantity(t *testing.T) {
	for want, got := range map[string]string{
		"0 images": table.Quantity(0, "image"), "1 image": table.Quantity(int64(1), "image"), "2 images": table.Quantity(int32(2), "image"),
		"2 repositories": table.Quantity(2, "repository"), "2 keys": table.Quantity(2, "key"), "2 days": table.Quantity(2, "day"), "2 indexes": table.Quantity(2, "index"), "2 pushes": table.Quantity(2, "push"),
		"1 pod runs": table.Clause(1, "pod", "run"), "0 pods run": table.Clause(0, "pod", "run"), "1 object is": table.Clause(1, "object", "are"),
		"1 image has": table.Clause(1, "image", "have"), "1 signature was": table.Clause(1, "signature", "were"), "2 policies do": table.Clause(2, "policy", "do"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// plural is a number and a noun for several, and fixed what stands before a number that is a bound,
// which is always more than one.
var (
	plural = regexp.MustCompile(`%d [a-z ]{0,12}?[a-z]+[^s\W]s\b`)
	fixed  = regexp.MustCompile(`(?:at most|at least|over|more than|longer than|first|newest|last|the policy's|limit of|there are|after|in|version|revision|page|key of|secret) $|^--[a-z-]+ $`)
	bound  = regexp.MustCompile(`at most|must have|must hold|must be|holds 64`)
)

// bounds are messages in which a number is a constant, or is more than one for another reason.
var bounds = []string{
	"%d pages of %d", "refuse %d of the pods", "%d pod logs are being read", "transform or decode %d objects", "first %d of %d tags", "the base %s lists %d images", "%d imports of this user",
	"%d helpers run", "%d times what was read", "has nothing in %d of %d repositories", "%d of %d references could not be judged", "is empty or deleted: %d references", "%d times in the meantime", "%d of its packages", "holds %d keys; several", "%d labels",
}

// A message that counts things counts one of them in the singular: it calls Quantity or Clause.
// Bounds, what is over one, bytes and digits are left as they are.
func TestNoMessageCountsOneAsSeveral(t *testing.T) {
	root, read := filepath.Join("..", ".."), 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "e2e" || entry.Name() == "deploy" || strings.HasPrefix(entry.Name(), ".") && path != root):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(entry.Name(), "zz_generated"):
			return nil
		}
		read++
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			text, ok := node.(*ast.BasicLit)
			if !ok || text.Kind != token.STRING {
				return true
			}
			for _, at := range plural.FindAllStringIndex(text.Value, -1) {
				found := text.Value[at[0]:at[1]]
				if !bound.MatchString(text.Value) && !slices.ContainsFunc(bounds, func(words string) bool { return strings.Contains(text.Value, words) }) && !fixed.MatchString(strings.TrimLeft(text.Value[:at[0]], "\"`")) && !strings.HasSuffix(found, " bytes") && !strings.HasSuffix(found, " digits") && !strings.HasSuffix(found, " characters") {
					t.Errorf("%s: %s", files.Position(text.Pos()), text.Value)
				}
			}
			return true
		})
		return nil
	})
	if err != nil || read < 100 {
		t.Fatalf("%d files were read, %v", read, err)
	}
}

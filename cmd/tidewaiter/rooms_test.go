package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// makesRoom are the functions that make something with a bounded number of places. Calls of them
// within one another are no further room.
var makesRoom = []string{
	"semaphore.NewWeighted", "room.New", "room.NewMemory", "limits.NewBodies", "limits.NewTurns", "limits.NewConnections",
	"newClass", "newShared", "newTurns", "newPlaces", "newWaitSlots", "NewBodies", "NewTurns", "NewMemory", "NewConnections",
	"rate.NewLimiter", "flowcontrol.NewTokenBucketPassiveRateLimiter", "flowcontrol.NewTokenBucketPassiveRateLimiterWithClock", "flowcontrol.NewTokenBucketRateLimiter",
}

// sharesWork are the types of fields by which callers wait for one of them.
var sharesWork = []string{"singleflight.Group", "singleflight"}

// TestRoomsDocument: each room that the code shares among callers is in the table of rooms, which
// says who fills it and who waits, and each name in the table is in the code. A room is what one of
// makesRoom makes, the limit of an errgroup, a channel in which a blocking send of struct{}{} takes
// a place, or one from which something is taken and put back at the end, a channel with a named
// number of places, work that several share, or a bound of connections. Commands have rooms of
// their own.
func TestRoomsDocument(t *testing.T) {
	const document = "../../docs/design/security.md"
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "## Rooms that many share")
	if !found {
		t.Fatalf("%s has no table of rooms", document)
	}
	rooms, names := map[string]token.Position{}, map[string]bool{}
	files := token.NewFileSet()
	root := filepath.Join("..", "..")
	err = filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{"cmd", "e2e", "testdata"}, d.Name()) || strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 || strings.HasSuffix(d.Name(), "test")):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}
		parsed, err := parser.ParseFile(files, file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		for name, at := range roomsOf(parsed) {
			rooms[path.Join(filepath.ToSlash(folder))+"."+name] = files.Position(at)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				names[filepath.ToSlash(folder)+"."+id.Name] = true
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, match := range regexp.MustCompile("`([a-z/0-9]+\\.[A-Za-z]+)`").FindAllStringSubmatch(table, -1) {
		documented[match[1]] = true
		if !names[match[1]] {
			t.Errorf("%s: there is no %s", document, match[1])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rooms)) {
		if !documented[name] {
			t.Errorf("%s: `%s` is not in the table of rooms: who fills it, and who waits?", rooms[name], name)
		}
	}
}

// roomsOf finds the rooms of a file, by the name of what holds each, or of the function that makes
// it.
func roomsOf(file *ast.File) map[string]token.Pos {
	rooms := map[string]token.Pos{}
	var within []ast.Node // from the file to the node
	ast.Inspect(file, func(n ast.Node) bool {
		if n == nil {
			within = within[:len(within)-1]
			return true
		}
		within = append(within, n)
		function, holder, waits, deferred := "", "", true, false
		for i, outer := range within {
			switch outer := outer.(type) {
			case *ast.FuncDecl:
				function, holder = outer.Name.Name, ""
			case *ast.KeyValueExpr:
				if holder = lastName(outer.Key); holder == "MaxConnsPerHost" && n == outer {
					rooms[function] = n.Pos()
				}
			case *ast.AssignStmt:
				holder = lastName(outer.Lhs[0])
			case *ast.ValueSpec:
				holder = outer.Names[0].Name
			case *ast.DeferStmt:
				deferred = true
			case *ast.SelectStmt: // with a default, a send wakes somebody and waits for nothing
				comm := within[min(i+2, len(within)-1)]
				waits = !slices.ContainsFunc(outer.Body.List, func(s ast.Stmt) bool { return s.(*ast.CommClause).Comm == nil }) || comm == nil
			}
		}
		switch n := n.(type) {
		case *ast.CallExpr:
			switch made := callee(n); {
			case strings.HasSuffix(made, ".SetLimit") && made != "Raw.SetLimit":
				rooms[function] = n.Pos()
			case made == "make" && len(n.Args) == 2 && isQueue(n), slices.Contains(makesRoom, made) && !slices.Contains(makesRoom, function):
				if holder == "" {
					holder = function
				}
				rooms[holder] = n.Pos()
			}
		case *ast.Field:
			if slices.Contains(sharesWork, qualified(n.Type)) && len(n.Names) == 1 {
				rooms[n.Names[0].Name] = n.Pos()
			}
		case *ast.SendStmt:
			if _, ok := n.Value.(*ast.CompositeLit); (ok || deferred) && waits {
				rooms[lastName(n.Chan)] = n.Pos()
			}
		}
		return true
	})
	return rooms
}

// isQueue reports whether a channel is made with a number of places that has a name.
func isQueue(call *ast.CallExpr) bool {
	_, channel := call.Args[0].(*ast.ChanType)
	_, literal := call.Args[1].(*ast.BasicLit)
	return channel && !literal
}

// callee is the name of what is called, with the name before it.
func callee(call *ast.CallExpr) string { return qualified(call.Fun) }

// qualified is the last name of an expression, with the name before it.
func qualified(e ast.Expr) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		return lastName(s.X) + "." + s.Sel.Name
	}
	return lastName(e)
}

func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// docs/design/rooms.md says of each task whether one server of several runs it, or every one.
func TestTasksDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/design/rooms.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]+`) \\| (one|every) \\|").FindAllStringSubmatch(string(text), -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			documented[name[1]] = row[2] == "one"
		}
	}
	sources, err := filepath.Glob("../../internal/server/*.go")
	if err != nil {
		t.Fatal(err)
	}
	tasks := map[string]bool{}
	for _, source := range sources {
		code, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range strings.Split(string(code), `Task{Name: "`)[1:] {
			name, rest, _ := strings.Cut(task, `"`)
			tasks[name] = strings.Contains(rest, "One: true")
		}
	}
	if len(tasks) < 20 || !maps.Equal(tasks, documented) {
		t.Errorf("the tasks are %v, documented are %v", tasks, documented)
	}
}

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
)

// A room is a package: its files, and which of them name what of which.
type room struct {
	path  string
	files []string
	lines int
	arrow [][]bool // from, to
}

// load reads packages of the module in dir, all of them if none is named.
func load(dir string, patterns ...string) ([]*room, error) {
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Dir,Name,Export,DepOnly,GoFiles,CgoFiles,Error"}, patterns...)...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	type listed struct {
		ImportPath, Dir, Name, Export string
		DepOnly                       bool
		GoFiles, CgoFiles             []string
	}
	exports := map[string]string{}
	var packages []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		exports[p.ImportPath] = p.Export
		if !p.DepOnly {
			packages = append(packages, p)
		}
	}
	fset := token.NewFileSet()
	compiled := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	var rooms []*room
	for _, p := range packages {
		var files []*ast.File
		for _, name := range append(p.GoFiles, p.CgoFiles...) {
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, file)
		}
		r, err := read(p.ImportPath, fset, files, compiled)
		if err != nil {
			return nil, err
		}
		rooms = append(rooms, r)
	}
	return rooms, nil
}

// read finds the arrows between the files of a package.
func read(path string, fset *token.FileSet, files []*ast.File, imports types.Importer) (*room, error) {
	info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: imports, FakeImportC: true}
	checked, err := config.Check(path, fset, files, info)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r, number := &room{path: path}, map[string]int{}
	for _, file := range files {
		if ast.IsGenerated(file) {
			continue
		}
		of := fset.File(file.FileStart)
		number[of.Name()] = len(r.files)
		r.files = append(r.files, filepath.Base(of.Name()))
		r.lines += of.LineCount()
	}
	r.arrow = make([][]bool, len(r.files))
	for i := range r.arrow {
		r.arrow[i] = make([]bool, len(r.files))
	}
	for name, object := range info.Uses {
		if object.Pkg() != checked || !object.Pos().IsValid() {
			continue
		}
		from, counts := number[fset.File(name.Pos()).Name()]
		to, countsToo := number[fset.File(object.Pos()).Name()]
		if counts && countsToo && from != to {
			r.arrow[from][to] = true
		}
	}
	return r, nil
}

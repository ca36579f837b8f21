package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// conformance is the program with all of Kubernetes' end-to-end specs.
func conformance() tool {
	return withStaging("e2e.test", kubernetes, "/test/e2e", "Kubernetes' own end-to-end specs (some minutes to build)", "test", "-vet=off", "-c")
}

// withStaging is a program of Kubernetes, or of a module that it requires, made by `go` with the
// arguments.
func withStaging(name, module, pkg, what string, args ...string) tool {
	return staged(name, module, requiredVersion(module), pkg, what, append(args, "-ldflags", versionFlags(requiredVersion(kubernetes)))...)
}

// staged is a program made by `go` with the arguments. It needs modules of Kubernetes that nothing
// else here does, so it is built in a copy of our module that requires them, too: our go.mod stays
// short, and most packages come from the compile cache.
func staged(name, module, version, pkg, what string, args ...string) tool {
	return tool{
		name: name, version: version, what: what,
		present: func(d dirs) bool { return builtFrom(filepath.Join(d.bin, name), module, version) },
		install: func(d dirs) error {
			copied, err := os.MkdirTemp("", "tidewaiter-tools-*")
			if err != nil {
				return err
			}
			defer os.RemoveAll(copied)
			for _, file := range []string{"go.mod", "go.sum"} {
				if err := copyFile(filepath.Join(copied, file), filepath.Join(d.module, file)); err != nil {
					return err
				}
			}
			edits, err := stagingRequirements(requiredVersion(kubernetes))
			if err != nil {
				return err
			}
			if err := command(copied, nil, "go", append([]string{"mod", "edit", "-require=" + module + "@" + version}, edits...)...); err != nil {
				return err
			}
			return command(copied, nil, "go", append(args, "-mod=mod", "-o", filepath.Join(d.bin, name), module+pkg)...)
		},
	}
}

// stagingRequirements are edits of a go.mod that require the modules which
// Kubernetes develops in its own repository. Its go.mod names them v0.0.0; those
// of release 1.2.3 are published as v0.2.3.
func stagingRequirements(version string) (edits []string, err error) {
	folder, err := download(kubernetes, version)
	if err != nil {
		return nil, err
	}
	out, err := exec.Command("go", "mod", "edit", "-json", filepath.Join(folder, "go.mod")).Output()
	if err != nil {
		return nil, fmt.Errorf("reading go.mod of %s: %w", kubernetes, err)
	}
	var file struct {
		Require []struct{ Path, Version string }
	}
	if err := json.Unmarshal(out, &file); err != nil {
		return nil, fmt.Errorf("reading go.mod of %s: %w", kubernetes, err)
	}
	published := "v0" + strings.TrimPrefix(version, "v1")
	for _, r := range file.Require {
		if r.Version == "v0.0.0" {
			edits = append(edits, "-require="+r.Path+"@"+published)
		}
	}
	return edits, nil
}

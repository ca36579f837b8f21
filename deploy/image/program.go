package main

import (
	"debug/buildinfo"
	"debug/elf"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// program is a static program for Linux, with the build information that Go's linker
// wrote into it.
type program struct {
	path     string
	info     *buildinfo.BuildInfo
	platform v1.Platform
}

// openProgram opens a program. It refuses one that cannot run in an otherwise empty
// image.
func openProgram(path string) (*program, error) {
	binary, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s is not a program for Linux: %w", path, err)
	}
	defer binary.Close()
	for _, p := range binary.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, fmt.Errorf("%s is linked dynamically, and the image has no libraries: build it as the Makefile does, with STATIC", path)
		}
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p := &program{path: path, info: info}
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS":
			p.platform.OS = s.Value
		case "GOARCH":
			p.platform.Architecture = s.Value
		}
	}
	return p, nil
}

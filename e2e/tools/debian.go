package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// debianProgram is the program of a Debian package of the same name, and others of it,
// unpacked without being installed. Its version is whatever the machine's release has.
func debianProgram(name, what string, others ...string) tool {
	return tool{
		name: name, version: "Debian's", what: what,
		present: func(d dirs) bool { _, err := os.Stat(filepath.Join(d.bin, name)); return err == nil },
		install: func(d dirs) error {
			tmp, err := os.MkdirTemp("", "tidewaiter-tools-*")
			if err != nil {
				return err
			}
			defer os.RemoveAll(tmp)
			if err := aptDownload(tmp, name); err != nil {
				return err
			}
			debs, err := filepath.Glob(filepath.Join(tmp, name+"_*.deb"))
			if err != nil || len(debs) != 1 {
				return fmt.Errorf("apt-get download %s left %d packages", name, len(debs))
			}
			root := filepath.Join(tmp, "root")
			if err := command(tmp, nil, "dpkg-deb", "-x", debs[0], root); err != nil {
				return err
			}
			for _, program := range append(others, name) {
				if err := copyFile(filepath.Join(d.bin, program), filepath.Join(root, "usr", "bin", program)); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// aptDownload puts a package in a folder. On a machine that has never fetched
// the package lists it fetches them, for which apt wants root.
func aptDownload(dir, name string) error {
	get := func(args ...string) error {
		return command(dir, nil, "apt-get", append([]string{"-q", "-o", "APT::Sandbox::User=root"}, args...)...)
	}
	if get("download", name) == nil {
		return nil
	}
	if err := get("update"); err != nil {
		return fmt.Errorf("%w (run as root once, or do without Debian's registry: go test ./... -registries=distribution)", err)
	}
	return get("download", name)
}

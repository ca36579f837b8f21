package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// maxNPM bounds a file of a package, in bytes.
const maxNPM = 16 << 20

// npmFile is a file of a package of the npm registry, which npm fetches and nobody installs. The
// package is pinned by its integrity, as package-lock.json has it. The file goes to the folder of
// that name.
func npmFile(name, pack, version, integrity, file, what string) tool {
	target := func(d dirs) string { return filepath.Join(d.root, name, file) }
	return tool{
		name: name, version: version, what: what,
		present: func(d dirs) bool {
			have, err := os.ReadFile(target(d) + ".version")
			return err == nil && string(have) == integrity
		},
		install: func(d dirs) error {
			tmp, err := os.MkdirTemp("", "tidewaiter-tools-*")
			if err != nil {
				return err
			}
			defer os.RemoveAll(tmp)
			if err := command(tmp, nil, "npm", "pack", "--silent", pack+"@"+version); err != nil {
				return err
			}
			archive, err := os.ReadFile(filepath.Join(tmp, pack+"-"+version+".tgz"))
			if err != nil {
				return err
			}
			sum := sha512.Sum512(archive)
			if got := "sha512-" + base64.StdEncoding.EncodeToString(sum[:]); got != integrity {
				return fmt.Errorf("%s@%s has the integrity %s, not %s", pack, version, got, integrity)
			}
			content, err := fileOf(archive, "package/"+file)
			if err != nil {
				return fmt.Errorf("%s@%s: %w", pack, version, err)
			}
			if err := os.MkdirAll(filepath.Dir(target(d)), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(target(d), content, 0o644); err != nil {
				return err
			}
			return os.WriteFile(target(d)+".version", []byte(integrity), 0o644)
		},
	}
}

// fileOf reads a file of a compressed archive.
func fileOf(archive []byte, name string) ([]byte, error) {
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	for r := tar.NewReader(zip); ; {
		header, err := r.Next()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if header.Name == name {
			return io.ReadAll(io.LimitReader(r, maxNPM))
		}
	}
}

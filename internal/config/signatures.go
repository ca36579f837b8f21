package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tidewaiter/tidewaiter/importer/guard"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/signatures/find"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// LoadPolicies reads the policies of a file or folder.
func LoadPolicies(path string) (*policy.Set, error) {
	if path == "" {
		return nil, nil
	}
	set, err := policy.Load(path)
	if err != nil {
		return nil, ExplainPolicies(path, err)
	}
	return set, nil
}

// ExplainPolicies adds the way out to an error of reading the policies of a file or folder.
func ExplainPolicies(path string, err error) error {
	switch info, missing := os.Stat(path); {
	case errors.Is(missing, fs.ErrNotExist):
		return cli.WithHint(err, "a policy is in a file, or in a folder, of ClusterImagePolicy documents")
	case missing == nil && !info.IsDir() && !info.Mode().IsRegular():
		return cli.WithHint(err, "write the policies to a file first")
	}
	return cli.WithHint(err, "docs/reference/signatures.md has policies by example")
}

// NewFinder returns a finder of signatures in registries, and in the lookaside storage
// that registries.d files name: those of the configuration, else the user's and the
// system's.
func NewFinder(cfg *Config, demands find.Demands) (*find.Finder, error) {
	networks, err := cfg.allowedNetworks()
	if err != nil {
		return nil, err
	}
	o := find.Options{Lookaside: guard.New(guard.Options{Networks: networks}), Demands: demands}
	if dir := cfg.RegistriesDir; dir != "" {
		if _, err := os.ReadDir(dir); err != nil {
			return nil, cli.WithHint(cfg.Fault("registriesDir", err), "name a folder of registries.d files, or leave it out to use the user's and the system's")
		}
		o.RegistriesDirs = []string{dir}
	}
	return find.New(o)
}

// NewIsolatedFinder returns a finder of signatures in registries, and in lookaside
// storage only if files beside the configuration name it.
func NewIsolatedFinder(cfg *Config, demands find.Demands) (*find.Finder, error) {
	dir := filepath.Dir(cfg.file)
	networks, err := cfg.allowedNetworks()
	if err != nil {
		return nil, err
	}
	return find.New(find.Options{
		RegistriesDirs: []string{filepath.Join(dir, "registries.d")},
		Storage:        filepath.Join(dir, "sigstore"),
		Lookaside:      guard.New(guard.Options{Networks: networks}),
		Demands:        demands,
	})
}

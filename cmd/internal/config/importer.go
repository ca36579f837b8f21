package config

import (
	"fmt"
	"path/filepath"

	"github.com/tidewaiter/tidewaiter/cmd/internal/version"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/containers"
	"github.com/tidewaiter/tidewaiter/web/warn"
)

// ImporterOptions are the options for an importer, from the configuration.
func (c *Config) ImporterOptions() (importer.Options, error) {
	networks, err := c.allowedNetworks()
	return importer.Options{Registries: c.registries(), AllowedNetworks: networks, UserAgent: version.UserAgent()}, err
}

// AddFiles adds the settings of registries in the machine's files.
func (c *Config) AddFiles(to *importer.Options, o containers.Options) (err error) {
	if o.Hosts, err = c.certificates(); err != nil {
		return err
	}
	if o.Mirrors, err = c.mirrors(); err != nil {
		return err
	}
	files, err := containers.New(o)
	if err != nil {
		return fmt.Errorf("reading how to reach registries: %w", err)
	}
	to.Keychain, to.Files = files, files
	return nil
}

// MirrorOf returns what finds the references that a mirror's name stands for, by the configuration and, unless the server is
// isolated, the machine's registries.conf.
func (c *Config) MirrorOf(isolated bool) (func(reference.Reference) []reference.Reference, error) {
	var o importer.Options
	files := containers.Options{}
	if isolated {
		files.Root = filepath.Join(filepath.Dir(c.file), "isolated") // no folder: the machine's files are not read
	}
	if err := c.AddFiles(&o, files); err != nil {
		return nil, err
	}
	known, failures := o.Files.(*containers.Files), &warn.Limiter{}
	return func(ref reference.Reference) []reference.Reference {
		all, err := known.MirrorOf(ref)
		if err != nil {
			failures.Warn("", "The mirrors of registries.conf are unknown, so a mirror's name is taken literally", "err", err)
		}
		return all
	}, nil
}

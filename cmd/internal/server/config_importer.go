package server

import (
	"fmt"

	"github.com/tidewaiter/tidewaiter/cmd/internal/version"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/containers"
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
		return fmt.Errorf("the files that say how registries are reached: %w", err)
	}
	to.Keychain, to.Files = files, files
	return nil
}

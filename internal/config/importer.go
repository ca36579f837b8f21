package config

import (
	"errors"
	"fmt"
	"path/filepath"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/containers"
	"github.com/tidewaiter/tidewaiter/importer/notify"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/version"
	"github.com/tidewaiter/tidewaiter/internal/warn"
)

// ImporterOptions are the options for an importer, from the configuration.
func (c *Config) ImporterOptions() (importer.Options, error) {
	networks, err := c.allowedNetworks()
	return importer.Options{Registries: c.registries(), AllowedNetworks: networks, UserAgent: version.UserAgent()}, err
}

// Notifier returns what tells the receivers of notifications. source is a URI of the server.
func (c *Config) Notifier(source string, clock clock.PassiveClock) (*notify.Notifier, error) {
	networks, err := c.allowedNetworks()
	if err != nil {
		return nil, err
	}
	n, err := notify.New(notify.Options{Source: source, Networks: networks, UserAgent: version.UserAgent(), Clock: clock}, c.Notify)
	return n, c.NotifyFault(err)
}

// NotifyFault is an error about the receivers of notifications; nil if err is nil.
func (c *Config) NotifyFault(err error) error {
	var one *notify.ReceiverError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &one):
		return c.Fault(fmt.Sprintf("notify[%d]", one.Index), err)
	}
	return c.Fault("notify", err)
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

// OtherNames finds other names of references.
type OtherNames struct {
	files    *containers.Files
	failures warn.Limiter
}

// Sources returns the references that a mirror's name may stand for.
func (n *OtherNames) Sources(ref reference.Reference) []reference.Reference {
	return n.known(n.files.MirrorOf(ref))
}

// Mirrors returns the names that a reference has on mirrors.
func (n *OtherNames) Mirrors(ref reference.Reference) []reference.Reference {
	return n.known(n.files.MirrorsOf(ref))
}

func (n *OtherNames) known(all []reference.Reference, err error) []reference.Reference {
	if err != nil {
		n.failures.Warn("", "The mirrors of registries.conf are unknown, so a mirror's name is taken literally", "err", err)
	}
	return all
}

// OtherNames goes by the mirrors of the configuration and, unless the server is isolated, of the
// machine's registries.conf.
func (c *Config) OtherNames(isolated bool) (*OtherNames, error) {
	var o importer.Options
	files := containers.Options{}
	if isolated {
		// no folder: the machine's files are not read
		files.Root = filepath.Join(filepath.Dir(c.file), "isolated")
	}
	if err := c.AddFiles(&o, files); err != nil {
		return nil, err
	}
	return &OtherNames{files: o.Files.(*containers.Files)}, nil
}

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tidewaiter/tidewaiter/coreapi/podlogs"
	"github.com/tidewaiter/tidewaiter/db/trusted"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/guard"
	"github.com/tidewaiter/tidewaiter/web/hooks"
)

// maxConfigFile bounds the configuration file, in bytes.
const maxConfigFile = 1 << 20

// config is the file given by --config. Unknown keys are errors, so that a
// misspelt one is not silently without effect.
type config struct {
	Registries []registryConfig `yaml:"registries"`
	// AllowedNetworks are ranges, such as 10.1.0.0/16, that registries and signature
	// stores may lead the importer into with redirects and token servers, although
	// they are not public.
	AllowedNetworks []string `yaml:"allowedNetworks"`
	// RegistriesDir is a folder of registries.d files to be read instead of the
	// user's and the system's (containers-registries.d(5)): they say where
	// signatures are kept that are not in registries.
	RegistriesDir string           `yaml:"registriesDir"`
	Kubelet       *kubeletConfig   `yaml:"kubelet"`
	Receivers     []hooks.Receiver `yaml:"receivers"`
	Hooks         hooksConfig      `yaml:"hooks"`
	Sweep         sweepConfig      `yaml:"sweep"`

	file string // the path it was read from
}

// hooksConfig says where webhooks are taken beside the server's own port.
type hooksConfig struct {
	// Listen, as host:port, serves /hooks/ and nothing else over plain HTTP,
	// for registries that cannot be told to trust ca.crt.
	Listen string `yaml:"listen"`
}

// sweepConfig is the net below webhooks that are lost.
type sweepConfig struct {
	// Repositories are given as host/path; none are looked through by default.
	Repositories []string `yaml:"repositories"`
	// Every is how often they are looked through, such as 6h.
	Every time.Duration `yaml:"every"`
}

// registryConfig is what an administrator says about a registry or a part of it.
type registryConfig struct {
	// Prefix is a host with its port, or a host and the beginning of a path;
	// the longest one that matches counts.
	Prefix string `yaml:"prefix"`
	// Insecure allows plain HTTP and unverified TLS.
	Insecure bool `yaml:"insecure"`
	// TokenHosts are hosts, beside the registry, whose token server may see
	// credentials, and may be inside.
	TokenHosts []string `yaml:"tokenHosts"`
}

// kubeletConfig says how to reach the kubelets that have the logs of pods.
// Files are relative to the configuration file.
type kubeletConfig struct {
	// Address is host or host:port, with {hostIP} and {nodeName} filled in.
	Address  string `yaml:"address"`
	CertFile string `yaml:"certFile"`
	KeyFile  string `yaml:"keyFile"`
	CAFile   string `yaml:"caFile"`
}

func (k *kubeletConfig) options() *podlogs.KubeletOptions {
	if k == nil {
		return nil
	}
	return &podlogs.KubeletOptions{Address: k.Address, CertFile: k.CertFile, KeyFile: k.KeyFile, CAFile: k.CAFile}
}

// resolve makes the file names in c absolute or relative to this process.
func (c *config) resolve(dir string) {
	names := []*string{&c.RegistriesDir}
	if k := c.Kubelet; k != nil {
		names = append(names, &k.CertFile, &k.KeyFile, &k.CAFile)
	}
	for _, name := range names {
		if *name != "" && !filepath.IsAbs(*name) {
			*name = filepath.Join(dir, *name)
		}
	}
}

// loadConfig reads path; no path is an empty configuration.
func loadConfig(path string) (*config, error) {
	c := &config{file: path}
	if path == "" {
		return c, nil
	}
	data, err := trusted.ReadFile(path, maxConfigFile)
	if errors.Is(err, fs.ErrNotExist) {
		err = withHint(err, "leave --config out to run with the defaults")
	}
	if err != nil {
		return nil, err
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(c); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := d.Decode(&struct{}{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: it holds more than one YAML document", path)
	}
	c.resolve(filepath.Dir(path))
	return c, nil
}

func (c *config) registries() []importer.Registry {
	out := make([]importer.Registry, 0, len(c.Registries))
	for _, r := range c.Registries {
		out = append(out, importer.Registry{Prefix: r.Prefix, Insecure: r.Insecure, TokenHosts: r.TokenHosts})
	}
	return out
}

func (c *config) allowedNetworks() (guard.Networks, error) {
	networks, err := guard.ParseNetworks(c.AllowedNetworks)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.file, err)
	}
	return networks, nil
}

// importerOptions are what the configuration says to an importer.
func (c *config) importerOptions() (importer.Options, error) {
	networks, err := c.allowedNetworks()
	return importer.Options{Registries: c.registries(), AllowedNetworks: networks, UserAgent: userAgent()}, err
}

// kubeconfigPath is where the server of a data directory keeps the
// administrator's credential.
func kubeconfigPath(dir string) string { return filepath.Join(dir, "admin.kubeconfig") }

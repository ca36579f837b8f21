package main

import (
	"github.com/spf13/cobra"

	"github.com/tidewaiter/tidewaiter/cmd/internal/config"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/containers"
)

// registryOptions say how commands reach registries. The flags have skopeo's names.
type registryOptions struct {
	configFile               string
	authFile, creds, certDir string
	tlsVerify                bool
}

func (o *registryOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.configFile, "config", "", "configuration file (YAML); only its registries are used")
	f.StringVar(&o.authFile, "authfile", "", "credentials file, as podman login and docker login write it (default: REGISTRY_AUTH_FILE, or the files that skopeo reads)")
	f.StringVar(&o.creds, "creds", "", "USER[:PASSWORD] for every registry; other users of the machine can see it: prefer --authfile")
	f.StringVar(&o.certDir, "cert-dir", "", "folder of certificates (*.crt, *.cert, *.key) for every registry (default: certs.d)")
	f.BoolVar(&o.tlsVerify, "tls-verify", true, "false allows plain HTTP and unverified certificates, unless the configuration has an entry for the registry")
}

// importerOptions are the options for an importer, from the flags and the configuration.
func (o *registryOptions) importerOptions(cfg *config.Config) (importer.Options, error) {
	files := cfg.Files()
	if o.authFile != "" {
		files.AuthFile = o.authFile
	}
	files.CertDir = o.certDir
	if o.creds != "" {
		credentials, err := containers.ParseCredentials(o.creds)
		if err != nil {
			return importer.Options{}, cli.Misuse(err, "--creds USER:PASSWORD, or --authfile FILE")
		}
		files.Credentials = credentials
	}
	out, err := cfg.ImporterOptions()
	if err != nil {
		return out, err
	}
	out.Insecure = !o.tlsVerify
	return out, cfg.AddFiles(&out, files)
}

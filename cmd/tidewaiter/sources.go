package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/archive"
	"github.com/tidewaiter/tidewaiter/importer/containers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// openSources opens the arguments that are files, and returns the others.
func (o *importOptions) openSources(args []string) (opened bulk.Sources, others []string, err error) {
	defer func() {
		if err != nil {
			opened.Close()
		}
	}()
	var as reference.Reference
	if o.storeAs != "" {
		if as, err = reference.Parse(o.storeAs); err != nil {
			return nil, nil, fmt.Errorf("--store-as: %w", err)
		}
		if as.Digest != "" {
			return nil, nil, errors.New("--store-as: the image determines the digest: give a repository or a tag")
		}
	}
	for _, arg := range args {
		if !archive.Is(arg) {
			others = append(others, arg)
			continue
		}
		source, err := archive.Open(arg, as)
		if unsupported, ok := errors.AsType[*archive.UnsupportedError](err); ok {
			err = cli.WithHint(err, "%s", unsupported.Instead)
		}
		if err != nil {
			return opened, nil, err
		}
		opened = append(opened, source)
	}
	switch {
	case o.storeAs != "" && (len(opened) != 1 || len(others) > 0):
		return opened, nil, cli.WithHint(errors.New("--store-as names one image that comes from a file"), "tidewaiter import oci-archive:app.tar --store-as registry.example.com/team/app:v1")
	case len(opened) > 0 && (o.allTags || o.catalog):
		return opened, nil, cli.WithHint(fmt.Errorf("%s is not a repository or a registry; all images of a file are imported if none is named", opened[0]), "omit --all-tags and --catalog")
	}
	return opened, others, nil
}

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

package main

import (
	"context"

	"github.com/spf13/cobra"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/web"
)

// target is where an import stores Images.
type target interface {
	// use calls do with the destination, which is valid until do returns.
	use(ctx context.Context, do func(context.Context, destination) error) error
}

// destination is where Images are kept.
type destination struct {
	// images is asked for anew for every reference.
	images func() importer.Images
	// config reaches the API that keeps the Images; nil for a dry run.
	config *restclient.Config
}

// target picks one, as the command's help says.
func (o *importOptions) target(cmd *cobra.Command) (target, error) {
	if o.dryRun {
		return dryRunTarget{}, nil
	}
	if server, found, err := o.server(cmd); found || err != nil {
		return server, err
	}
	return directoryTarget{serverOptions{
		dataDir: o.dataDir, configFile: o.registries.configFile, audit: web.NewAuditOptions(auditLog(o.dataDir)),
	}}, nil
}

// dryRunTarget stores nothing and knows nothing, so that everything is read. It
// forgets with every reference, so that it holds no more than a few Images.
type dryRunTarget struct{}

func (dryRunTarget) use(ctx context.Context, do func(context.Context, destination) error) error {
	return do(ctx, destination{images: func() importer.Images { return &importer.DryRun{} }})
}

// apiTarget is a running server.
type apiTarget struct{ config *restclient.Config }

// newAPITarget is the server that config reaches.
func newAPITarget(config *restclient.Config) apiTarget {
	// --jobs is the limit of this client.
	config.QPS = -1
	config.UserAgent = userAgent()
	return apiTarget{config}
}

func (t apiTarget) use(ctx context.Context, do func(context.Context, destination) error) error {
	images, err := imageclient.New(t.config)
	if err != nil {
		return err
	}
	return do(ctx, destination{images: func() importer.Images { return images }, config: t.config})
}

// directoryTarget is a data directory that no server holds: one is run over it
// for the time of the import, without a port, so that the same rules apply.
type directoryTarget struct{ options serverOptions }

func (t directoryTarget) use(ctx context.Context, do func(context.Context, destination) error) error {
	s, err := openServer(ctx, t.options, nil)
	if err != nil {
		return err
	}
	return s.runLocally(ctx, func(ctx context.Context, c *restclient.Config) error {
		return apiTarget{c}.use(ctx, do)
	})
}

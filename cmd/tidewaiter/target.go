package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/version"
)

// target is where an import stores Images.
type target interface {
	// destination is the name of the target: a URL, a directory, or "" for none.
	destination() string
	// String is destination with how it was found.
	String() string
	// use calls do with the destination, which is valid until do returns.
	use(ctx context.Context, do func(context.Context, destination) error) error
}

// destination is where Images are kept.
type destination struct {
	// images is called for every reference.
	images func() importer.Images
	// packages stores the packages of Images; nil if this API stores none.
	packages importer.PackageStore
	// Config reaches the API that keeps the Images; nil for a dry run.
	Config *restclient.Config
}

// target chooses a target, as the command's help says.
func (o *importOptions) target(cmd *cobra.Command) (target, error) {
	if o.dryRun {
		return dryRunTarget{}, nil
	}
	if o.create && (o.kubeconfig != "" || o.cluster.Server != "") {
		return nil, cli.Misuse(errors.New("--create-data-dir is for an import without a server"), "omit --kubeconfig and --server")
	}
	if server, found, err := o.server(cmd); found || err != nil {
		return server, err
	}
	if o.token != "" || o.tokenFile != "" {
		return nil, cli.WithHint(fmt.Errorf("no server holds %s, so the token cannot be used", o.dataDir), "--server https://HOST:PORT names one")
	}
	return o.directory()
}

// dryRunTarget stores nothing and knows nothing, so that everything is read. It forgets after every
// reference, so it holds only a few Images.
type dryRunTarget struct{}

func (dryRunTarget) use(ctx context.Context, do func(context.Context, destination) error) error {
	return do(ctx, destination{images: func() importer.Images { return &importer.DryRun{} }})
}

func (dryRunTarget) destination() string { return "" }
func (dryRunTarget) String() string      { return "nothing (a dry run)" }

// apiTarget is a running server.
type apiTarget struct {
	Config *restclient.Config
	how    string // how the server was found
}

func (t apiTarget) destination() string { return t.Config.Host }
func (t apiTarget) String() string      { return fmt.Sprintf("%s (%s)", t.Config.Host, t.how) }

// newAPITarget returns the server that config reaches.
func newAPITarget(config *restclient.Config) apiTarget {
	// --jobs is the limit of this client.
	config.QPS = -1
	config.UserAgent = version.UserAgent()
	return apiTarget{Config: config}
}

func (t apiTarget) use(ctx context.Context, do func(context.Context, destination) error) error {
	client, err := imageclient.New(t.Config)
	if err != nil {
		return err
	}
	images, packages := importer.Images(client), importer.PackageStore(client)
	if keeps, err := keepsTags(t.Config); err != nil {
		return err
	} else if !keeps {
		images, packages = struct{ importer.Images }{client}, nil // hides its other methods
	}
	return do(ctx, destination{images: func() importer.Images { return images }, packages: packages, Config: t.Config})
}

// keepsTags reports whether a server lets importers write where tags lead. OpenShift's does not:
// there, ImageStreams do that. A server that does not say counts as one that does.
func keepsTags(config *restclient.Config) (bool, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return false, err
	}
	served, err := client.ServerResourcesForGroupVersion(imagev1.GroupVersion.String())
	return err != nil || slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == "imagetags/status" }), nil
}

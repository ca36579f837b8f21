package main

import (
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	restclient "k8s.io/client-go/rest"
)

// clientOptions are the flags of verbs that ask a running server.
type clientOptions struct {
	kubeconfig string
	dataDir    string
}

func (o *clientOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the server (default: that of the data directory)")
	cmd.Flags().StringVar(&o.dataDir, "data-dir", defaultDataDir, "data directory of a server on this machine")
	cmd.MarkFlagsMutuallyExclusive("kubeconfig", "data-dir")
}

// config reaches the server that --kubeconfig names or that holds the data
// directory.
func (o *clientOptions) config() (*restclient.Config, error) {
	path := o.kubeconfig
	if path == "" {
		var err error
		if path, err = ownerKubeconfig(o.dataDir); err != nil {
			return nil, err
		}
		if path == "" {
			return nil, withHint(fmt.Errorf("no server holds %s", o.dataDir), "tidewaiter serve --data-dir %s, or name a server with --kubeconfig", o.dataDir)
		}
	}
	t, err := newAPITarget(path)
	if err != nil {
		return nil, err
	}
	return t.config, nil
}

// plainClient asks for paths outside the Kubernetes API.
func (o *clientOptions) plainClient() (restclient.Interface, error) {
	config, err := o.config()
	if err != nil {
		return nil, err
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	config.GroupVersion = &metav1.Unversioned
	return restclient.UnversionedRESTClientFor(config)
}

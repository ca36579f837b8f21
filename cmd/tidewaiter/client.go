package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tidewaiter/tidewaiter/db/trusted"
)

// clientOptions are the flags of verbs that ask a running server.
type clientOptions struct {
	kubeconfig string
	dataDir    string
}

func (o *clientOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of the server (default: the environment's KUBECONFIG, else the server that holds the data directory)")
	cmd.Flags().StringVar(&o.dataDir, "data-dir", defaultDataDir, "data directory of a server on this machine")
	cmd.MarkFlagsMutuallyExclusive("kubeconfig", "data-dir")
}

// server is the server of --kubeconfig or, without that flag and --data-dir, of
// the environment's KUBECONFIG; else the one that holds the data directory. It is
// not found when none holds it.
func (o *clientOptions) server(cmd *cobra.Command) (server apiTarget, found bool, err error) {
	if o.kubeconfig == "" && (cmd.Flags().Changed("data-dir") || os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "") {
		config, err := ownerConfig(o.dataDir)
		if config == nil || err != nil {
			return server, false, err
		}
		return newAPITarget(config), true, nil
	}
	config, err := kubeconfigConfig(o.kubeconfig)
	if err != nil {
		return server, false, err
	}
	return newAPITarget(config), true, nil
}

// kubeconfigConfig reads a kubeconfig, or the environment's if path is empty. It is
// as kubectl's, and may name a program that gets a credential, so it is refused if
// another user could have written it.
func kubeconfigConfig(path string) (*restclient.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	for _, file := range rules.GetLoadingPrecedence() {
		if err := trusted.CheckPath(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, withHint(err, "--kubeconfig ./tidewaiter-data/admin.kubeconfig names a local server, --data-dir its directory")
	}
	return config, nil
}

// plainClient asks a server for paths outside the Kubernetes API.
func (o *clientOptions) plainClient(cmd *cobra.Command) (restclient.Interface, error) {
	server, found, err := o.server(cmd)
	if err == nil && !found {
		err = withHint(fmt.Errorf("no server holds %s", o.dataDir), "tidewaiter serve --data-dir %s, or name a server with --kubeconfig", o.dataDir)
	}
	if err != nil {
		return nil, err
	}
	config := restclient.CopyConfig(server.config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	config.GroupVersion = &metav1.Unversioned
	return restclient.UnversionedRESTClientFor(config)
}

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// tokenEnv is the environment's variable for a token. Unlike --token, it is in no list of
// processes.
const tokenEnv = "TIDEWAITER_TOKEN"

// createFlag makes a data directory. The directory must then be meant, and no server of
// KUBECONFIG is used.
const createFlag = "create-data-dir"

// clientOptions are the flags of verbs that ask a running server. Flags that kubectl has,
// too, mean the same.
type clientOptions struct {
	kubeconfig string
	dataDir    string
	cluster    clientcmdapi.Cluster // --server and --certificate-authority
	token      string
	tokenFile  string
}

func (o *clientOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	kubeconfig := "kubeconfig of the server; without it and --server, as for kubectl, KUBECONFIG or ~/.kube/config"
	if hasDataDirs {
		kubeconfig = "kubeconfig of the server; without it and --server, KUBECONFIG is used if no server holds the data directory"
		f.StringVar(&o.dataDir, "data-dir", cli.DefaultDataDir, "data directory; asks the server on this machine that holds it")
	}
	f.StringVar(&o.kubeconfig, clientcmd.RecommendedConfigPathFlag, "", kubeconfig)
	f.StringVar(&o.cluster.Server, clientcmd.FlagAPIServer, "", "URL of the server, https://HOST:PORT; no kubeconfig is read unless --kubeconfig names one")
	f.StringVar(&o.cluster.CertificateAuthority, clientcmd.FlagCAFile, "", "CA file for the server's certificate")
	f.StringVar(&o.token, clientcmd.FlagBearerToken, "", "bearer token for the server, instead of any other credential; other users of this machine can see it: prefer --token-file or "+tokenEnv)
	f.StringVar(&o.tokenFile, "token-file", "", "file with the bearer token; reread when it changes")
	cmd.MarkFlagsMutuallyExclusive(clientcmd.FlagBearerToken, "token-file")
}

// server returns the first of these servers: the one that --kubeconfig or --server names; the one
// that holds the data directory; without --data-dir, the one of the environment's KUBECONFIG. found
// is false if there is none.
func (o *clientOptions) server(cmd *cobra.Command) (server apiTarget, found bool, err error) {
	named := o.kubeconfig != "" || o.cluster.Server != ""
	if named && cmd.Flags().Changed("data-dir") {
		return server, false, cli.Misuse(errors.New("--data-dir conflicts with --kubeconfig and --server"), "give one of them")
	}
	var config *restclient.Config
	how := ""
	switch {
	case named:
		config, err = o.named()
		how = cmp.Or(o.kubeconfig, "--server")
	default:
		if config, err = ownerConfig(o.dataDir); err != nil {
			return server, false, err
		}
		if config != nil {
			how = "which holds " + o.dataDir
			if o.cluster.CertificateAuthority != "" {
				config.CAFile, config.CAData = o.cluster.CertificateAuthority, nil
			}
		} else if (os.Getenv(clientcmd.RecommendedConfigPathEnvVar) != "" || !hasDataDirs) && !cmd.Flags().Changed("data-dir") && !cmd.Flags().Changed(createFlag) {
			config, err = overriddenConfig("", o.cluster)
			how = clientcmd.RecommendedConfigPathEnvVar
		}
	}
	if config == nil || err != nil {
		return server, false, err
	}
	server = newAPITarget(o.withToken(config))
	server.how = how
	return server, true, nil
}

// named is the server of --kubeconfig or --server.
func (o *clientOptions) named() (*restclient.Config, error) {
	if o.cluster.Server != "" && !strings.HasPrefix(o.cluster.Server, "https://") {
		return nil, cli.Misuse(fmt.Errorf("--server %q does not begin with https://", o.cluster.Server), "--server https://tidewaiter.example.com:6443")
	}
	if o.kubeconfig != "" {
		return overriddenConfig(o.kubeconfig, o.cluster)
	}
	// The credential in a kubeconfig is only for that kubeconfig's own server.
	return &restclient.Config{Host: o.cluster.Server, TLSClientConfig: restclient.TLSClientConfig{CAFile: o.cluster.CertificateAuthority}}, nil
}

// withToken replaces all other credentials with the given token, if there is one.
func (o *clientOptions) withToken(config *restclient.Config) *restclient.Config {
	token := o.token
	if token == "" && o.tokenFile == "" {
		token = os.Getenv(tokenEnv)
	}
	if token == "" && o.tokenFile == "" {
		return config
	}
	config = restclient.AnonymousClientConfig(config)
	config.BearerToken, config.BearerTokenFile = token, o.tokenFile
	return config
}

// kubeconfigConfig is the configuration of a kubeconfig, or of the environment's if path is
// empty.
func kubeconfigConfig(path string) (*restclient.Config, error) {
	return overriddenConfig(path, clientcmdapi.Cluster{})
}

// overriddenConfig is kubeconfigConfig with the fields of cluster in place of the
// kubeconfig's.
func overriddenConfig(path string, cluster clientcmdapi.Cluster) (*restclient.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = path
	var config *restclient.Config
	kubeconfig, err := cli.OpenKubeconfig(rules, &clientcmd.ConfigOverrides{ClusterInfo: cluster})
	if err == nil {
		config, err = kubeconfig.ClientConfig()
	}
	var unread *fs.PathError
	switch {
	case errors.As(err, &unread) && errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%s: no such file or directory", unread.Path)
	case clientcmd.IsEmptyConfig(err):
		err = fmt.Errorf("no server is configured in %s", strings.Join(rules.GetLoadingPrecedence(), ", "))
	}
	if err != nil {
		return nil, cli.WithHint(err, "--kubeconfig ./tidewaiter-data/admin.kubeconfig names a local server, --data-dir its directory")
	}
	return config, nil
}

// contextNamespace returns the namespace of the kubeconfig's context, which kubectl would choose.
func (o *clientOptions) contextNamespace() string {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	if o.kubeconfig == "" && o.cluster.Server != "" {
		return metav1.NamespaceDefault
	}
	kubeconfig, err := cli.OpenKubeconfig(rules, &clientcmd.ConfigOverrides{})
	if err != nil {
		return metav1.NamespaceDefault // the server was named otherwise, or this was said before
	}
	name, _, err := kubeconfig.Namespace()
	if err != nil {
		return metav1.NamespaceDefault
	}
	return name
}

// running is the server that a verb asks. It says which on standard error.
func (o *clientOptions) running(cmd *cobra.Command) (server apiTarget, err error) {
	server, found, err := o.server(cmd)
	if err == nil && !found {
		err = cli.WithHint(fmt.Errorf("no server holds %s", o.dataDir), "tidewaiter serve --data-dir %s, or name a server with --server or --kubeconfig", o.dataDir)
	}
	if err == nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "asking %s\n", server)
	}
	return server, err
}

// pathClient returns a client for requests to any path of a server. It understands errors of the
// Kubernetes API.
func pathClient(config *restclient.Config) (restclient.Interface, error) {
	config = restclient.CopyConfig(config)
	config.NegotiatedSerializer, config.GroupVersion = scheme.Codecs.WithoutConversion(), &metav1.Unversioned
	return restclient.UnversionedRESTClientFor(config)
}

// runningClient returns a client for requests to any path of the server that a verb asks.
func (o *clientOptions) runningClient(cmd *cobra.Command) (client restclient.Interface, server apiTarget, err error) {
	if server, err = o.running(cmd); err == nil {
		client, err = pathClient(server.Config)
	}
	return client, server, err
}

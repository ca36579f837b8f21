package follower

import (
	"errors"
	"fmt"
	"io/fs"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// User is the account's name in a kubeconfig.
const User = "follower"

// Kubeconfig returns a kubeconfig with the account's token and nothing else. context is the name of
// its context.
func Kubeconfig(of *clientcmdapi.Cluster, context, token string) ([]byte, error) {
	config := clientcmdapi.NewConfig()
	config.Clusters[context] = &clientcmdapi.Cluster{
		Server: of.Server, TLSServerName: of.TLSServerName, InsecureSkipTLSVerify: of.InsecureSkipTLSVerify,
		CertificateAuthority: of.CertificateAuthority, CertificateAuthorityData: of.CertificateAuthorityData,
		ProxyURL: of.ProxyURL, DisableCompression: of.DisableCompression,
	}
	config.AuthInfos[User] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[context] = &clientcmdapi.Context{Cluster: context, AuthInfo: User}
	config.CurrentContext = context
	if err := clientcmdapi.FlattenConfig(config); err != nil {
		return nil, err
	}
	return clientcmd.Write(*config)
}

// CheckReplaced fails if path is a file other than the account's kubeconfig for a server: for
// instance, a person's kubeconfig, or one for another cluster.
func CheckReplaced(path, server string) error {
	config, err := clientcmd.LoadFromFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || len(config.AuthInfos) != 1 || config.AuthInfos[User] == nil {
		return cli.WithHint(fmt.Errorf("%s exists and is not a follower's kubeconfig", path), "to write the kubeconfig to NAME.kubeconfig, add --name NAME")
	}
	for _, cluster := range config.Clusters {
		if cluster.Server != server {
			return cli.WithHint(fmt.Errorf("%s is for another cluster, %s", path, cluster.Server), "to give this cluster another name, add --name NAME; if it is the same cluster at a new address, delete the file")
		}
	}
	return nil
}

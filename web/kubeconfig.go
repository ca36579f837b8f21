package web

import (
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// KeepKubeconfig is WriteKubeconfig, now and whenever the administrator's token changes, or the
// given certificate, which a client may have to trust.
func (c *Credentials) KeepKubeconfig(url string) error {
	files := []string{c.tokenFile}
	if c.TLS.CertFile != "" {
		files = append(files, c.TLS.CertFile)
	}
	return c.reload.watchFiles(func() error { return c.WriteKubeconfig(url) }, files...)
}

// WriteKubeconfig writes the administrator's kubeconfig for the server at url, for instance
// https://127.0.0.1:6443. It holds all that a client needs: a bearer token, and the
// authority to trust unless the client's machine knows it.
func (c *Credentials) WriteKubeconfig(url string) error {
	ca, err := c.trust(url)
	if err != nil {
		return err
	}
	token, err := c.adminToken()
	if err != nil {
		return err
	}
	const name = "tidewaiter"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: "default"}
	config.CurrentContext = name
	data, err := clientcmd.Write(*config)
	if err != nil {
		return fmt.Errorf("encoding the kubeconfig: %w", err)
	}
	return writeIfChanged(c.Kubeconfig, data)
}

package cli

import (
	"errors"
	"io/fs"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// OpenKubeconfig opens the kubeconfig that rules name. It may name a program that gets a
// credential, as for kubectl, so it is refused if another user could have written it. As for
// kubectl, a kubeconfig that is empty or absent stands for the cluster of the pod that the process
// runs in. A file that was named explicitly does not: it may be half written.
func OpenKubeconfig(rules *clientcmd.ClientConfigLoadingRules, overrides *clientcmd.ConfigOverrides) (clientcmd.ClientConfig, error) {
	for _, file := range rules.GetLoadingPrecedence() {
		if err := trusted.CheckPath(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	if rules.ExplicitPath == "" {
		return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides), nil
	}
	config, err := rules.Load()
	if err != nil {
		return nil, err
	}
	return clientcmd.NewNonInteractiveClientConfig(*config, overrides.CurrentContext, overrides, rules), nil
}

package cli

import (
	"errors"
	"io/fs"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// OpenKubeconfig opens the kubeconfig that rules name. It may name a program that gets a
// credential, as for kubectl, so it is refused if another user could have written it.
func OpenKubeconfig(rules *clientcmd.ClientConfigLoadingRules, overrides *clientcmd.ConfigOverrides) (clientcmd.ClientConfig, error) {
	for _, file := range rules.GetLoadingPrecedence() {
		if err := trusted.CheckPath(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides), nil
}

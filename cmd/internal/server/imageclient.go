package server

import (
	restclient "k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
)

// NewImageClient returns a client for imports, which read many Images.
func NewImageClient(config *restclient.Config) (*imageclient.Client, error) {
	config = restclient.CopyConfig(config)
	config.NegotiatedSerializer = imageapi.NewClientSerializer(legacyscheme.Codecs)
	return imageclient.New(config)
}

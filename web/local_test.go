package web_test

import (
	"context"
	"net"
	"testing"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	k8sopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/tidewaiter/tidewaiter/web"
)

// A server without a listener serves the process it is in, and stops.
func TestServerWithoutListener(t *testing.T) {
	credentials, err := web.LoadCredentials(t.TempDir(), web.ServingHosts(net.IPv4(127, 0, 0, 1)), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s, err := web.New(web.Config{
		Scheme: legacyscheme.Scheme, Codecs: legacyscheme.Codecs, ParameterCodec: legacyscheme.ParameterCodec,
		OpenAPI: k8sopenapi.GetOpenAPIDefinitions, Credentials: credentials, Version: "0.0.1-test",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- s.Run(ctx) }()
	if err := s.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	client, err := discovery.NewDiscoveryClientForConfig(s.ClientConfig())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.ServerVersion(); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

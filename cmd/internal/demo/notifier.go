package demo

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/internal/server"
)

// notifier is a registry's handler that reports every manifest to a webhook, after the
// push was answered and one at a time.
type notifier struct {
	host     string
	registry http.Handler
	pushed   chan string // references; pushes that find it full are not reported
}

// manifestPath matches the path of a manifest, with its repository and its tag or digest.
var manifestPath = regexp.MustCompile(`^/v2/(.+)/manifests/([^/]+)$`)

// ServeHTTP implements http.Handler.
func (n *notifier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer := &statusWriter{ResponseWriter: w}
	n.registry.ServeHTTP(answer, r)
	m := manifestPath.FindStringSubmatch(r.URL.Path)
	if r.Method != http.MethodPut || answer.status != http.StatusCreated || m == nil {
		return
	}
	separator := ":"
	if strings.Contains(m[2], ":") {
		separator = "@" // a digest
	}
	select {
	case n.pushed <- n.host + "/" + m[1] + separator + m[2]:
	default:
	}
}

// statusWriter remembers the status of an answer.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// The receiver on the demo's server.
const (
	demoReceiver   = "demo"
	demoSecretFile = "hook-secret"
)

// writeReceiver writes into dir a configuration with a receiver for the registry,
// and the receiver's secret. It returns the configuration's path.
func (n *notifier) writeReceiver(dir, secret string) (string, error) {
	if err := os.WriteFile(filepath.Join(dir, demoSecretFile), []byte(secret), 0o600); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "tidewaiter.yaml")
	return path, os.WriteFile(path, fmt.Appendf(nil, `ownPodsOnly: true
receivers:
- name: %s
  type: generic
  hosts: [%q]
  secretFile: %s
`, demoReceiver, n.host, demoSecretFile), 0o600)
}

// notify reports pushes to the server until ctx ends.
func (n *notifier) notify(ctx context.Context, s *server.Server, secret string) error {
	// It trusts only the server's authority, as any registry would.
	client, err := restclient.HTTPClientFor(&restclient.Config{
		TLSClientConfig: restclient.TLSClientConfig{CAFile: s.Credentials.CAFile}, BearerToken: secret,
	})
	if err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case reference := <-n.pushed:
			if err := post(ctx, client, s.URL+"/hooks/"+demoReceiver, reference); err != nil && ctx.Err() == nil {
				return fmt.Errorf("telling of %s: %w", reference, err)
			}
		}
	}
}

// post makes one request to a receiver of type generic.
func post(ctx context.Context, client *http.Client, url, reference string) error {
	body := fmt.Sprintf(`{"references":[%q]}`, reference)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusAccepted {
		return fmt.Errorf("the receiver answers %s", resp.Status)
	}
	return nil
}

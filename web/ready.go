package web

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// readyPoll is how often Ready checks. A check is a function call.
const readyPoll = 10 * time.Millisecond

// Ready waits until /readyz answers ok, except for Config.WriteChecks. If ctx ends
// first, it returns the last answer. The server must run.
func (s *Server) Ready(ctx context.Context) error {
	client := &http.Client{Transport: s.ClientConfig().Transport}
	defer client.CloseIdleConnections()
	target := s.ClientConfig().Host + "/readyz?" + url.Values{"exclude": s.notAwaited}.Encode()
	last := "nothing yet"
	err := wait.PollUntilContextCancel(ctx, readyPoll, true, func(ctx context.Context) (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
		if err != nil {
			return false, err
		}
		resp, err := client.Do(req)
		if err != nil {
			last = err.Error()
			return false, nil
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		if err != nil {
			return false, nil
		}
		last = string(body)
		return resp.StatusCode == http.StatusOK, nil
	})
	if err != nil {
		return fmt.Errorf("the server did not become ready: %w; /readyz answered: %s", err, last)
	}
	return nil
}

package pull

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// A request for a token that hangs keeps the next one waiting for a moment only. What that gets
// counts from then on, whatever becomes of the first.
func TestARequestForATokenThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tokens := newTokens("https://example.com/token")
		get := func(send func() (*http.Response, error)) error {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com/token", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := tokens.get(req, clock.RealClock{}, send)
			if err == nil {
				resp.Body.Close()
			}
			return err
		}
		end, first := make(chan error), make(chan error)
		go func() {
			first <- get(func() (*http.Response, error) { return nil, <-end })
		}()
		synctest.Wait()
		began := time.Now()
		if err := get(func() (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(`{"token":"t"}`))}, nil
		}); err != nil || time.Since(began) != maxGreeting {
			t.Errorf("the next one has waited %s: %v", time.Since(began), err)
		}
		late := errors.New("it never answered")
		end <- late
		if err := <-first; err != late {
			t.Error(err)
		}
		if err := get(func() (*http.Response, error) { return nil, errors.New("it is asked for again") }); err != nil {
			t.Error(err)
		}
	})
}

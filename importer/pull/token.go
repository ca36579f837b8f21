package pull

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"k8s.io/utils/clock"
)

// maxTokenAnswer is how many bytes of a token server's answer are remembered.
const maxTokenAnswer = 64 << 10

// tokens requests a token once for all requests of a repository that wait for one.
// (go-containerregistry's transport would send a request for each.) It returns the last answer
// until the registry refuses its token.
type tokens struct {
	realm *url.URL // nil if the registry has no token server

	mu     sync.Mutex
	answer *tokenAnswer // the last
}

// tokenAnswer is an answer of the token server, present or awaited.
type tokenAnswer struct {
	request string // identifies the request that it answers
	done    chan struct{}

	// These are set before done is closed. There is no header if the token server gave none.
	token  string
	header http.Header
	body   []byte
}

func newTokens(realm string) *tokens {
	u, err := url.Parse(realm)
	if err != nil || u.Host == "" {
		return &tokens{}
	}
	return &tokens{realm: u}
}

// isFor reports whether a request is for a token.
func (t *tokens) isFor(req *http.Request) bool {
	return t != nil && t.realm != nil && req.URL.Scheme == t.realm.Scheme && req.URL.Host == t.realm.Host && req.URL.Path == t.realm.Path &&
		!strings.HasPrefix(req.Header.Get("Authorization"), "Bearer ")
}

// refused drops the last answer if the registry has refused its token.
func (t *tokens) refused(req *http.Request) {
	if t == nil {
		return
	}
	token, ok := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.answer; ok && a != nil && a.header != nil && a.token == token {
		t.answer = nil
	}
}

// get answers a request for a token with the last answer to the same request, or else calls send.
// It waits at most maxGreeting for another request for the same token.
func (t *tokens) get(req *http.Request, clock clock.Clock, send func() (*http.Response, error)) (*http.Response, error) {
	key, err := requestOf(req)
	if err != nil {
		return nil, err
	}
	var hangs *tokenAnswer
	for {
		t.mu.Lock()
		a := t.answer
		if a == nil || a == hangs || a.request != key {
			a = &tokenAnswer{request: key, done: make(chan struct{})}
			t.answer = a
			t.mu.Unlock()
			return t.ask(a, send)
		}
		t.mu.Unlock()
		timer := clock.NewTimer(maxGreeting)
		select {
		case <-a.done:
			timer.Stop()
		case <-timer.C():
			hangs = a
			continue
		case <-req.Context().Done():
			timer.Stop()
			return nil, context.Cause(req.Context())
		}
		if a.header != nil {
			return &http.Response{
				Status: "200 OK", StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: a.header.Clone(),
				Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: int64(len(a.body)), Request: req,
			}, nil
		}
		// The request before got no token: the next one calls send.
	}
}

// ask calls send, and remembers an answer with a token.
func (t *tokens) ask(a *tokenAnswer, send func() (*http.Response, error)) (*http.Response, error) {
	defer func() {
		if a.header == nil {
			t.mu.Lock()
			if t.answer == a {
				t.answer = nil
			}
			t.mu.Unlock()
		}
		close(a.done)
	}()
	resp, err := send()
	if err != nil || resp.StatusCode != http.StatusOK {
		return resp, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxTokenAnswer+1))
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	var given struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
	}
	if len(body) > maxTokenAnswer || json.Unmarshal(body, &given) != nil {
		return resp, nil
	}
	given.Token = cmp.Or(given.Token, given.AccessToken)
	if given.Token != "" {
		t.mu.Lock()
		a.token, a.header, a.body = given.Token, resp.Header.Clone(), body
		t.mu.Unlock()
	}
	return resp, nil
}

// requestOf identifies a request for a token by its scope and credentials.
func requestOf(req *http.Request) (string, error) {
	var body []byte
	if req.Body != nil && req.Body != http.NoBody {
		var err error
		body, err = io.ReadAll(io.LimitReader(req.Body, maxTokenAnswer))
		req.Body.Close()
		if err != nil {
			return "", err
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	return strings.Join([]string{req.Method, req.URL.String(), req.Header.Get("Authorization"), string(body)}, "\n"), nil
}

package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// maxAnswer bounds an answer of the API, in bytes.
const maxAnswer = 16 << 20

// The forms in which the API answers.
const (
	asJSON  = "application/json"
	asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asNames = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

// caller makes API calls as the person that a page is for.
type caller struct {
	api  http.Handler
	from *http.Request // the person's request: its address and connection are those of the calls
	// token is the session's; without one the calls have the credential of the person's request.
	token string
}

// apiError is an answer of the API that is not what was asked for.
type apiError struct {
	Code    int  `json:"code"`
	Reason  text `json:"reason"`
	Message text `json:"message"`
	Details struct {
		Group text `json:"group"`
		Kind  text `json:"kind"`
	} `json:"details"` // of what it is about, which may be another resource than that of the path
	Path string `json:"-"`
}

func (e *apiError) Error() string { return string(e.Message) }

// isCode reports whether err is an answer of the API with this code.
func isCode(err error, code int) bool {
	var e *apiError
	return errors.As(err, &e) && e.Code == code
}

// request makes the request of a call.
func (c *caller) request(ctx context.Context, method, path string, query url.Values, accept string, body []byte) (*http.Request, error) {
	target := url.URL{Path: path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, method, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.RequestURI, r.RemoteAddr, r.Host = target.RequestURI(), c.from.RemoteAddr, c.from.Host
	r.Header.Set("User-Agent", "tidewaiter-console")
	r.Header.Set("Accept", accept)
	if body != nil {
		r.Header.Set("Content-Type", asJSON)
	}
	for name, values := range c.from.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			// whom the person asks for; the API says whether they may
			r.Header[name] = values
		}
	}
	switch own := c.from.Header.Values("Authorization"); {
	case c.token != "":
		r.Header.Set("Authorization", "Bearer "+c.token)
	case len(own) > 0:
		r.Header["Authorization"] = own
		r.TLS = c.from.TLS
	default:
		r.TLS = c.from.TLS
	}
	return r, nil
}

// get reads what is at a path into v.
func (c *caller) get(ctx context.Context, path string, query url.Values, v any) error {
	return c.getAs(ctx, asJSON, path, query, v)
}

// getAs is get in one of the forms in which the API answers.
func (c *caller) getAs(ctx context.Context, accept, path string, query url.Values, v any) error {
	a, err := c.do(ctx, http.MethodGet, path, query, accept, nil)
	if err != nil {
		return err
	}
	return a.read(path, v)
}

// table reads a list as the table that kubectl prints, with the warnings that come with it.
func (c *caller) table(ctx context.Context, path string, query url.Values) (*table, error) {
	t := &table{}
	a, err := c.do(ctx, http.MethodGet, path, query, asTable, nil)
	if err != nil {
		return t, err
	}
	// those that cannot be read are for no one
	warnings, _ := utilnet.ParseWarningHeaders(a.header["Warning"])
	for _, w := range warnings {
		t.Warnings = append(t.Warnings, textOf(w.Text))
	}
	return t, a.read(path, t)
}

// post sends an object, or nothing if it is nil, and reads the answer into v, unless that is nil.
func (c *caller) post(ctx context.Context, path string, query url.Values, object, v any) error {
	body := []byte{}
	if object != nil {
		var err error
		if body, err = json.Marshal(object); err != nil {
			return err
		}
	}
	a, err := c.do(ctx, http.MethodPost, path, query, asJSON, body)
	if err != nil || v == nil {
		return err
	}
	return a.read(path, v)
}

// do makes a call, and returns the whole answer if the API has not refused it.
func (c *caller) do(ctx context.Context, method, path string, query url.Values, accept string, body []byte) (*answer, error) {
	r, err := c.request(ctx, method, path, query, accept, body)
	if err != nil {
		return nil, err
	}
	a := &answer{header: http.Header{}}
	if err := serve(c.api, a, r); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	switch {
	case a.tooLong:
		return nil, fmt.Errorf("the answer has more than %d MiB", maxAnswer>>20)
	case a.code >= http.StatusBadRequest:
		return nil, errorOf(a.code, path, a.body.Bytes())
	}
	return a, nil
}

// errorOf reads the answer to a call that failed: a Status, or plain text.
func errorOf(code int, path string, body []byte) *apiError {
	e := &apiError{}
	if err := json.Unmarshal(body, e); err != nil || e.Message == "" {
		_ = e.Message.UnmarshalText(bytes.TrimSpace(body[:min(len(body), 1024)]))
		if e.Message == "" {
			e.Message = text(http.StatusText(code))
		}
	}
	e.Code, e.Path = code, path
	return e
}

// serve has api answer r. A handler that gives up its connection, as the chain does when it is
// late, fails the call alone.
func serve(api http.Handler, w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		if p := recover(); p == http.ErrAbortHandler {
			err = errors.New("the API broke off its answer")
		} else if p != nil {
			panic(p)
		}
	}()
	api.ServeHTTP(w, r)
	return nil
}

// answer takes the answer to a call.
type answer struct {
	header  http.Header
	code    int
	body    bytes.Buffer
	tooLong bool
}

// read reads what the API answered at a path into v.
func (a *answer) read(path string, v any) error {
	if err := json.Unmarshal(a.body.Bytes(), v); err != nil {
		return fmt.Errorf("the answer at %s cannot be read: %w", path, err)
	}
	return nil
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(code int) { a.code = cmp.Or(a.code, code) }

// Write implements http.ResponseWriter.
func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if a.body.Len()+len(p) > maxAnswer {
		a.tooLong = true
		return 0, io.ErrShortBuffer
	}
	return a.body.Write(p)
}

// Flush implements http.Flusher: there is nobody to tell yet.
func (*answer) Flush() {}

// CloseNotify is what Kubernetes' filters ask of a writer that is to be flushed.
func (a *answer) CloseNotify() <-chan bool {
	return make(chan bool)
}

// stream takes the answer to a watch, and hands on its events whenever they are flushed. A page
// that is open has no goroutine besides that of its request: a thousand of them would hold 16 MiB
// of stacks.
type stream struct {
	answer
	each func(watchEvent) error
	stop context.CancelFunc // ends the watch
	err  error              // why it was ended
}

// Write implements http.ResponseWriter.
func (s *stream) Write(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	return s.answer.Write(p)
}

// Flush implements http.Flusher: what was written is whole events.
func (s *stream) Flush() {
	if s.code != http.StatusOK || s.err != nil {
		return
	}
	for decoder := json.NewDecoder(&s.body); s.err == nil; {
		var event watchEvent
		if s.err = decoder.Decode(&event); s.err == nil {
			s.err = s.hand(event)
		}
	}
	s.body = bytes.Buffer{} // frees the memory of a large event
	if s.err == io.EOF {
		s.err = nil
		return
	}
	s.stop()
}

// hand hands on an event.
func (s *stream) hand(event watchEvent) error {
	if event.Type != "ERROR" {
		return s.each(event)
	}
	e := &apiError{}
	if err := json.Unmarshal(event.Object, e); err != nil {
		return err
	}
	return e
}

// watch follows a list from a resourceVersion on, and calls each with every event until ctx ends,
// the watch does, or each returns an error.
func (c *caller) watch(ctx context.Context, path string, query url.Values, accept string, each func(event watchEvent) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	query.Set("watch", "true")
	r, err := c.request(ctx, http.MethodGet, path, query, accept, nil)
	if err != nil {
		return err
	}
	s := &stream{answer: answer{header: http.Header{}}, each: each, stop: stop}
	err = serve(c.api, s, r)
	s.Flush()
	switch {
	case s.err != nil:
		return s.err
	case err == nil && s.code >= http.StatusBadRequest:
		return errorOf(s.code, path, s.body.Bytes())
	}
	return err
}

type watchEvent struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// needs says which role lets a person do what the API refused.
func needs(e *apiError) string {
	path := e.Path
	if e.Details.Group != "" && strings.HasPrefix(path, "/apis/") {
		path = "/apis/" + string(e.Details.Group) + "/v1/" + string(e.Details.Kind)
	}
	for _, known := range [][2]string{
		{"/apis/tidewaiter.dev/v1/cluster", "tidewaiter:cluster-viewer"},
		{"/apis/image.openshift.io/", "tidewaiter:image-viewer"},
		{"/apis/config.openshift.io/", "tidewaiter:image-viewer"},
		{"/apis/tidewaiter.dev/", "tidewaiter:image-viewer"},
		{summaryPath, "tidewaiter:summary-viewer"},
		{importsPath, "tidewaiter:importer"},
		{"/tidewaiter/spool", "tidewaiter:queue-viewer"},
		{"/tidewaiter/verification", "tidewaiter:verifier"},
	} {
		if strings.HasPrefix(path, known[0]) {
			return known[1]
		}
	}
	return "view"
}

// whoAmIPath is where the API says who calls.
const whoAmIPath = "/apis/user.openshift.io/v1/users/~"

// whoAmI returns the name of the person. In a cluster that does not let people ask, it is empty.
func (c *caller) whoAmI(ctx context.Context) (text, error) {
	var u user
	err := c.get(ctx, whoAmIPath, nil, &u)
	if isCode(err, http.StatusForbidden) || isCode(err, http.StatusNotFound) {
		return "", nil
	}
	return u.Metadata.Name, err
}

package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// maxAnswer bounds an answer of the API, in bytes.
const maxAnswer = 16 << 20

// maxLive bounds an event of a watch, in bytes, because each open page holds a copy. In place of a
// larger one, the page gets a notice.
const maxLive = 64 << 10

// The forms in which the API answers.
const (
	asJSON  = "application/json"
	asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"
	asNames = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

// caller makes API calls as the person who requested a page.
type caller struct {
	api  http.Handler
	from *http.Request // the person's request: calls have its remote address and connection
	// token is the session's token; if it is empty, calls use the credential of the person's request.
	token string
	// turn belongs to the page for which the calls are made; nil if there is none.
	turn *turn
}

// apiError is an error that the API returned.
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

// isCode reports whether err is an apiError with this code.
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
			// impersonation headers; the API decides whether the person may use them
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
	_, err := c.getWarnedAs(ctx, accept, path, query, v)
	return err
}

// table reads a list as the table that kubectl prints, with the warnings that come with it.
func (c *caller) table(ctx context.Context, path string, query url.Values) (*table, error) {
	t := &table{}
	var err error
	t.Warnings, err = c.getWarnedAs(ctx, asTable, path, query, t)
	return t, err
}

// getWarned is get with the warnings that come with the answer.
func (c *caller) getWarned(ctx context.Context, path string, query url.Values, v any) ([]text, error) {
	return c.getWarnedAs(ctx, asJSON, path, query, v)
}

func (c *caller) getWarnedAs(ctx context.Context, accept, path string, query url.Values, v any) (all []text, err error) {
	a, err := c.do(ctx, http.MethodGet, path, query, accept, nil)
	if err != nil {
		return nil, err
	}
	// warnings that cannot be parsed are dropped
	warnings, _ := utilnet.ParseWarningHeaders(a.header["Warning"])
	for _, w := range warnings {
		all = append(all, textOf(w.Text))
	}
	return all, a.read(path, v)
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

// do makes a call, and returns the complete answer, or an error if the API returned one.
func (c *caller) do(ctx context.Context, method, path string, query url.Values, accept string, body []byte) (*answer, error) {
	r, err := c.request(ctx, method, path, query, accept, body)
	if err != nil {
		return nil, err
	}
	a := &answer{header: http.Header{}, turn: c.turn}
	if err := serve(c.api, a, r); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	switch {
	case a.err != nil:
		return nil, a.err
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

// serve calls api with r. If a handler aborts the connection, as the chain does after a timeout,
// only this call fails.
func serve(api http.Handler, w http.ResponseWriter, r *http.Request) (err error) {
	defer func() {
		if p := recover(); p == http.ErrAbortHandler {
			err = errors.New("the API ended its answer early")
		} else if p != nil {
			panic(p)
		}
	}()
	api.ServeHTTP(w, r)
	return nil
}

// errLargeAnswer is the error of an answer of more than maxAnswer bytes.
var errLargeAnswer = fmt.Errorf("the answer has more than %d MiB", maxAnswer>>20)

// answer receives the answer to a call.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
	turn   *turn // counts the answer's bytes; may be nil
	err    error // why the answer is incomplete
}

// read reads what the API answered at a path into v.
func (a *answer) read(path string, v any) error {
	defer a.turn.work()()
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
	switch {
	case a.err != nil:
	case a.body.Len()+len(p) > maxAnswer:
		a.err = errLargeAnswer
	case a.turn != nil:
		a.err = a.turn.count(len(p))
	}
	if a.err != nil {
		return 0, a.err
	}
	return a.body.Write(p)
}

// Flush implements http.Flusher. It does nothing, because the answer is collected.
func (*answer) Flush() {}

// CloseNotify implements http.CloseNotifier, which Kubernetes' filters require of an http.Flusher.
func (a *answer) CloseNotify() <-chan bool {
	return make(chan bool)
}

// stream receives the answer to a watch and passes each line on as soon as it is complete, so it
// holds one line at most. An open page needs only the goroutine of its request: a second one for
// each of a thousand pages would take 16 MiB of stacks.
type stream struct {
	answer
	each  func(line []byte) error // gets nil for a line of more than maxLive bytes
	turn  Turn                    // an event makes all watches find its lines at once
	stop  context.CancelFunc      // ends the watch
	err   error                   // why the watch was ended
	large bool                    // the line under way has more than maxLive bytes
}

// Write implements http.ResponseWriter.
func (s *stream) Write(p []byte) (int, error) {
	if s.WriteHeader(http.StatusOK); s.code != http.StatusOK {
		return s.answer.Write(p)
	}
	defer s.turn.Begin()()
	for line := range bytes.Lines(p) {
		if s.err != nil {
			return 0, s.err
		}
		if s.body.Len()+len(line) > maxLive {
			s.large = true
			s.body = bytes.Buffer{}
		}
		switch whole := line[len(line)-1] == '\n'; {
		case !whole && !s.large:
			s.body.Write(line)
			continue
		case !whole:
			continue
		case s.large:
			s.large, line = false, nil
		case s.body.Len() > 0:
			s.body.Write(line)
			line, s.body = s.body.Bytes(), bytes.Buffer{}
		}
		if s.err = s.each(line); s.err != nil {
			s.stop()
		}
	}
	return len(p), s.err
}

// watch watches a list from a resourceVersion on. It calls each with every event, as a line of
// JSON, in a turn, until ctx or the watch ends, or each returns an error. For an event of more than
// maxLive bytes, each gets nil.
func (c *caller) watch(ctx context.Context, path string, query url.Values, accept string, turn Turn, each func(line []byte) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	query.Set("watch", "true")
	r, err := c.request(ctx, http.MethodGet, path, query, accept, nil)
	if err != nil {
		return err
	}
	s := &stream{answer: answer{header: http.Header{}}, each: each, turn: turn, stop: stop}
	err = serve(c.api, s, r)
	switch {
	case s.err != nil:
		return s.err
	case err == nil && s.code >= http.StatusBadRequest:
		return errorOf(s.code, path, s.body.Bytes())
	}
	return err
}

// needs returns the role that permits what the API refused.
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

// whoAmIPath is where the API returns the caller's name.
const whoAmIPath = "/apis/user.openshift.io/v1/users/~"

// whoAmI returns the name of the person. It is empty if a cluster does not permit the request.
func (c *caller) whoAmI(ctx context.Context) (text, error) {
	var u user
	err := c.get(ctx, whoAmIPath, nil, &u)
	if isCode(err, http.StatusForbidden) || isCode(err, http.StatusNotFound) {
		return "", nil
	}
	return u.Metadata.Name, err
}

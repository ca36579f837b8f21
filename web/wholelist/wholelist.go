// Package wholelist answers lists without a limit page by page, so that one list, however long,
// takes the memory of a page.
//
// It requests pages from the API server and joins them. The client gets one list, byte for byte the
// one that the API server would send. Tables, lists of metadata, indented JSON and YAML are joined,
// too. A list in protobuf begins with its length, so its pages are read twice, first to measure
// them. A computed list may differ the second time, so its pages are kept in memory until it is
// complete.
package wholelist

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/room"
)

// Limit is how many objects a page has.
const Limit = 500

// pagePause is how long a list waits before it requests a page again that was refused for lack of
// room.
const pagePause = time.Second

// Bounds, in bytes, of the computed lists in protobuf that are kept in memory: of all lists, and of
// one user's. The API server answers a longer list.
const (
	keptBytes   = 64 << 20
	keptByAUser = keptBytes / 2
)

// Options of [Serve].
type Options struct {
	// Serializer negotiates the form of an answer.
	Serializer runtime.NegotiatedSerializer
	// Computed, if set, reports whether a list is computed when it is read, so that two reads may
	// differ.
	Computed func(*request.RequestInfo) bool
	// Pages returns a function that ends the previous page and returns the context for the next.
	Pages func(context.Context) (next func() context.Context)
}

// Serve answers lists without a limit by joining pages from next. It passes every other request to
// next. It must run after authorization.
func Serve(next http.Handler, o Options) http.Handler { return newServer(next, o) }

func newServer(next http.Handler, o Options) *server {
	return &server{next: next, o: o, kept: room.New(keptBytes, keptByAUser), maxKept: keptByAUser, failed: map[schema.GroupResource]bool{}}
}

// asAPI has the API server's rules for the form of an answer.
var asAPI = &handlers.RequestScope{TableConvertor: rest.NewDefaultTableConvertor(schema.GroupResource{})}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !s.joins(r, info) {
		s.next.ServeHTTP(w, r)
		return
	}
	answer, form, err := negotiation.NegotiateOutputMediaType(r, s.o.Serializer, asAPI)
	if err != nil {
		s.next.ServeHTTP(w, r)
		return
	}
	l := &list{server: s, request: r, pages: s.o.Pages(r.Context()), accept: runtime.ContentTypeJSON}
	switch answer.Accepted.MediaType {
	case runtime.ContentTypeJSON:
		l.form = plain
		if form.PrettySerializer != nil && form.Serializer == form.PrettySerializer {
			l.form = indented
		}
	case runtime.ContentTypeYAML:
		l.form = inYAML
	case runtime.ContentTypeProtobuf:
		l.form, l.accept = inProtobuf, runtime.ContentTypeProtobuf
	}
	if l.form.split == nil {
		s.next.ServeHTTP(w, r)
		return
	}
	l.computed = s.o.Computed != nil && s.o.Computed(info)
	l.contentType = answer.Accepted.MediaType
	if as := answer.Convert; as != nil {
		l.accept += fmt.Sprintf(";as=%s;g=%s;v=%s", as.Kind, as.Group, as.Version)
	}
	l.serve(w)
}

type server struct {
	next    http.Handler
	o       Options
	kept    *room.Room // bytes of kept lists, by user
	maxKept int64      // bytes of one kept list

	mu sync.Mutex
	// failed are the resources whose last list ended early. The API server answers the next list, so
	// that it reports the error.
	failed map[schema.GroupResource]bool
}

// joins reports whether a request is answered here.
func (s *server) joins(r *http.Request, info *request.RequestInfo) bool {
	if r.Method != http.MethodGet || !info.IsResourceRequest || info.Verb != "list" || info.Name != "" || info.Subresource != "" {
		return false
	}
	query := r.URL.Query()
	if n := query.Get("limit"); n != "" && n != "0" || len(query["limit"]) > 1 || query.Has("watch") {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	failed := s.failed[resourceOf(info)]
	delete(s.failed, resourceOf(info))
	return !failed
}

func resourceOf(info *request.RequestInfo) schema.GroupResource {
	return schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
}

// list is a running list that is joined from pages.
type list struct {
	*server
	request     *http.Request
	pages       func() context.Context
	accept      string // form in which pages are requested
	contentType string // of the answer
	form        form
	computed    bool
	buf         bytes.Buffer // the page that is being read
}

// page requests the page for a continue token; "" is the first page. If at is not empty, the first
// page is read at that revision.
func (l *list) page(w http.ResponseWriter, token, at string) *page {
	l.buf.Reset()
	p := &page{ResponseWriter: w, header: http.Header{}, body: &l.buf}
	r := l.request.Clone(l.pages())
	r.Header.Set("Accept", l.accept)
	r.Header.Del("Accept-Encoding")
	query := r.URL.Query()
	query.Set("limit", strconv.Itoa(Limit))
	query.Set("pretty", "false")
	has := func(parameter string) bool { return query.Get(parameter) != "" } // "" counts as none
	switch rv := query.Get("resourceVersion"); {
	case token != "":
		query.Set("continue", token)
		query.Del("resourceVersion")
		query.Del("resourceVersionMatch")
	case at != "" && !has("continue"):
		query.Set("resourceVersion", at)
		query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchExact))
	case rv != "" && !has("resourceVersionMatch") && !has("continue"):
		// With a limit, a revision alone means exactly that one.
		query.Set("resourceVersionMatch", string(metav1.ResourceVersionMatchNotOlderThan))
	}
	r.URL.RawQuery = query.Encode()
	r.RequestURI = r.URL.RequestURI()
	l.next.ServeHTTP(responsewriter.WrapForHTTP1Or2(p), r)
	return p
}

// following requests and splits a page of a list that has begun. It waits while there is no room
// for the page.
func (l *list) following(w http.ResponseWriter, token, at string) (*parts, error) {
	for {
		p := l.page(w, token, at)
		switch {
		case p.code == http.StatusOK:
			return l.form.split(p.body.Bytes())
		case p.code != http.StatusTooManyRequests:
			return nil, fmt.Errorf("a page was answered with %d: %s", p.code, p.body.Bytes()[:min(p.body.Len(), 1024)])
		}
		select {
		case <-time.After(pagePause):
		case <-l.request.Context().Done():
			return nil, context.Cause(l.request.Context())
		}
	}
}

// serve answers with the list.
func (l *list) serve(w http.ResponseWriter) {
	first := l.page(w, "", "")
	p, err := l.form.split(first.body.Bytes())
	if first.code != http.StatusOK || err != nil {
		// next reports the error in the requested form
		l.next.ServeHTTP(w, l.request)
		return
	}
	if l.form.measured && l.computed && p.meta.Continue != "" {
		joined, release := l.keep(w, p)
		defer release()
		if joined == nil {
			return
		}
		p = joined
	}
	maps.Copy(w.Header(), first.header)
	for _, own := range []string{"Content-Length", "Content-Encoding", "Vary"} {
		w.Header().Del(own)
	}
	w.Header().Set("Content-Type", l.contentType)
	out := &output{ResponseWriter: w, zip: responsewriters.ContentEncodingSupported(l.request, features.APIResponseCompression) == "gzip"}
	if err := l.join(w, out, p); err != nil {
		l.giveUp(err)
	}
}

// keep reads the other pages of a list, and returns one page with all items. It returns nil if it
// has answered the request itself.
func (l *list) keep(w http.ResponseWriter, first *parts) (joined *parts, release func()) {
	party, has := "", int64(0)
	if user, ok := request.UserFrom(l.request.Context()); ok {
		party = user.GetName()
	}
	release = func() { l.kept.Remove(party, has) }
	joined = &parts{meta: *first.complete(), head: first.head}
	for p := first; ; {
		n := int64(len(p.items))
		if has+n > l.maxKept {
			l.next.ServeHTTP(w, l.request) // next answers, or refuses with advice to read pages
			return nil, release
		}
		if !l.kept.TryAdd(party, has, n) {
			responsewriters.ErrorNegotiated(apierrors.NewTooManyRequests("other large lists in protobuf are being read: try again, or list in pages (limit and continue)", 1), l.o.Serializer, schema.GroupVersion{}, w, l.request)
			return nil, release
		}
		has += n
		joined.items = append(joined.items, p.items...)
		if p.meta.Continue == "" {
			return joined, release
		}
		var err error
		if p, err = l.following(w, p.meta.Continue, ""); err != nil {
			l.next.ServeHTTP(w, l.request) // next reports the error
			return nil, release
		}
	}
}

// join writes the list whose first page is p.
func (l *list) join(w http.ResponseWriter, out *output, p *parts) error {
	size := int64(len(p.items))
	if first := p.meta; l.form.measured && first.Continue != "" {
		for next := first.Continue; next != ""; {
			q, err := l.following(w, next, "")
			if err != nil {
				return err
			}
			size, next = size+int64(len(q.items)), q.meta.Continue
		}
		var err error
		if p, err = l.following(w, "", first.ResourceVersion); err != nil {
			return err
		}
	}
	f, err := l.form.around(p, size)
	if err != nil {
		return err
	}
	if err := out.write(f.before); err != nil {
		return err
	}
	begun := false
	for {
		if len(p.items) > 0 {
			text, err := l.form.items(p.items, begun)
			if err != nil {
				return err
			}
			if !begun {
				if err := out.write(f.open); err != nil {
					return err
				}
			}
			begun = true
			if err := out.write(text); err != nil {
				return err
			}
		}
		if p.meta.Continue == "" {
			break
		}
		if p, err = l.following(w, p.meta.Continue, ""); err != nil {
			return err
		}
	}
	end := f.end
	if !begun {
		end = f.empty
	}
	if err := out.write(append(bytes.Clone(end), f.after...)); err != nil {
		return err
	}
	return out.close()
}

// giveUp ends a list that cannot continue. Only aborting the connection can signal failure now.
func (l *list) giveUp(err error) {
	ctx := l.request.Context()
	if info, ok := request.RequestInfoFrom(ctx); ok && ctx.Err() == nil {
		slog.WarnContext(ctx, "A list ended early; the next one will report the error", "resource", resourceOf(info), "err", err)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failed[resourceOf(info)] = true
	}
	panic(http.ErrAbortHandler)
}

// page records the answer to a request for a page.
type page struct {
	http.ResponseWriter // the list's, to detect that its client has gone
	header              http.Header
	code                int
	body                *bytes.Buffer
}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (p *page) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// Header implements http.ResponseWriter.
func (p *page) Header() http.Header { return p.header }

// WriteHeader implements http.ResponseWriter.
func (p *page) WriteHeader(code int) { p.code = cmp.Or(p.code, code) }

// Write implements http.ResponseWriter.
func (p *page) Write(b []byte) (int, error) {
	p.WriteHeader(http.StatusOK)
	return p.body.Write(b)
}

// Flush implements http.Flusher. A page is not sent before it is complete.
func (p *page) Flush() {}

// gzipThreshold is the length above which the API server compresses lists, too.
const gzipThreshold = 128 << 10

var zips = responsewriters.NewGzipWriterPoolOrDie()

// output receives a joined list. It compresses a long list if the client accepts that.
type output struct {
	http.ResponseWriter
	zip  bool
	held []byte // the beginning, until the length decides whether to compress
	to   io.Writer
}

func (o *output) write(b []byte) error {
	if o.to == nil && o.zip && len(o.held)+len(b) <= gzipThreshold {
		o.held = append(o.held, b...)
		return nil
	}
	if o.to == nil {
		o.to = o.ResponseWriter
		if o.zip {
			o.Header().Set("Content-Encoding", "gzip")
			o.Header().Add("Vary", "Accept-Encoding")
			zip := zips.Get().(*gzip.Writer)
			zip.Reset(o.ResponseWriter)
			o.to = zip
		}
		if _, err := o.to.Write(o.held); err != nil {
			return err
		}
		o.held = nil
	}
	_, err := o.to.Write(b)
	return err
}

// close writes what is left. A writer that failed is not used again.
func (o *output) close() error {
	zip, ok := o.to.(*gzip.Writer)
	if !ok {
		_, err := o.ResponseWriter.Write(o.held)
		return err
	}
	if err := zip.Close(); err != nil {
		return err
	}
	zip.Reset(nil)
	zips.Put(zip)
	return nil
}

// Package wholelist answers lists without a limit page by page, so that one list, however long,
// takes the memory of a page.
//
// It asks the API server for pages, in JSON, and joins them: to the client it is one list, as the
// API server would answer it, byte for byte. Tables, lists of metadata, indented JSON and YAML are
// joined too. A list in protobuf begins with its length, so it is made twice: once to measure it.
// One that is computed may not be alike twice, so it is kept until it is whole.
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

// again is how long a list waits before it asks for a page again that found no room.
const again = time.Second

// Bounds of computed lists in protobuf, which are kept in memory: in bytes, of all and of a user's.
// A list that needs more is answered by the API server.
const (
	keptBytes   = 64 << 20
	keptByAUser = keptBytes / 2
)

// Options of [Serve].
type Options struct {
	// Serializer tells which form a request asks for.
	Serializer runtime.NegotiatedSerializer
	// Computed, if set, reports whether a list is computed when it is read. It cannot be read twice
	// alike.
	Computed func(*request.RequestInfo) bool
	// Pages returns a function that ends the page before, and returns the context of the next.
	Pages func(context.Context) (next func() context.Context)
}

// Serve answers lists without a limit with the pages that next answers. It leaves every other
// request to next. It stands behind authorization.
func Serve(next http.Handler, o Options) http.Handler { return newServer(next, o) }

func newServer(next http.Handler, o Options) *server {
	return &server{next: next, o: o, kept: room.New(keptBytes, keptByAUser), most: keptByAUser, failed: map[schema.GroupResource]bool{}}
}

// asAPI are the rules by which the API server answers.
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
	next http.Handler
	o    Options
	kept *room.Room // bytes of lists that are kept, by user
	most int64      // bytes of one of them

	mu sync.Mutex
	// failed are the resources whose last list ended early. The next list is not joined, so that
	// the API server says what is wrong.
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

// list is a list that is joined.
type list struct {
	*server
	request     *http.Request
	pages       func() context.Context
	accept      string // in which form pages are asked for
	contentType string // of the answer
	form        form
	computed    bool
	buf         bytes.Buffer // the page that is being read
}

// page asks for the page that a continue token leads to; for the first one with "". With at it is
// the page of that revision.
func (l *list) page(w http.ResponseWriter, token, at string) *page {
	l.buf.Reset()
	p := &page{ResponseWriter: w, header: http.Header{}, body: &l.buf}
	r := l.request.Clone(l.pages())
	r.Header.Set("Accept", l.accept)
	r.Header.Del("Accept-Encoding")
	query := r.URL.Query()
	query.Set("limit", strconv.Itoa(Limit))
	query.Set("pretty", "false")
	has := func(parameter string) bool { return query.Get(parameter) != "" } // an empty one is none
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

// following is page for a page after the first one. It waits until there is room for it.
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
		case <-time.After(again):
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
		// it says what is wrong in the form that is asked for
		l.next.ServeHTTP(w, l.request)
		return
	}
	if l.form.measured && l.computed && p.meta.Continue != "" {
		whole, release := l.keep(w, p)
		defer release()
		if whole == nil {
			return
		}
		p = whole
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

// keep reads the other pages of a list, and returns one page with all items; nil after it has
// answered otherwise.
func (l *list) keep(w http.ResponseWriter, first *parts) (whole *parts, release func()) {
	party, has := "", int64(0)
	if user, ok := request.UserFrom(l.request.Context()); ok {
		party = user.GetName()
	}
	release = func() { l.kept.Remove(party, has) }
	whole = &parts{meta: *first.complete(), head: first.head}
	for p := first; ; {
		n := int64(len(p.items))
		if has+n > l.most {
			l.next.ServeHTTP(w, l.request) // which says how to read it in pages
			return nil, release
		}
		if !l.kept.TryAdd(party, has, n) {
			responsewriters.ErrorNegotiated(apierrors.NewTooManyRequests("other large lists in protobuf are being read: try again, or list in pages (limit and continue)", 1), l.o.Serializer, schema.GroupVersion{}, w, l.request)
			return nil, release
		}
		has += n
		whole.items = append(whole.items, p.items...)
		if p.meta.Continue == "" {
			return whole, release
		}
		var err error
		if p, err = l.following(w, p.meta.Continue, ""); err != nil {
			l.next.ServeHTTP(w, l.request) // which says what is wrong
			return nil, release
		}
	}
}

// join writes the list that begins with a page.
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

// giveUp ends a list that cannot go on. All that is left is to show that this is not its end.
func (l *list) giveUp(err error) {
	ctx := l.request.Context()
	if info, ok := request.RequestInfoFrom(ctx); ok && ctx.Err() == nil {
		slog.WarnContext(ctx, "A list ended early; the next one says what is wrong", "resource", resourceOf(info), "err", err)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failed[resourceOf(info)] = true
	}
	panic(http.ErrAbortHandler)
}

// page takes the answer to a request for a page.
type page struct {
	http.ResponseWriter // the list's, which tells whether its client is there
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

// Flush implements http.Flusher. A page is not sent before it is whole.
func (p *page) Flush() {}

// zipFrom is the length from which the API server compresses a list, too.
const zipFrom = 128 << 10

var zips = responsewriters.NewGzipWriterPoolOrDie()

// output is what a list is written to. It compresses a long list if the client takes that.
type output struct {
	http.ResponseWriter
	zip  bool
	held []byte // the beginning, until it is known whether it is compressed
	to   io.Writer
}

func (o *output) write(b []byte) error {
	if o.to == nil && o.zip && len(o.held)+len(b) <= zipFrom {
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

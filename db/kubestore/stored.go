package kubestore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metainternalversionvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/kubestore/gzipparts"
)

// StoredKind is a cluster-scoped kind whose stored bytes are its served bytes:
// its internal and its v1 Go type are the same, so that nothing is converted.
type StoredKind struct {
	Resource schema.GroupVersionResource
	Kind     string
}

// storedPageLimit is the longest limited list that is answered from stored
// bytes: its rows are in memory until the continue token is known.
const storedPageLimit = chunkRows

// ServeStored answers plain JSON reads of Options.StoredKinds with the bytes
// that are stored, without decoding them, and leaves every other request to next: tables, other
// encodings, selectors, watches and whatever is malformed. It stands behind
// authentication and authorization, and ends with the deadline of the request's
// context, also when the client does not read. What it answers differs from
// next's answer in the order of the fields of metadata only.
func (g *Getter) ServeStored(next http.Handler) http.Handler {
	byResource := map[schema.GroupVersionResource]*storedReader{}
	for _, k := range g.opts.StoredKinds {
		if s := g.Store(k.Resource.GroupResource()); s != nil {
			byResource[k.Resource] = s.reader
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := request.RequestInfoFrom(req.Context())
		if !ok || !info.IsResourceRequest || info.Subresource != "" || info.Namespace != "" || req.Method != http.MethodGet || !wantsPlainJSON(req) {
			next.ServeHTTP(w, req)
			return
		}
		r := byResource[schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}]
		switch {
		case r != nil && info.Verb == "get" && info.Name != "" && req.URL.RawQuery == "":
			defer boundWrites(w, req)()
			r.instrumented("GET", "resource", func(w http.ResponseWriter, req *http.Request) { r.get(w, req, info.Name) })(w, req)
		case r != nil && info.Verb == "list" && info.Name == "":
			opts, ok := storedListOptions(req.URL.Query())
			if !ok || r.meetsUnreadable(req.Context()) {
				next.ServeHTTP(w, req)
				return
			}
			defer boundWrites(w, req)()
			r.instrumented("LIST", "cluster", func(w http.ResponseWriter, req *http.Request) { r.list(w, req, opts, next) })(w, req)
		default:
			next.ServeHTTP(w, req)
		}
	})
}

// boundWrites has writes fail from the request's deadline on, until the function
// that it returns is called.
func boundWrites(w http.ResponseWriter, req *http.Request) (release func()) {
	deadline, ok := req.Context().Deadline()
	c := http.NewResponseController(w)
	if !ok || c.SetWriteDeadline(deadline) != nil {
		return func() {}
	}
	return func() { _ = c.SetWriteDeadline(time.Time{}) } // an error means that the client is gone
}

// wantsPlainJSON is true of a request whose answer, by Kubernetes' rules of
// negotiation, is JSON on one line.
func wantsPlainJSON(req *http.Request) bool {
	for _, accept := range req.Header.Values("Accept") {
		for media := range strings.SplitSeq(accept, ",") {
			switch strings.TrimSpace(media) {
			case "", "application/json", "*/*", "application/*":
			default:
				return false
			}
		}
	}
	// Command line tools and browsers get indented JSON.
	agent := req.UserAgent()
	return !strings.HasPrefix(agent, "curl") && !strings.HasPrefix(agent, "Wget") && !strings.HasPrefix(agent, "Mozilla/5.0")
}

// storedListOptions are the storage's options for a list without a selector; ok
// is false for anything else, and for what the API server refuses.
func storedListOptions(query url.Values) (_ storage.ListOptions, ok bool) {
	for name := range query {
		switch name {
		case "limit", "continue", "resourceVersion", "resourceVersionMatch", "timeoutSeconds":
		default:
			return storage.ListOptions{}, false
		}
	}
	in := metainternalversion.ListOptions{}
	if err := metainternalversionscheme.ParameterCodec.DecodeParameters(query, metav1.SchemeGroupVersion, &in); err != nil {
		return storage.ListOptions{}, false
	}
	if errs := metainternalversionvalidation.ValidateListOptions(&in, true); len(errs) > 0 || in.Limit < 0 || in.Limit > storedPageLimit {
		return storage.ListOptions{}, false
	}
	out := storage.ListOptions{
		ResourceVersion:      in.ResourceVersion,
		ResourceVersionMatch: in.ResourceVersionMatch,
		Predicate:            storage.Everything,
		Recursive:            true,
	}
	out.Predicate.Limit, out.Predicate.Continue = in.Limit, in.Continue
	return out, true
}

// storedReader answers reads of one kind.
type storedReader struct {
	g    *Getter
	s    *Store
	kind StoredKind
	// head is how every stored object begins, up to and with the brace that
	// opens its metadata.
	head []byte
	// encoder identifies the API server's encoder to plain JSON.
	encoder runtime.Identifier
	// The forms of lists.
	plain *listForm[struct{}]
	gzip  *listForm[gzipparts.Sum]
	// unreadable is the key of an object that could not be read, if one was met.
	unreadable atomic.Pointer[string]
}

func newStoredReader(g *Getter, s *Store, k StoredKind) *storedReader {
	gv := k.Resource.GroupVersion()
	head := `{"kind":` + strconv.Quote(k.Kind) + `,"apiVersion":` + strconv.Quote(gv.String()) + `,"metadata":{`
	r := &storedReader{g: g, s: s, kind: k, head: []byte(head)}
	r.plain, r.gzip = plainForm(r), gzipForm(r)
	if info, ok := runtime.SerializerInfoForMediaType(g.codecs.SupportedMediaTypes(), runtime.ContentTypeJSON); ok {
		r.encoder = g.codecs.EncoderForVersion(info.Serializer, gv).Identifier()
	}
	return r
}

// close gives files back.
func (r *storedReader) close() {
	r.plain.kept.Close()
	r.gzip.kept.Close()
}

func (r *storedReader) instrumented(verb, scope string, h http.HandlerFunc) http.HandlerFunc {
	gvr := r.kind.Resource
	return metrics.InstrumentHandlerFunc(verb, gvr.Group, gvr.Version, gvr.Resource, "", scope, metrics.APIServerComponent, false, "", h)
}

func (r *storedReader) fail(w http.ResponseWriter, req *http.Request, err error) {
	if errors.Is(req.Context().Err(), context.DeadlineExceeded) {
		err = apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	responsewriters.ErrorNegotiated(err, r.g.codecs, r.kind.Resource.GroupVersion(), w, req)
}

// get answers with one object.
func (r *storedReader) get(w http.ResponseWriter, req *http.Request, name string) {
	head, rest, err := r.read(req.Context(), name)
	if err != nil {
		r.fail(w, req, storeerr.InterpretGetError(err, r.kind.Resource.GroupResource(), name))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(head)+len(rest)))
	_, _ = w.Write(head) // an error means that the client is gone
	_, _ = w.Write(rest)
}

func (r *storedReader) read(ctx context.Context, name string) (head, rest []byte, err error) {
	key, err := r.s.prepareKey(r.s.resourcePrefix+name, false)
	if err != nil {
		return nil, nil, err
	}
	kv, ok, _, err := r.s.db.Get(ctx, key)
	if err != nil {
		return nil, nil, r.s.interpret(err)
	}
	if !ok {
		return nil, nil, storage.NewKeyNotFoundError(key, 0)
	}
	if head, rest, err = r.object(ctx, make([]byte, 0, len(r.head)+48), &kv); err != nil {
		if c, ok := asCorrupt(err); ok {
			err = storage.NewCorruptObjError(key, c)
		}
	}
	return head, rest, err
}

// meetsUnreadable tells whether a list must be left to the API server, because an
// object that cannot be read is known: when the first bytes are out it is too late
// to say so.
func (r *storedReader) meetsUnreadable(ctx context.Context) bool {
	key := r.unreadable.Load()
	if key == nil {
		return false
	}
	kv, ok, _, err := r.s.db.Get(ctx, *key)
	if err == nil && ok {
		_, _, err = r.object(ctx, nil, &kv)
	}
	if err != nil {
		return true
	}
	r.unreadable.CompareAndSwap(key, nil)
	return false
}

// object is the stored object with its resourceVersion in place, in two parts:
// head is appended to buf, rest is what follows.
func (r *storedReader) object(ctx context.Context, buf []byte, kv *db.KV) (head, rest []byte, err error) {
	defer func() {
		if err != nil {
			key := kv.Key // and not the page it is of
			r.unreadable.Store(&key)
		}
	}()
	if kv.Err != nil {
		return buf, nil, markDamaged(kv.Err, kv.Rev)
	}
	data, _, err := r.s.transformer.TransformFromStorage(ctx, kv.Value, keyContext(kv.Key))
	if err != nil {
		return buf, nil, storage.NewInternalError(fmt.Errorf("unable to transform key %q: %w", kv.Key, err))
	}
	rest, ok := r.metadata(data)
	if !ok {
		// Not as the encoder writes it: by an older release, or by hand.
		if data, err = r.encodeAnew(data, kv.Rev); err != nil {
			return buf, nil, err
		}
		if rest, ok = r.metadata(data); !ok {
			return buf, nil, storage.NewInternalError(fmt.Errorf("key %q: its encoding does not begin with its kind", kv.Key))
		}
	}
	head = append(buf, r.head...)
	head = append(head, `"resourceVersion":"`...)
	head = strconv.AppendInt(head, kv.Rev, 10)
	return append(head, `",`...), rest, nil
}

// append is object in one part, which is appended to buf.
func (r *storedReader) append(ctx context.Context, buf []byte, kv *db.KV) ([]byte, error) {
	head, rest, err := r.object(ctx, buf, kv)
	return append(head, rest...), err
}

// writeObject writes the stored object as the API server's encoder does.
func (r *storedReader) writeObject(ctx context.Context, w io.Writer, kv *db.KV) error {
	buf := texts.Get().(*[]byte)
	text, err := r.append(ctx, (*buf)[:0], kv)
	if err != nil {
		return err
	}
	*buf = append(text, '\n')
	if _, err = w.Write(*buf); err == nil {
		texts.Put(buf)
	}
	return err
}

// texts are buffers for one object each. One whose Write has failed does not come
// back: HTTP/2 can still be sending it.
var texts = sync.Pool{New: func() any { return new([]byte) }}

// metadata is what follows head in a stored object, without the line's end.
func (r *storedReader) metadata(data []byte) (rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(data, r.head)
	rest = bytes.TrimSuffix(rest, []byte("\n"))
	return rest, ok && len(rest) > 2 && rest[0] == '"' && rest[len(rest)-1] == '}'
}

func (r *storedReader) encodeAnew(data []byte, rev int64) ([]byte, error) {
	obj, _, err := r.s.codec.Decode(data, nil, r.s.newFunc())
	if err != nil {
		return nil, markUndecodable(err, rev)
	}
	return runtime.Encode(r.s.codec, obj)
}

package storedjson

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metainternalversionvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
)

// pageLimit is the largest limit of a list that is answered from stored bytes. The list's keys are
// in memory until the continue token is known.
const pageLimit = 500

// Serve answers plain JSON reads with the bytes that are stored. It leaves every other request to
// next: tables, other encodings, selectors, malformed requests, and objects that cannot be read. It
// must run after authentication and authorization, and after a filter that makes writes fail soon
// after the request's deadline: otherwise a client that does not read would block it for ever. Its
// answers differ from next's only in the order of the fields of metadata.
func (g *Getter) Serve(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, ok := request.RequestInfoFrom(req.Context())
		if !ok || !info.IsResourceRequest || info.Subresource != "" || info.Namespace != "" || req.Method != http.MethodGet || !wantsPlainJSON(req) {
			next.ServeHTTP(w, req)
			return
		}
		k := g.kind(schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource})
		switch {
		case k != nil && info.Verb == "get" && info.Name != "" && req.URL.RawQuery == "":
			k.get(w, req, info.Name, next)
		case k != nil && info.Verb == "list" && info.Name == "":
			query := req.URL.Query()
			opts, ok := listOptions(query)
			read := k.paged(opts)
			if names, named := k.names(query); named {
				ok, read = true, k.named(names)
			}
			if !ok || k.meetsUnreadable(req.Context()) {
				next.ServeHTTP(w, req)
				return
			}
			k.list(w, req, read, next)
		case k != nil && info.Verb == "watch" && info.Name == "" && req.Header.Get("Upgrade") == "":
			opts, ok := newWatchOptions(req.URL.Query())
			if !ok || k.meetsUnreadable(req.Context()) {
				next.ServeHTTP(w, req)
				return
			}
			k.watch(w, req, opts, next)
		default:
			next.ServeHTTP(w, req)
		}
	})
}

// Cheap reports whether a read costs little if Serve answers it: a read of one cluster-scoped
// object in plain JSON, or a request for no resource.
func Cheap(req *http.Request, info *request.RequestInfo) bool {
	return !info.IsResourceRequest || info.Namespace == "" && info.Subresource == "" && wantsPlainJSON(req)
}

// kind returns the kind that is served as resource, if its registry has asked for a storage.
func (g *Getter) kind(resource schema.GroupVersionResource) *kind {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.kinds[resource]
}

// get answers with one object.
func (k *kind) get(w http.ResponseWriter, req *http.Request, name string, next http.Handler) {
	one, err := k.plain.one(req.Context(), name)
	if err != nil {
		// next reports the error, or finds an object that it keeps elsewhere
		next.ServeHTTP(w, req)
		return
	}
	k.answer(w, req, "GET", "resource", func(w http.ResponseWriter, req *http.Request) {
		object := one.Bytes[len(k.plain.comma.bytes):]
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(object)))
		if _, err := w.Write(object); err == nil { // an error means that the client is gone
			k.plain.reuse(one)
		}
	})
}

// answer lets h answer, and counts that in the API server's metrics.
func (k *kind) answer(w http.ResponseWriter, req *http.Request, verb, scope string, h http.HandlerFunc) {
	gvr := k.Resource
	metrics.InstrumentHandlerFunc(verb, gvr.Group, gvr.Version, gvr.Resource, "", scope, metrics.APIServerComponent, false, "", h)(w, req)
}

// wantsPlainJSON reports whether, by Kubernetes' content negotiation, the answer to a request is
// JSON on one line.
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

// names returns the names of the objects that a list selects by name.
func (k *kind) names(query url.Values) (names []string, ok bool) {
	selector := query["fieldSelector"]
	if k.Named == nil || len(query) != 1 || len(selector) != 1 {
		return nil, false
	}
	return k.Named(selector[0])
}

// listOptions returns the storage's options for a list without a selector. ok is false for
// any other request, and for one that the API server refuses.
func listOptions(query url.Values) (_ storage.ListOptions, ok bool) {
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
	if errs := metainternalversionvalidation.ValidateListOptions(&in, true); len(errs) > 0 || in.Limit < 0 || in.Limit > pageLimit {
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

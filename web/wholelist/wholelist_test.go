package wholelist

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
)

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme, serializer.WithStreamingCollectionEncodingToJSON(), serializer.WithStreamingCollectionEncodingToProtobuf())
	pods   = examplev1.SchemeGroupVersion.WithResource("pods")
)

func init() {
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	scheme.AddKnownTypes(example.SchemeGroupVersion, &example.PodList{})
	scheme.AddKnownTypes(examplev1.SchemeGroupVersion, &examplev1.PodList{})
	utilruntime.Must(scheme.AddFieldLabelConversionFunc(examplev1.SchemeGroupVersion.WithKind("Pod"), func(label, value string) (string, string, error) { return label, value, nil }))
}

// lister lists example Pods.
type lister struct {
	*kubestore.Store
	rest.TableConvertor
	most *int  // objects of a page
	page int64 // ends a page after this many objects, as large objects do; 0 for never
}

func (lister) NewList() runtime.Object { return &example.PodList{} }

func (l lister) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	pred := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything(), Limit: o.Limit, Continue: o.Continue, GetAttrs: func(obj runtime.Object) (labels.Set, fields.Set, error) {
		pod := obj.(*example.Pod)
		return pod.Labels, fields.Set{"spec.nodeName": pod.Spec.NodeName}, nil
	}, IndexFields: []string{"spec.nodeName"}}
	if o.LabelSelector != nil {
		pred.Label = o.LabelSelector
	}
	if o.FieldSelector != nil {
		pred.Field = o.FieldSelector
	}
	if l.page > 0 && o.Limit > 0 {
		pred.Limit = min(o.Limit, l.page)
	}
	list := &example.PodList{}
	err := l.GetList(ctx, "/pods/", storage.ListOptions{ResourceVersion: o.ResourceVersion, ResourceVersionMatch: o.ResourceVersionMatch, Predicate: pred, Recursive: true}, list)
	*l.most = max(*l.most, len(list.Items))
	return list, err
}

// fixture has the API server's handler for lists of Pods, and the one of Serve.
type fixture struct {
	alone, joined http.Handler
	most          int // objects of the longest page since it was last 0
	store         *kubestore.Store
}

// setup stores n Pods of about size bytes. Pages have at most page objects, if that is not 0.
func setup(t testing.TB, n, size, page int) *fixture {
	t.Helper()
	f := &fixture{}
	config := kubestore.Config{
		DB: dbtest.Open(t), Codec: apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion), ResourcePrefix: "/pods/", GroupResource: pods.GroupResource(),
		New: func() runtime.Object { return &example.Pod{} }, NewList: func() runtime.Object { return &example.PodList{} },
		Triggers: storage.IndexerFuncs{"spec.nodeName": func(obj runtime.Object) string { return obj.(*example.Pod).Spec.NodeName }},
	}
	var err error
	if f.store, err = kubestore.New(config); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("pod-%05d", i), Labels: map[string]string{"of": fmt.Sprint(i % 3)},
			Annotations: map[string]string{"text": strings.Repeat(`<x> "items":[ ,"items":[ é: - #`, size/30), "n": fmt.Sprint(i), "line": "a\nb: c\n"},
		}, Spec: example.PodSpec{NodeName: fmt.Sprint("node-", i%2)}}
		if err := f.store.Create(t.Context(), "/pods/ns/"+pod.Name, pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	parameters := runtime.NewParameterCodec(scheme)
	scope := &handlers.RequestScope{
		Serializer: codecs, ParameterCodec: parameters, Convertor: scheme, Kind: examplev1.SchemeGroupVersion.WithKind("Pod"), Resource: pods,
		HubGroupVersion: example.SchemeGroupVersion, MetaGroupVersion: metav1.SchemeGroupVersion, TableConvertor: rest.NewDefaultTableConvertor(pods.GroupResource()),
		Namer: handlers.ContextBasedNaming{Namer: runtime.Namer(meta{}), ClusterScoped: true},
	}
	list := handlers.ListResource(lister{f.store, scope.TableConvertor, &f.most, int64(page)}, nil, scope, false, 0)
	f.alone = list
	f.joined = Serve(list, Options{Serializer: codecs, Pages: kubestore.WholeList})
	return f
}

// meta reads the metadata of an object.
type meta struct{}

func (meta) Name(obj runtime.Object) (string, error) {
	return obj.(metav1.Object).GetName(), nil
}

func (meta) Namespace(obj runtime.Object) (string, error) {
	return obj.(metav1.Object).GetNamespace(), nil
}

// requestList requests a list.
func requestList(t testing.TB, h http.Handler, query url.Values, header http.Header) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/apis/example.apiserver.k8s.io/v1/pods?"+query.Encode(), nil)
	r.Header = header.Clone()
	info := &request.RequestInfo{IsResourceRequest: true, Verb: "list", APIGroup: pods.Group, APIVersion: pods.Version, Resource: pods.Resource, Path: r.URL.Path}
	ctx, cancel := context.WithCancel(request.WithRequestInfo(request.WithNamespace(t.Context(), ""), info))
	defer cancel()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r.WithContext(ctx))
	return w
}

func bodyOf(t testing.TB, w *httptest.ResponseRecorder) string {
	t.Helper()
	if w.Header().Get("Content-Encoding") != "gzip" {
		return w.Body.String()
	}
	zip, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const tables, partial = ";as=Table;g=meta.k8s.io;v=v1", ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

// TestJoinedIsTheSame: for any request, a joined list equals the API server's own list, byte for
// byte, and is read page by page.
func TestJoinedIsTheSame(t *testing.T) {
	t.Parallel()
	for _, size := range []struct{ objects, bytes, page int }{{0, 0, 1}, {1, 100, 1}, {7, 20 << 10, 2}, {Limit + 1, 30, Limit}} {
		n, f := 0, setup(t, size.objects, size.bytes, size.page)
		at := requestList(t, f.alone, url.Values{"limit": {"1"}}, nil).Body.String()
		_, at, _ = strings.Cut(at, `"resourceVersion":"`)
		at, first, _ := strings.Cut(at, `"`)
		_, first, _ = strings.Cut(first, `"resourceVersion":"`) // the first object's; "" without any
		first, _, _ = strings.Cut(first, `"`)
		queries := []url.Values{
			nil, {"labelSelector": {"of!=1"}}, {"labelSelector": {"of=2"}}, {"labelSelector": {"of=9"}}, {"fieldSelector": {"spec.nodeName=node-1"}}, {"labelSelector": {"="}}, {"limit": {"0"}},
			{"pretty": {"true"}}, {"includeObject": {"None"}}, {"includeObject": {"Object"}}, {"resourceVersion": {"0"}}, {"resourceVersion": {at}}, {"resourceVersion": {at}, "resourceVersionMatch": {"Exact"}}, {"resourceVersion": {"x"}}, {"limit": {"3"}},
			{"resourceVersion": {first}, "resourceVersionMatch": {""}, "continue": {""}},
		}
		if size.objects > Limit {
			queries = queries[:1]
		}
		for _, accept := range []string{"", "application/json", "application/json;pretty=1", "application/yaml", "application/vnd.kubernetes.protobuf", "application/json" + tables, "application/yaml" + tables, "application/json" + partial, "application/json;pretty=1" + partial, "application/vnd.kubernetes.protobuf" + partial, "application/vnd.kubernetes.protobuf" + tables, "text/nothing"} {
			for _, query := range queries {
				for _, header := range []http.Header{{}, {"Accept-Encoding": {"gzip"}, "User-Agent": {"curl/8"}}} {
					if n++; size.bytes > 100 && n%7 != 0 {
						continue // the others have all combinations
					}
					if accept != "" {
						header.Set("Accept", accept)
					}
					f.sameAnswer(t, query, header, size.page)
				}
			}
		}
	}
}

// sameAnswer compares the answers of both handlers. The joined one may have at most limit objects
// in memory.
func (f *fixture) sameAnswer(t *testing.T, query url.Values, header http.Header, limit int) {
	t.Helper()
	want := requestList(t, f.alone, query, header)
	f.most = 0
	got, name := requestList(t, f.joined, query, header), fmt.Sprint(limit, query, header)
	for _, h := range []string{"Content-Type", "Content-Encoding", "Vary"} {
		if want.Header().Get(h) != got.Header().Get(h) {
			t.Errorf("%s: %s is %q, not %q", name, h, got.Header().Get(h), want.Header().Get(h))
		}
	}
	if a, b := bodyOf(t, want), bodyOf(t, got); want.Code != got.Code || a != b {
		t.Fatalf("%s: %d %.300q, not %d %.300q", name, got.Code, b, want.Code, a)
	}
	if f.most > limit {
		t.Errorf("%s: %d objects were in memory", name, f.most)
	}
}

// TestComputedInProtobuf: a computed list in protobuf is joined, too, and read only once. The kept
// pages are bounded: the API server answers a longer list, and a list for which there is no room
// gets 429.
func TestComputedInProtobuf(t *testing.T) {
	t.Parallel()
	const inProto = "application/vnd.kubernetes.protobuf"
	f := setup(t, 2*Limit+10, 300, 0)
	pages := 0
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pages++
		f.alone.ServeHTTP(w, r)
	})
	s := newServer(counted, Options{Serializer: codecs, Pages: kubestore.WholeList, Computed: func(*request.RequestInfo) bool { return true }})
	f.joined = s
	for _, accept := range []string{inProto, inProto + partial, inProto + tables, "application/yaml"} {
		for _, query := range []url.Values{nil, {"labelSelector": {"of=2"}}, {"labelSelector": {"of=9"}}} {
			f.sameAnswer(t, query, http.Header{"Accept": {accept}}, Limit)
		}
	}
	header := http.Header{"Accept": {inProto}}
	pages = 0
	if requestList(t, s, nil, header); pages != 3 {
		t.Errorf("%d pages were read", pages)
	}
	want := requestList(t, f.alone, nil, header).Body.String()
	s.maxKept = int64(len(want)) / 2
	f.most = 0
	if got := requestList(t, s, nil, header); got.Body.String() != want || f.most != 2*Limit+10 {
		t.Errorf("a list that is too long was not left to the API server: %d, %d objects at most", got.Code, f.most)
	}
	s.maxKept = keptByAUser
	if !s.kept.TryAdd("somebody", 0, keptBytes) {
		t.Fatal("the room is not empty after the lists")
	}
	if got := requestList(t, s, nil, header); got.Code != http.StatusTooManyRequests || got.Header().Get("Retry-After") == "" {
		t.Errorf("without room: %d %v %q", got.Code, got.Header(), got.Body)
	}
	s.kept.Remove("somebody", keptBytes)
	if got := requestList(t, s, nil, header); got.Body.String() != want {
		t.Errorf("with room again: %d", got.Code)
	}
	if !s.kept.TryAdd("somebody", 0, keptBytes) {
		t.Error("the room is not free after the list")
	}
}

// TestPagesOfAnIndex: a list by an index is read page by page, also if a page ends between two
// reads.
func TestPagesOfAnIndex(t *testing.T) {
	t.Parallel()
	f := setup(t, 2*Limit+10, 30, 0)
	query := url.Values{"fieldSelector": {"spec.nodeName=node-1"}}
	if got, want := requestList(t, f.joined, query, http.Header{}).Body.String(), requestList(t, f.alone, query, http.Header{}).Body.String(); got != want || strings.Count(got, `"nodeName":"node-1"`) != Limit+5 {
		t.Errorf("a list of %d bytes has %d, and %d objects", len(want), len(got), strings.Count(got, `"nodeName":"node-1"`))
	}
}

// TestOnePageInMemory: for a list of any length, only one page is in memory.
func TestOnePageInMemory(t *testing.T) {
	t.Parallel()
	f := setup(t, 16, 400<<10, 0)
	for _, selector := range []url.Values{{"labelSelector": {"!rare"}}, {"labelSelector": {"of!=7"}, "fieldSelector": {"spec.nodeName=node-0"}}} {
		f.most = 0
		if w := requestList(t, f.joined, selector, http.Header{}); w.Code != http.StatusOK || f.most == 0 || f.most > 6 {
			t.Errorf("%v: %d, and %d objects were in memory", selector, w.Code, f.most)
		}
	}
}

// TestListThatFailsLater: a list that cannot continue is aborted, and the next list reports why.
func TestListThatFailsLater(t *testing.T) {
	t.Parallel()
	f := setup(t, 2*Limit, 30, 0)
	asked := 0
	failing := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; r.URL.Query().Has("continue") || !r.URL.Query().Has("limit") {
			http.Error(w, "object pod-00700 is damaged", http.StatusInternalServerError)
			return
		}
		f.alone.ServeHTTP(w, r)
	})
	h := Serve(failing, Options{Serializer: codecs, Pages: kubestore.WholeList})
	func() {
		defer func() {
			if p := recover(); p != http.ErrAbortHandler {
				t.Errorf("the list ended with %v", p)
			}
		}()
		requestList(t, h, nil, http.Header{})
	}()
	if w := requestList(t, h, nil, http.Header{}); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "pod-00700") {
		t.Errorf("the next list: %d %s", w.Code, w.Body)
	}
}

// TestListWaitsForRoom: a list that has begun waits for room when its next page is refused.
func TestListWaitsForRoom(t *testing.T) {
	t.Parallel()
	f := setup(t, 2*Limit, 30, 0)
	refused := 0
	h := Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("continue") && refused == 0 {
			refused++
			http.Error(w, "too many lists", http.StatusTooManyRequests)
			return
		}
		f.alone.ServeHTTP(w, r)
	}), Options{Serializer: codecs, Pages: kubestore.WholeList})
	if got, want := requestList(t, h, nil, http.Header{}).Body.String(), requestList(t, f.alone, nil, http.Header{}).Body.String(); got != want || refused != 1 {
		t.Errorf("a list with %d refused pages has %d bytes, not %d", refused, len(got), len(want))
	}
}

// FuzzYAMLItem: an item is written as Kubernetes writes it, if YAML's parser accepts its JSON.
func FuzzYAMLItem(f *testing.F) {
	f.Add([]byte(`{"b":[1,-1,1.5,1e21,18446744073709551615,true,null],"a":{"1":"true","10":"null","9":"1.5","":" x"}}`))
	f.Add([]byte(`{"manifest":"{\n   \"schemaVersion\": 2\n}","config":"{\"Env\":[\"A=b c\"]}","at":"2026-11-01T07:55:00Z","none":[],"empty":{}}`))
	f.Fuzz(func(t *testing.T, item []byte) {
		var object map[string]any
		if json.Unmarshal(item, &object) != nil {
			return
		}
		item, err := json.Marshal(object)
		if err != nil || bytes.ContainsAny(item, "\x7f\u0085\ufeff") || bytes.Contains(item, []byte(`"<<"`)) || bytes.Contains(item, []byte(`"=":`)) {
			return // these have another meaning in YAML
		}
		want, err := yaml.JSONToYAML(bytes.Join([][]byte{{'['}, item, {']'}}, nil))
		if err != nil {
			return
		}
		got, err := yamlItem(item)
		if err != nil {
			t.Fatal(err)
		}
		// The order of keys with digits is not always the same.
		meant, gotErr := yaml.YAMLToJSON(got)
		means, wantErr := yaml.YAMLToJSON(want)
		if gotErr != nil || wantErr != nil || len(got) != len(want) || !bytes.Equal(meant, means) {
			t.Errorf("%s is written\n%s, %v, not\n%s, %v", item, got, gotErr, want, wantErr)
		}
	})
}

// FuzzSplit: the parts of a page can be joined to the same page, and nothing panics.
func FuzzSplit(f *testing.F) {
	f.Add([]byte(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"t","remainingItemCount":3},"items":[{"a":"]"}]}`))
	f.Add([]byte(`{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{},"columnDefinitions":[],"rows":null}`))
	f.Add([]byte("k8s\x00\n\x0d\n\x02v1\x12\x07PodList\x12\x06\n\x00\x12\x02\n\x00\x1a\x00\"\x00"))
	f.Fuzz(func(t *testing.T, body []byte) {
		if p, err := splitJSON(body); err == nil && !p.null {
			again := bytes.Join([][]byte{p.head, []byte(`,"` + p.key + `":[`), p.items, []byte("]}")}, nil)
			if !bytes.Equal(again, bytes.TrimSuffix(body, []byte("\n"))) {
				t.Errorf("%q became %q", body, again)
			}
			for _, around := range []form{plain, indented, inYAML} {
				_, _ = around.around(p, 0)
				_, _ = around.items(p.items, false)
			}
		}
		if p, err := splitProtobuf(body); err == nil {
			if _, err := aroundProtobuf(p, int64(len(p.items))); err != nil {
				t.Errorf("%q cannot be joined: %v", body, err)
			}
		}
	})
}

package storedjson

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/web/storedjson/internal/filecache"
	"github.com/tidewaiter/tidewaiter/web/storedjson/internal/gzipparts"
)

// lists is a fixture whose pods are served as they are stored.
type lists struct {
	*fixture
	reader *kind
	// forgetful is a kind with caches that are too small for any object
	forgetful *kind
}

func newLists(t *testing.T, change ...func(*db.Options)) *lists {
	f := setup(t, change...)
	forgetful := f.newKind(t)
	forgetful.plain.kept, forgetful.gzip.kept, forgetful.plain.got = filecache.New[sums](t.TempDir(), 100), filecache.New[sums](t.TempDir(), 100), filecache.New[sums](t.TempDir(), 100)
	return &lists{f, f.newKind(t), forgetful}
}

func (l *lists) create(t *testing.T, name string) {
	t.Helper()
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{"text": strings.Repeat("a <text> ", 200)}}}
	if err := l.Create(t.Context(), "/pods/ns/"+name, pod, nil, 0); err != nil {
		t.Fatal(err)
	}
}

func (l *lists) list(t *testing.T, encoding string, opts storage.ListOptions) (text string) {
	t.Helper()
	return listBy(t, l.reader, encoding, opts)
}

// listBy returns the text that a client of r gets, "" if the connection ended.
func listBy(t *testing.T, r *kind, encoding string, opts storage.ListOptions) (text string) {
	t.Helper()
	opts.Recursive = true
	if opts.Predicate.Label == nil {
		opts.Predicate = storage.Everything
	}
	return listed(t, r, encoding, r.paged(opts))
}

// listed is listBy for any list.
func listed(t *testing.T, r *kind, encoding string, read begin) (text string) {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pods", nil)
	req.Header.Set("Accept-Encoding", encoding)
	w := httptest.NewRecorder()
	defer func() {
		switch reason := recover(); reason {
		case nil, http.ErrAbortHandler:
		default:
			panic(reason)
		}
	}()
	r.list(w, req, read, http.HandlerFunc(leftToOthers))
	if w.Header().Get("Content-Encoding") != "gzip" {
		return w.Body.String()
	}
	z, err := gzip.NewReader(w.Body)
	if err != nil {
		t.Error(err)
		return ""
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

// lists returns the plain list, encoded without a cache. It checks that the compressed list and the
// lists from the caches are the same, byte by byte.
func (l *lists) lists(t *testing.T, opts storage.ListOptions) string {
	t.Helper()
	want := listBy(t, l.forgetful, "", opts)
	for name, got := range map[string]string{
		"compressed":       listBy(t, l.forgetful, "gzip", opts),
		"kept":             l.list(t, "", opts),
		"kept, compressed": l.list(t, "gzip", opts),
	} {
		if got != want {
			t.Errorf("%s: %d bytes instead of %d\n%.200s\n%.200s", name, len(got), len(want), got, want)
		}
	}
	return want
}

// TestKeptLists: while objects are created, changed and deleted, lists from the cache equal lists
// that are encoded without one, at any revision and in pages. Unchanged objects are not read again.
func TestKeptLists(t *testing.T) {
	l := newLists(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 350 {
		l.create(t, fmt.Sprintf("pod-%03d", i))
	}
	var revisions []int64
	for round := range 6 {
		changes := 1
		if round > 0 {
			changes = r.IntN(20)
		}
		for i := range changes {
			key := fmt.Sprintf("/pods/ns/pod-%03d", r.IntN(350))
			switch r.IntN(3) {
			case 0:
				l.create(t, fmt.Sprintf("pod-%03d-%d-%d", r.IntN(350), round, i))
			case 1:
				_ = l.GuaranteedUpdate(t.Context(), key, &example.Pod{}, true, nil, storage.SimpleUpdate(count), nil)
			case 2:
				_ = l.Delete(t.Context(), key, &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{})
			}
		}
		revisions = append(revisions, l.db.Revision())
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if plain := l.lists(t, storage.ListOptions{}); !json.Valid([]byte(plain)) {
					t.Errorf("round %d: a list of %d bytes, not JSON", round, len(plain))
				}
			})
		}
		all.Wait()
		// A list reads only the objects that it must read before the first byte is written.
		for _, encoding := range []string{"gzip", ""} {
			l.transformer.GetReadsAndReset()
			l.list(t, encoding, storage.ListOptions{})
			if reads := l.transformer.GetReadsAndReset(); reads > headObjects {
				t.Errorf("round %d: %q: a list of objects that were listed before read %d objects, want %d at most", round, encoding, reads, headObjects)
			}
		}
	}
	for _, rev := range revisions {
		exact := storage.ListOptions{ResourceVersion: fmt.Sprint(rev), ResourceVersionMatch: metav1.ResourceVersionMatchExact}
		l.lists(t, exact)
		exact.Predicate = storage.Everything
		exact.Predicate.Limit = 150
		if page := l.lists(t, exact); !strings.Contains(page, `"continue"`) {
			t.Errorf("a page at revision %d: %.200s", rev, page)
		}
	}
}

// TestListsAreFromTheCache: a list sends the cached objects. The other tests would also accept a
// list that encodes its objects each time.
func TestListsAreFromTheCache(t *testing.T) {
	l := newLists(t)
	for i := range 150 {
		l.create(t, fmt.Sprintf("pod-%03d", i))
	}
	l.lists(t, storage.ListOptions{})
	kv, _, _, err := l.db.Get(t.Context(), "/pods/ns/pod-120")
	if err != nil {
		t.Fatal(err)
	}
	text := []byte(`,"another"`)
	deflated, sum := gzipparts.Append(nil, text)
	if err := l.reader.gzip.kept.Put([]int64{kv.Rev}, filecache.Run[sums]{Bytes: deflated, Items: []filecache.Item[sums]{{Len: len(deflated), Meta: sums{all: sum}}}}); err != nil {
		t.Fatal(err)
	}
	if err := l.reader.plain.kept.Put([]int64{kv.Rev}, filecache.Run[sums]{Bytes: text, Items: []filecache.Item[sums]{{Len: len(text)}}}); err != nil {
		t.Fatal(err)
	}
	for _, encoding := range []string{"", "gzip"} {
		if text := l.list(t, encoding, storage.ListOptions{}); !strings.Contains(text, `},"another",{"kind":"Pod"`) {
			t.Errorf("%q: the cached object was not sent", encoding)
		}
		// A list that is too large for the cache is encoded each time, and caches nothing.
		l.transformer.GetReadsAndReset()
		for range 2 {
			listBy(t, l.forgetful, encoding, storage.ListOptions{})
		}
		if reads := l.transformer.GetReadsAndReset(); reads != 300 {
			t.Errorf("%q: two lists of 150 objects read %d objects", encoding, reads)
		}
	}
}

// TestListMeetsDamage: a list reports the object that cannot be read, or the connection is aborted.
func TestListMeetsDamage(t *testing.T) {
	for _, encoding := range []string{"", "gzip"} {
		l := newLists(t)
		for i := range 250 {
			l.create(t, fmt.Sprintf("pod-%03d", i))
		}
		page := storage.ListOptions{Predicate: storage.Everything}
		token, err := storage.EncodeContinue("/ns/pod-100", "/", l.db.Revision())
		if err != nil {
			t.Fatal(err)
		}
		page.Predicate.Limit, page.Predicate.Continue = 20, token
		const damaged = "/pods/ns/pod-110"
		dbtest.Damage(t, l.db, damaged)
		if l.reader.meetsUnreadable(t.Context()) {
			t.Error("damage is known before it was read")
		}
		if text := l.list(t, encoding, page); text != "left to others" {
			t.Errorf("a page with a damaged object: %.200q", text)
		}
		if text := l.list(t, encoding, storage.ListOptions{}); text != "" {
			t.Errorf("a list that meets damage when it has begun: %.200q", text)
		}
		if !l.reader.meetsUnreadable(t.Context()) {
			t.Error("the damage is not known to the next list")
		}
		if err := l.db.Compact(t.Context(), l.db.Revision()); err != nil {
			t.Fatal(err)
		}
		kv, _, _, err := l.db.Get(t.Context(), damaged)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.db.Delete(t.Context(), damaged, kv.Rev); err != nil {
			t.Fatal(err)
		}
		if l.reader.meetsUnreadable(t.Context()) {
			t.Error("a deleted object still prevents lists from being answered")
		}
		text := l.list(t, encoding, storage.ListOptions{})
		if n := strings.Count(text, `"kind":"Pod",`); n != 249 || !json.Valid([]byte(text)) {
			t.Errorf("a list of the other objects has %d objects", n)
		}
		if err := l.db.Compact(t.Context(), l.db.Revision()); err != nil {
			// so that the check at the end finds an intact file
			t.Fatal(err)
		}
	}
}

// TestNamedObjects: a list by names has the objects that exist, in the order of their names. The
// bytes of each are the same as in a list of all objects.
func TestNamedObjects(t *testing.T) {
	l := newLists(t)
	for i := range 30 {
		l.create(t, fmt.Sprintf("pod-%03d", i))
	}
	named := func(encoding string, names ...string) string {
		t.Helper()
		return listed(t, l.reader, encoding, l.reader.named(names))
	}
	names := func(text string) (names []string) {
		t.Helper()
		var list metav1.PartialObjectMetadataList
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatalf("%v: %.200s", err, text)
		}
		if list.Kind != "PodList" || list.ResourceVersion != fmt.Sprint(l.db.Revision()) || list.Continue != "" || list.RemainingItemCount != nil {
			t.Errorf("%+v", list)
		}
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
		return names
	}
	all := l.list(t, "", storage.ListOptions{})
	for _, encoding := range []string{"", "gzip"} {
		text := named(encoding, "ns/pod-000", "ns/pod-005", "ns/pod-0055", "ns/pod-029", "ns/pod-030")
		if got, want := fmt.Sprint(names(text)), "[pod-000 pod-005 pod-029]"; got != want {
			t.Errorf("%s, want %s", got, want)
		}
		_, items, _ := strings.Cut(text, `"items":[`)
		for item := range strings.SplitAfterSeq(strings.TrimSuffix(items, listEnd), "}},") {
			if !strings.Contains(all, strings.TrimSuffix(item, ",")) {
				t.Errorf("a list of all has no %.200s", item)
			}
		}
		if got := names(named(encoding, "ns/pod-030", "ns/pod-031")); len(got) != 0 {
			t.Errorf("a list of missing objects: %v", got)
		}
	}
	dbtest.Damage(t, l.db, "/pods/ns/pod-007")
	if text := named("", "ns/pod-006", "ns/pod-007"); text != "left to others" {
		t.Errorf("with a damaged object: %.200q", text)
	}
	if text := named("", "ns/pod-006", "ns/pod-008"); !strings.Contains(text, "pod-008") {
		t.Errorf("beside a damaged object: %.200q", text)
	}
	l.remove(t, "/pods/ns/pod-007")

	// A list that is too long to be in memory at once is left to the next handler, and so is one for
	// which there is no room.
	for i := range 10 {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("long-", i), Annotations: map[string]string{"text": strings.Repeat("x", 1<<20)}}}
		if err := l.Create(t.Context(), "/pods/ns/"+pod.Name, pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	var long []string
	for i := range 10 {
		long = append(long, fmt.Sprint("ns/long-", i))
	}
	if text := named("", long...); text != "left to others" {
		t.Errorf("ten of 1 MiB: %.200q", text)
	}
	if got := names(named("", long[:5]...)); len(got) != 5 {
		t.Errorf("five of 1 MiB: %v", got)
	}
	l.reader.lists = newMemoryPool(weight(listRun)+6<<20, weight(listRun)+6<<20)
	if !l.reader.lists.TryAdd("others", 0, 3<<20) { // held by another list
		t.Fatal("there is no room at all")
	}
	if text := named("", long[:5]...); text != "left to others" {
		t.Errorf("without room: %.200q", text)
	}
}

// TestNamesOfAList: names returns names only for a request whose selector is just a list of names.
func TestNamesOfAList(t *testing.T) {
	k := &kind{Kind: Kind{Named: func(selector string) ([]string, bool) {
		return []string{selector}, strings.HasPrefix(selector, "names=")
	}}}
	for query, want := range map[string]bool{
		"fieldSelector=names%3Da":                         true,
		"fieldSelector=other%3Da":                         false,
		"fieldSelector=names%3Da&limit=5":                 false,
		"fieldSelector=names%3Da&labelSelector=a":         false,
		"fieldSelector=names%3Da&fieldSelector=names%3Db": false,
		"fieldSelector=names%3Da&resourceVersion=1":       false,
		"limit=5": false,
		"":        false,
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := k.names(values); ok != want {
			t.Errorf("%s: %v, want %v", query, ok, want)
		}
	}
	k.Named = nil
	if _, ok := k.names(url.Values{"fieldSelector": {"names=a"}}); ok {
		t.Error("names are returned for a kind without Named")
	}
}

// TestListEndsWithItsRequest: if a request ends early, its list never looks complete.
func TestListEndsWithItsRequest(t *testing.T) {
	l := newLists(t)
	for i := range 250 {
		l.create(t, fmt.Sprintf("pod-%03d", i))
	}
	for _, encoding := range []string{"", "gzip"} {
		ctx, cancel := context.WithCancel(t.Context())
		req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/pods", nil)
		req.Header.Set("Accept-Encoding", encoding)
		w := &cancelling{ResponseRecorder: httptest.NewRecorder(), cancel: cancel}
		func() {
			defer func() {
				if reason := recover(); reason != http.ErrAbortHandler {
					t.Errorf("%q: the list ended with %v", encoding, reason)
				}
			}()
			l.reader.list(w, req, l.reader.paged(storage.ListOptions{Recursive: true, Predicate: storage.Everything}), nil)
		}()
		if bytes.HasSuffix(w.Body.Bytes(), []byte(listEnd)) {
			t.Errorf("%q: the list has an end", encoding)
		}
	}
}

// cancelling is a response that cancels its request when its header is first used.
type cancelling struct {
	*httptest.ResponseRecorder
	cancel func()
}

func (c *cancelling) Header() http.Header {
	c.cancel()
	return c.ResponseRecorder.Header()
}

// TestGetMeetsDamage: a read of a damaged object is left to the handler that can report the damage.
func TestGetMeetsDamage(t *testing.T) {
	l := newLists(t)
	l.create(t, "a")
	dbtest.Damage(t, l.db, "/pods/ns/a")
	w := httptest.NewRecorder()
	l.reader.get(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pods/a", nil), "ns/a", http.HandlerFunc(leftToOthers))
	if w.Body.String() != "left to others" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	l.remove(t, "/pods/ns/a")
}

func leftToOthers(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "left to others") }

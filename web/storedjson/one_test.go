package storedjson

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// single gets the object called name, which has no namespace.
func (l *lists) single(t *testing.T, r *kind, name string) (text string, reads uint64) {
	t.Helper()
	l.transformer.GetReadsAndReset()
	w := httptest.NewRecorder()
	r.get(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pods/"+name, nil), name, http.HandlerFunc(leftToOthers))
	if got, want := w.Header().Get("Content-Length"), fmt.Sprint(w.Body.Len()); w.Body.String() != "left to others" && got != want {
		t.Errorf("%s: the length is %s, and %s bytes came", name, got, want)
	}
	return w.Body.String(), l.transformer.GetReadsAndReset()
}

// TestGetsAreFromTheCache: an object that was read twice is not read again until it changes. Each
// answer is the one that a server without a cache gives, and an object that is gone is not found.
func TestGetsAreFromTheCache(t *testing.T) {
	l := newLists(t)
	put := func(name string) {
		t.Helper()
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := l.Create(t.Context(), "/pods/"+name, pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	same := func(name string, want uint64) {
		t.Helper()
		text, reads := l.single(t, l.reader, name)
		if without, _ := l.single(t, l.forgetful, name); text != without {
			t.Errorf("%s\nwithout a cache: %s", text, without)
		}
		if reads != want {
			t.Errorf("%s was read %d times, want %d", name, reads, want)
		}
	}
	put("a")
	put("b")
	for _, name := range []string{"a", "b"} {
		same(name, 1)
		same(name, 1) // now it is kept
		same(name, 0)
	}
	for range 3 {
		if err := l.GuaranteedUpdate(t.Context(), "/pods/a", &example.Pod{}, false, nil, storage.SimpleUpdate(count), nil); err != nil {
			t.Fatal(err)
		}
		l.transformer.GetReadsAndReset()
		same("a", 1)
		same("a", 1)
		same("a", 0)
		same("b", 0)
	}
	if err := l.Delete(t.Context(), "/pods/a", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if text, _ := l.single(t, l.reader, "a"); text != "left to others" {
		t.Errorf("a deleted object: %s", text)
	}
	put("a")
	same("a", 1)
	same("a", 1)
	same("a", 0)
}

// TestAnotherNamesObjectIsNotAnswered: the storage knows the revision of a name by a hash. If it is
// that of another name, the object is read.
func TestAnotherNamesObjectIsNotAnswered(t *testing.T) {
	l := newLists(t)
	for _, name := range []string{"a", "ab"} {
		if err := l.Create(t.Context(), "/pods/"+name, &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		l.single(t, l.reader, "ab")
	}
	r, rev := l.reader.plain.empty(), l.db.Revision()
	l.reader.plain.got.Append(&r.Run, []int64{rev}, 1)
	for name, want := range map[string]bool{"ab": true, "a": false, "b": false} {
		if got := l.reader.plain.isNamed(r, rev, name); got != want {
			t.Errorf("%s is %s: %t", r.Bytes, name, got)
		}
	}
	if l.reader.plain.isNamed(r, rev-1, "ab") {
		t.Errorf("%s has revision %d", r.Bytes, rev-1)
	}
}

// TestGetsOfManyObjectsAreNotCached: where the cache cannot hold all objects, it is left to lists.
func TestGetsOfManyObjectsAreNotCached(t *testing.T) {
	l := newLists(t)
	if err := l.Create(t.Context(), "/pods/a", &example.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, nil, 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, reads := l.single(t, l.forgetful, "a"); reads != 1 {
			t.Errorf("read %d times", reads)
		}
	}
}

package storedjson

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"
)

// stuck is a response whose client reads nothing until release is closed.
type stuck struct {
	*httptest.ResponseRecorder
	writing, release chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	select {
	case s.writing <- struct{}{}:
	default:
	}
	<-s.release
	return s.ResponseRecorder.Write(p)
}

// TestAttackStoredListsThatAreNotRead: a user requests many lists and does not read them. Only as
// many as fit the user's share begin, and the others get 429. Another user's lists begin. When the
// room is free again, the user gets a complete list.
func TestAttackStoredListsThatAreNotRead(t *testing.T) {
	for _, encoding := range []string{"identity", "gzip"} {
		l := newLists(t)
		for i := range 20 {
			l.create(t, fmt.Sprintf("pod-%02d", i))
		}
		const room = 3
		l.reader.lists = newMemoryPool(2*room*weight(listRun), room*weight(listRun))
		release, done := make(chan struct{}), make(chan struct{})
		ask := func(w http.ResponseWriter, who string) {
			req := httptest.NewRequestWithContext(request.WithUser(t.Context(), &user.DefaultInfo{Name: who}), http.MethodGet, "/pods", nil)
			req.Header.Set("Accept-Encoding", encoding)
			l.reader.list(w, req, l.reader.paged(storage.ListOptions{Predicate: storage.Everything, Recursive: true}), http.HandlerFunc(leftToOthers))
		}
		var unread []*stuck
		for range room {
			s := &stuck{httptest.NewRecorder(), make(chan struct{}, 1), release}
			unread = append(unread, s)
			go func() {
				ask(s, "mallory")
				done <- struct{}{}
			}()
			<-s.writing
		}
		l.reader.maxWait = time.Nanosecond
		for range 20 {
			w := httptest.NewRecorder()
			if ask(w, "mallory"); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
				t.Fatalf("%s: one list more than there is room for: %d, Retry-After %q", encoding, w.Code, w.Header().Get("Retry-After"))
			}
		}
		other := httptest.NewRecorder()
		ask(other, "alice")
		close(release)
		for range room {
			<-done
		}
		want := unread[0].Body.String()
		if other.Code != http.StatusOK || other.Body.String() != want {
			t.Errorf("%s: another user's list: %d, %d bytes, want %d", encoding, other.Code, other.Body.Len(), len(want))
		}
		l.reader.maxWait = time.Minute
		w := httptest.NewRecorder()
		if ask(w, "mallory"); w.Code != http.StatusOK || w.Body.String() != want || want == "" {
			t.Errorf("%s: afterwards: %d, %d bytes, want %d", encoding, w.Code, w.Body.Len(), len(want))
		}
		if !l.reader.lists.TryAdd("", 0, l.reader.lists.size) {
			t.Errorf("%s: room is held after all lists have ended", encoding)
		}
	}
}

// TestAttackStoredWatchesThatAreNotRead: the clients of a user's watches do not read the existing
// objects. Watches above the user's share wait, and another user's watch begins.
func TestAttackStoredWatchesThatAreNotRead(t *testing.T) {
	l := newLists(t)
	l.create(t, "pod")
	const room = 3
	l.reader.initial = newMemoryPool(2*room*weight(watchRun), room*weight(watchRun))
	release := make(chan struct{})
	watch := func(w http.ResponseWriter, who string) {
		opts, ok := newWatchOptions(url.Values{"watch": {"1"}, "sendInitialEvents": {"true"}, "resourceVersionMatch": {"NotOlderThan"}, "allowWatchBookmarks": {"true"}})
		if !ok {
			t.Error("no watch sends existing objects")
		}
		ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: who})
		ctx = request.WithRequestInfo(ctx, &request.RequestInfo{Verb: "watch"})
		l.reader.watch(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/pods", nil), opts, http.HandlerFunc(leftToOthers))
	}
	var ended sync.WaitGroup
	for i := range 2 * room {
		s := &stuck{httptest.NewRecorder(), make(chan struct{}, 1), release}
		ended.Go(func() { watch(s, "mallory") })
		if i < room {
			<-s.writing
		}
	}
	w := httptest.NewRecorder()
	watch(w, "alice")
	if !strings.Contains(w.Body.String(), "pod") {
		t.Errorf("another user's watch: %d: %.200q", w.Code, w.Body)
	}
	close(release)
	ended.Wait()
}

// TestLargeObjectsWaitForRoom: a list has objects that are larger than its first reservation. It
// drops the objects that it has read while it waits for more room, and is complete in the end.
func TestLargeObjectsWaitForRoom(t *testing.T) {
	l := newLists(t)
	const objects, size = 6, 1 << 20
	for i := range objects {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("pod-", i), Annotations: map[string]string{"text": strings.Repeat("x", size)}}}
		if err := l.Create(t.Context(), "/pods/ns/"+pod.Name, pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	room := newMemoryPool(2*weight(listRun)+objects*size, 1)
	mine := &reservation{of: room}
	if err := mine.wait(t.Context(), weight(listRun)); err != nil {
		t.Fatal(err)
	}
	others := &reservation{of: room, user: "others", holds: room.size - mine.holds}
	if !room.TryAdd(others.user, 0, others.holds) {
		t.Fatal("there is no room to begin with")
	}
	p, ok := l.reader.begin(t.Context(), storage.ListOptions{Predicate: storage.Everything, Recursive: true}, listRun, mine)
	if !ok {
		t.Fatal("the list did not begin")
	}
	for i := range p.head {
		if !p.head[i].unread() {
			t.Errorf("object %d is held without room", i)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sent := make(chan error, 1)
	var w strings.Builder
	go func() {
		sent <- l.reader.plain.send(ctx, p, framing{first: l.reader.plain.piece([]byte("["))}, plainSink{&w}, func(int) error { return nil })
	}()
	// Until the others end, the list waits, because it needs more room than is free.
	waits(t, room)
	if mine.holds != 0 {
		t.Errorf("a list that waits holds %d bytes", mine.holds)
	}
	others.release()
	if err := <-sent; err != nil || w.Len() < objects*size {
		t.Errorf("%d bytes of %d objects, %v", w.Len(), objects, err)
	}
	if mine.holds > room.size {
		t.Errorf("%d bytes are held", mine.holds)
	}
}

// changing is a source that changes an object after a list has got its revision and before it reads
// objects.
type changing struct {
	Source
	change func()
}

// ScanStored implements Source.
func (s changing) ScanStored(ctx context.Context, from string, rev int64, limit, size int, count bool, each func(string, int64, []byte, error)) (at int64, more bool, remaining int64, err error) {
	defer s.change()
	return s.Source.ScanStored(ctx, from, rev, limit, size, count, each)
}

// TestNamedObjectsWaitForRoom: after a list by names has waited for room, it reads its objects
// again as they were listed. They are not neighbours in the storage. One is newer than the list's
// revision, and while the list waits, one is changed and one is deleted.
func TestNamedObjectsWaitForRoom(t *testing.T) {
	l := newLists(t)
	for i := range 30 {
		l.create(t, fmt.Sprintf("pod-%03d", i))
	}
	update := func(name string) {
		if err := l.GuaranteedUpdate(t.Context(), "/pods/"+name, &example.Pod{}, true, nil, storage.SimpleUpdate(count), nil); err != nil {
			t.Error(err)
		}
	}
	for i := range 25 {
		update(fmt.Sprintf("ns/pod-%03d", i)) // so that neighbours do not have neighbouring revisions
	}
	names := []string{"ns/pod-003", "ns/pod-007", "ns/pod-010", "ns/pod-029"}
	room := newMemoryPool(2*weight(listRun), 1)
	mine := &reservation{of: room}
	if err := mine.wait(t.Context(), weight(listRun)); err != nil {
		t.Fatal(err)
	}
	l.reader.source = changing{l.Store, sync.OnceFunc(func() { update(names[0]) })}
	p, ok := l.reader.named(names)(t.Context(), mine)
	if !ok || len(p.head) != len(names) || p.head[0].rev <= p.rev || p.head[1].rev >= p.rev {
		t.Fatalf("the list did not begin as it should: %t, revision %d, %d objects", ok, p.rev, len(p.head))
	}
	var want strings.Builder
	for i := range p.head {
		text, err := l.reader.append([]byte{'['}, &p.head[i])
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			text[0] = ','
		}
		want.Write(text)
	}
	// The list's reservation is too small for its objects, and others hold the rest.
	mine.release()
	mine.holds = 1
	others := &reservation{of: room, user: "others", holds: room.size - mine.holds}
	if !room.TryAdd(mine.user, 0, mine.holds) || !room.TryAdd(others.user, 0, others.holds) {
		t.Fatal("there is no room to begin with")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	sent := make(chan error, 1)
	var w strings.Builder
	go func() {
		sent <- l.reader.plain.send(ctx, p, framing{first: l.reader.plain.piece([]byte("["))}, plainSink{&w}, func(int) error { return nil })
	}()
	waits(t, room)
	update(names[1])
	if err := l.Delete(t.Context(), "/pods/"+names[2], &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	others.release()
	if err := <-sent; err != nil || w.String() != want.String() {
		t.Errorf("%v: %d bytes, want %d", err, w.Len(), want.Len())
	}
}

// waits returns when a party waits for room.
func waits(t *testing.T, room *memoryPool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); room.TryAdd("nobody", 0, 0); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the list does not wait")
		}
	}
}

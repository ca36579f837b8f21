package verbatim

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
)

// stuck is an answer that nobody reads until release is closed.
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

// Nobody reads lists of stored bytes. As many begin as find room, and the others are told to come
// back. When the room is free, there is a whole list again.
func TestAttackStoredListsThatAreNotRead(t *testing.T) {
	for _, encoding := range []string{"identity", "gzip"} {
		l := newLists(t)
		for i := range 20 {
			l.create(t, fmt.Sprintf("pod-%02d", i))
		}
		const room = 3
		l.reader.lists = newRoom(room * weight(listRun))
		release, done := make(chan struct{}), make(chan struct{})
		ask := func(w http.ResponseWriter) {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/pods", nil)
			req.Header.Set("Accept-Encoding", encoding)
			l.reader.list(w, req, l.reader.paged(storage.ListOptions{Predicate: storage.Everything, Recursive: true}), http.HandlerFunc(leftToOthers))
		}
		var unread []*stuck
		for range room {
			s := &stuck{httptest.NewRecorder(), make(chan struct{}, 1), release}
			unread = append(unread, s)
			go func() {
				ask(s)
				done <- struct{}{}
			}()
			<-s.writing
		}
		l.reader.patience = time.Nanosecond
		for range 20 {
			w := httptest.NewRecorder()
			if ask(w); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" {
				t.Fatalf("%s: one list more than there is room for: %d, Retry-After %q", encoding, w.Code, w.Header().Get("Retry-After"))
			}
		}
		close(release)
		for range room {
			<-done
		}
		want := unread[0].Body.String()
		l.reader.patience = time.Minute
		w := httptest.NewRecorder()
		if ask(w); w.Code != http.StatusOK || w.Body.String() != want || want == "" {
			t.Errorf("%s: afterwards: %d, %d bytes, want %d", encoding, w.Code, w.Body.Len(), len(want))
		}
		if !l.reader.lists.TryAcquire(l.reader.lists.size) {
			t.Errorf("%s: room is held by nobody", encoding)
		}
	}
}

// A list has objects that are larger than it may hold at first. It lets go of what it has read
// while it waits for more room, and is whole in the end.
func TestLargeObjectsWaitForRoom(t *testing.T) {
	l := newLists(t)
	const objects, size = 6, 1 << 20
	for i := range objects {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("pod-", i), Annotations: map[string]string{"text": strings.Repeat("x", size)}}}
		if err := l.Create(t.Context(), "/pods/ns/"+pod.Name, pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	room := newRoom(2*weight(listRun) + objects*size)
	mine := &share{of: room}
	if err := mine.wait(t.Context(), weight(listRun)); err != nil {
		t.Fatal(err)
	}
	others := &share{of: room, holds: room.size - mine.holds}
	if !room.TryAcquire(others.holds) {
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
		sent <- l.reader.plain.send(ctx, p, frame{first: l.reader.plain.piece([]byte("["))}, plainSink{&w}, func(int) error { return nil })
	}()
	// Until the others end, the list waits because it needs more than it may hold.
	for deadline := time.Now().Add(time.Minute); room.TryAcquire(0); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the list does not wait")
		}
	}
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

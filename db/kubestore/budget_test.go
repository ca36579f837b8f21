package kubestore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/authentication/user"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/internal/room"
)

// fill creates pods of the given size each.
func (f *fixture) fill(t *testing.T, pods, size int) {
	t.Helper()
	for i := range pods {
		pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("pod-%04d", i), Labels: map[string]string{"all": "yes", "one": fmt.Sprint(i)},
			Annotations: map[string]string{"text": strings.Repeat("x", size)},
		}}
		if err := f.Create(t.Context(), "/pods/ns/"+pod.Name, pod, nil, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// userOf returns the user of a request.
func userOf(ctx context.Context) string {
	if u, ok := endpointsrequest.UserFrom(ctx); ok {
		return u.GetName()
	}
	return ""
}

// TestManyListsThatSelectMuch: a client sends many lists whose selectors select everything, and
// does not read the answers. Only as many lists as fit into its user's share are in memory; the
// others get an error to try again. Lists of another user, lists that select little, and the
// server's own lists do not wait.
func TestManyListsThatSelectMuch(t *testing.T) {
	f := setup(t)
	const pods, size, fits = 200, 10 << 10, 3
	f.fill(t, pods, size)
	_, stored, err := f.Totals(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f.budget.lists = room.New(2*fits*decodedWeight*stored, fits*decodedWeight*stored)
	f.budget.user = userOf
	list := func(ctx context.Context, selector string) (*example.PodList, error) {
		pred := storage.SelectionPredicate{Label: labels.SelectorFromSet(nil), Field: fields.Everything(), GetAttrs: podAttrs}
		if pred.Label, err = labels.Parse(selector); err != nil {
			t.Fatal(err)
		}
		list := &example.PodList{}
		return list, f.GetList(ctx, "/pods/", storage.ListOptions{Predicate: pred, Recursive: true}, list)
	}
	request := func() (context.Context, context.CancelFunc) {
		return context.WithCancel(endpointsrequest.WithRequestInfo(t.Context(), &endpointsrequest.RequestInfo{}))
	}
	var ends []context.CancelFunc
	var holding context.Context
	for i := range fits {
		ctx, end := request()
		holding, ends = ctx, append(ends, end)
		defer end()
		if got, err := list(ctx, "all=yes"); err != nil || len(got.Items) != pods {
			t.Fatalf("list %d: %d pods, %v", i, len(got.Items), err)
		}
	}
	f.budget.patience = time.Nanosecond
	for range 20 {
		ctx, end := request()
		defer end()
		if _, err := list(ctx, "all=yes"); !apierrors.IsTooManyRequests(err) {
			t.Fatalf("one list more than there is room for: %v", err)
		}
	}
	other, end := context.WithCancel(endpointsrequest.WithUser(endpointsrequest.WithRequestInfo(t.Context(), &endpointsrequest.RequestInfo{}), &user.DefaultInfo{Name: "alice"}))
	defer end()
	if got, err := list(other, "all=yes"); err != nil || len(got.Items) != pods {
		t.Errorf("another user's list: %d pods, %v", len(got.Items), err)
	}
	// A request that reads many parts of a collection, as a list of streams reads tags, does not wait
	// for itself.
	for range 5 {
		if got, err := list(holding, "all=yes"); err != nil || len(got.Items) != pods {
			t.Fatalf("another list of a request: %d pods, %v", len(got.Items), err)
		}
	}
	page := storage.Everything
	page.Limit = pods / 2
	if err := f.GetList(holding, "/pods/", storage.ListOptions{Predicate: page, Recursive: true}, &example.PodList{}); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("a page more than there is room for: %v", err)
	}
	ctx, end := request()
	defer end()
	if got, err := list(ctx, "one=7"); err != nil || len(got.Items) != 1 {
		t.Errorf("a list that selects little: %d pods, %v", len(got.Items), err)
	}
	if got, err := list(t.Context(), "all=yes"); err != nil || len(got.Items) != pods {
		t.Errorf("the server's own list: %d pods, %v", len(got.Items), err)
	}
	// A list that waits pauses, and reads everything again.
	f.budget.patience = time.Minute
	paused, resumed := 0, 0
	f.budget.pause = func(context.Context) func() {
		paused++
		ends[0]()
		return func() { resumed++ }
	}
	if got, err := list(ctx, "all=yes"); err != nil || len(got.Items) != pods {
		t.Errorf("when a request has ended: %d pods, %v", len(got.Items), err)
	}
	if paused != 1 || resumed != 1 {
		t.Errorf("a list that waited paused %d times and resumed %d times", paused, resumed)
	}
}

// TestAttackPageOfLargeObjects: large objects end a page before its limit, so that an attacker who
// stores them cannot fill memory with pages, which kubectl's lists always use. Clients continue as
// after any page.
func TestAttackPageOfLargeObjects(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const pods, size, limit = 40, 60 << 10, 30
	f.fill(t, pods, size)
	f.budget.page = 10 * size // two pages of the database
	for _, selector := range []string{"", "all=yes"} {
		pred := storage.SelectionPredicate{Field: fields.Everything(), GetAttrs: podAttrs, Limit: limit}
		var err error
		if pred.Label, err = labels.Parse(selector); err != nil {
			t.Fatal(err)
		}
		var got []string
		for {
			list := &example.PodList{}
			// Each page first waits, and is read again when there is room. The last one frees its room soon
			// after its end.
			if err := f.budget.lists.Add(t.Context(), "", 0, listBytes); err != nil {
				t.Fatal(err)
			}
			f.budget.pause = func(context.Context) func() { f.budget.lists.Remove("", listBytes); return func() {} }
			ctx, end := context.WithCancel(endpointsrequest.WithRequestInfo(t.Context(), &endpointsrequest.RequestInfo{}))
			err := f.GetList(ctx, "/pods/", storage.ListOptions{Predicate: pred, Recursive: true}, list)
			end()
			if err != nil {
				t.Fatal(err)
			}
			for _, pod := range list.Items {
				got = append(got, pod.Name)
			}
			if n := len(list.Items); list.Continue != "" && (n < 10 || n > 15) {
				t.Errorf("%q: a page of %d pods of %d bytes, want about 10", selector, n, size)
			}
			if left := list.RemainingItemCount; selector == "" && list.Continue != "" && (left == nil || *left != int64(pods-len(got))) {
				t.Errorf("after %d of %d pods: %v remain", len(got), pods, left)
			}
			if pred.Continue = list.Continue; pred.Continue == "" {
				break
			}
		}
		if len(got) != pods || !slices.IsSorted(got) {
			t.Errorf("%q: %d pods of %d: %v", selector, len(got), pods, got)
		}
	}
}

// TestWatchesOfWhatExistsThatDoNotRead: watches that begin with existing objects, and whose clients
// do not read, hold a few objects each, and together at most their user's share. A watch of another
// user can begin meanwhile.
func TestWatchesOfWhatExistsThatDoNotRead(t *testing.T) {
	f := setup(t)
	const pods, size, watches, fits = 40, 300 << 10, 20, 2
	f.fill(t, pods, size)
	const share = fits * decodedWeight * resultBuffer * (size + 4<<10)
	f.budget.watches = room.New(2*share, share)
	f.budget.user = userOf
	f.transformer.GetReadsAndReset()
	var all []*watchChan
	for range watches {
		w, err := f.Watch(t.Context(), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		all = append(all, w.(*watchChan))
	}
	full := func() (full []*watchChan) {
		for _, w := range all {
			if len(w.result) == cap(w.result) {
				full = append(full, w)
			}
		}
		return full
	}
	await := func(n int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); len(full()) < n; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d watches have begun, want %d", len(full()), n)
			}
		}
	}
	await(fits)
	reads := f.transformer.GetReadsAndReset()
	other, err := f.Watch(endpointsrequest.WithUser(t.Context(), &user.DefaultInfo{Name: "alice"}), "/pods/", storage.ListOptions{ResourceVersion: "0", Predicate: storage.Everything, Recursive: true})
	if err != nil {
		t.Fatal(err)
	}
	for range pods {
		<-other.ResultChan()
	}
	other.Stop()
	f.transformer.GetReadsAndReset()
	for _, w := range full() {
		w.Stop()
	}
	await(2 * fits)
	// Each watch has decoded the objects in its buffer and a few more, depending on when it is
	// stopped.
	if reads, most := reads+f.transformer.GetReadsAndReset(), uint64(2*fits*2*resultBuffer); reads > most {
		t.Errorf("%d watches that do not read decoded %d objects, want %d at most", watches, reads, most)
	}
	// A client that reads gets everything.
	for _, w := range all {
		if len(w.result) == 0 && w.ctx.Err() == nil {
			for _, other := range all {
				if other != w {
					other.Stop()
				}
			}
			for i := range pods {
				if ev := <-w.ResultChan(); object(ev).(*example.Pod).Name != fmt.Sprintf("pod-%04d", i) {
					t.Fatalf("event %d: %v", i, ev.Type)
				}
			}
			return
		}
	}
	t.Error("no watch waited")
}

// TestReadsAreReported: Options.Read is called with the objects that a get or a list reads, before
// they are decoded, and also if nothing is found.
func TestReadsAreReported(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const pods, size = 20, 1 << 10
	f.fill(t, pods, size)
	var objects, bytes int
	f.budget.read = func(_ context.Context, n, stored int) { objects, bytes = objects+n, bytes+stored }
	for what, test := range map[string]struct {
		read func() error
		want int
	}{
		"get": {func() error { return f.Get(t.Context(), "/pods/ns/pod-0000", storage.GetOptions{}, &example.Pod{}) }, 1},
		"list": {func() error {
			return f.GetList(t.Context(), "/pods/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, &example.PodList{})
		}, pods},
		"get of nothing": {func() error {
			return f.Get(t.Context(), "/pods/ns/none", storage.GetOptions{IgnoreNotFound: true}, &example.Pod{})
		}, 0},
		"list of nothing": {func() error {
			return f.GetList(t.Context(), "/pods/none/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, &example.PodList{})
		}, 0},
	} {
		objects, bytes = 0, 0
		if err := test.read(); err != nil || objects != max(1, test.want) || bytes < test.want*size || (bytes == 0) != (test.want == 0) {
			t.Errorf("%s: reported %d objects of %d bytes, %v, want %d", what, objects, bytes, err, max(1, test.want))
		}
	}
}

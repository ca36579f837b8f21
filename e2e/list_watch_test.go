package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// A list in pages is of one moment, whatever is written between two pages, and
// so is a list at an exact resourceVersion.
func TestListsAreSnapshots(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	client := imageClient(t, s)
	create := func(name string) {
		t.Helper()
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON([]byte(plainImage(name))); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for i := range 30 {
		name := fmt.Sprintf("s-%02d", 2*i)
		create(name)
		want = append(want, name)
	}

	var got []string
	version := ""
	for options := (metav1.ListOptions{Limit: 7}); ; {
		page, err := client.List(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if version == "" {
			version = page.GetResourceVersion()
		} else if page.GetResourceVersion() != version {
			t.Errorf("a page is of resourceVersion %s, the first of %s", page.GetResourceVersion(), version)
		}
		for _, item := range page.Items {
			got = append(got, item.GetName())
		}
		if left := page.GetRemainingItemCount(); left != nil && int(*left) != len(want)-len(got) {
			t.Errorf("after %d of %d, remainingItemCount is %d", len(got), len(want), *left)
		}
		if page.GetContinue() == "" {
			break
		}
		options.Continue = page.GetContinue()
		// One more behind the page and one fewer, both still to come.
		create(fmt.Sprintf("s-%02dx", len(got)*2))
		if err := client.Delete(t.Context(), fmt.Sprintf("s-%02d", len(got)*2+2), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("pages held %q, want %q", got, want)
	}

	exact, err := client.List(t.Context(), metav1.ListOptions{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	if err != nil {
		t.Fatal(err)
	}
	if len(exact.Items) != len(want) || exact.GetResourceVersion() != version {
		t.Errorf("at resourceVersion %s there were %d images, as of %s; want %d", version, len(exact.Items), exact.GetResourceVersion(), len(want))
	}
	if now := imageNames(t, s); slices.Equal(now, want) {
		t.Error("nothing changed meanwhile: the test shows nothing")
	}
}

// A watch from a resourceVersion gets every later event once and in order, with
// versions that rise; with sendInitialEvents it begins with what there is and
// marks the end of that by a bookmark.
func TestWatchFromResourceVersion(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	client := imageClient(t, s)
	s.KubectlStdin(t, plainImage("before"), "create", "-f", "-")
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 20
	var objects strings.Builder
	for i := range n {
		fmt.Fprintln(&objects, plainImage(fmt.Sprintf("w-%02d", i)))
	}
	s.KubectlStdin(t, objects.String(), "create", "-f", "-")
	s.Kubectl(t, "delete", "image", "before")

	w, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var got []string
	last := ""
	for len(got) < n+1 {
		e := nextEvent(t, w)
		u := e.Object.(*unstructured.Unstructured)
		got = append(got, string(e.Type)+" "+u.GetName())
		if v := u.GetResourceVersion(); len(v) < len(last) || len(v) == len(last) && v <= last {
			t.Errorf("%s has resourceVersion %s after %s", got[len(got)-1], v, last)
		} else {
			last = v
		}
	}
	want := make([]string, 0, n+1)
	for i := range n {
		want = append(want, fmt.Sprintf("ADDED w-%02d", i))
	}
	want = append(want, "DELETED before")
	if !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}

	yes := true
	initial, err := client.Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: &yes, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer initial.Stop()
	seen := 0
	for {
		e := nextEvent(t, initial)
		if e.Type == watch.Bookmark {
			if e.Object.(*unstructured.Unstructured).GetAnnotations()[metav1.InitialEventsAnnotationKey] != "true" {
				t.Errorf("the first bookmark lacks %s", metav1.InitialEventsAnnotationKey)
			}
			break
		}
		seen++
	}
	if seen != n {
		t.Errorf("%d initial events, want %d", seen, n)
	}
}

func nextEvent(t *testing.T, w watch.Interface) watch.Event {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch ended")
		}
		if e.Type == watch.Error {
			t.Fatalf("the watch failed: %v", apierrors.FromObject(e.Object))
		}
		return e
	case <-time.After(harness.Patience):
		t.Fatal("no event")
	}
	panic("unreachable")
}

// A version that cannot be is refused, and not waited for.
func TestVersionsOutOfReach(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	client := imageClient(t, s)
	if _, err := client.List(t.Context(), metav1.ListOptions{ResourceVersion: "999999999", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}); !apierrors.IsTimeout(err) || !isTooLargeVersion(err) {
		t.Errorf("a list of the future: %v, want Timeout with cause ResourceVersionTooLarge", err)
	}
	if _, err := client.List(t.Context(), metav1.ListOptions{Continue: "bm90IGEgdG9rZW4", Limit: 1}); !apierrors.IsBadRequest(err) {
		t.Errorf("a list with a made-up continue token: %v, want BadRequest", err)
	}
}

func isTooLargeVersion(err error) bool {
	return apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

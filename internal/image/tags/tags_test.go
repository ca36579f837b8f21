package tags_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

func TestStream(t *testing.T) {
	long := strings.Repeat("a", 250)
	for repository, want := range map[string]string{
		"nginx":                                "docker.io--library--nginx",
		"registry.example.com:5000/team/app":   "registry.example.com_5000--team--app",
		"registry.example.com/team/sub/app":    "registry.example.com--team--sub--app",
		"registry.example.com/team-a/b_c__d.e": "registry.example.com--team-a--b_c__d.e",
		"xn--e1afmkfd.com/a--b/c---d":          "xn---e1afmkfd.com--a---b--c----d",
		"[::1]:5000/web":                       "ipv6_00000000000000000000000000000001_5000--web",
	} {
		ref, err := reference.ParseRepository(repository)
		if err != nil {
			t.Fatal(err)
		}
		if got := tags.Stream(ref); got != want {
			t.Errorf("%s is %s, want %s", repository, got, want)
		}
	}
	a, b := tags.Stream(reference.Reference{Host: "a.b", Repository: long}), tags.Stream(reference.Reference{Host: "a.b", Repository: long + "/a"})
	if len(a) > 200 || len(b) > 200 || a == b {
		t.Errorf("long repositories are %s and %s", a, b)
	}
}

// No two repositories have the same stream, and a stream's name can be part of a URL.
func FuzzStream(f *testing.F) {
	f.Add("a.b/c/d", "a.b/c--d")
	f.Add("a.b/c-/d", "a.b/c---d")
	f.Add("a.b:80/c", "a.b/80/c")
	f.Add("xn--a.b/c", "xn/a.b/c")
	f.Add("[::1]/c", "ipv6.x/c")
	f.Add("a.b/"+strings.Repeat("c", 240), "a.b/"+strings.Repeat("c", 241))
	f.Fuzz(func(t *testing.T, a, b string) {
		refA, errA := reference.ParseRepository(a)
		refB, errB := reference.ParseRepository(b)
		if errA != nil || errB != nil {
			return
		}
		if same := tags.Stream(refA) == tags.Stream(refB); same != (refA == refB) {
			t.Errorf("%s and %s are %s and %s", refA, refB, tags.Stream(refA), tags.Stream(refB))
		}
		if problems := content.IsPathSegmentName(tags.Name(refA.WithTag("v1"))); len(problems) > 0 {
			t.Errorf("%s: %v", refA, problems)
		}
	})
}

func TestHistory(t *testing.T) {
	ref := reference.Reference{Host: "registry.example.com", Repository: "team/app", Tag: "v1"}
	tag := tags.New(ref)
	if _, known := tags.Now(tag); known {
		t.Error("it is known before anybody has looked")
	}
	if got, ok := tags.Reference(tag); !ok || got != ref {
		t.Errorf("it follows %v, %t", got, ok)
	}
	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	digest := func(n int) string { return fmt.Sprintf("sha256:%064x", n) }
	for n := range 300 {
		if !tags.Lead(tag, ref, digest(n), at) || tags.Lead(tag, ref, digest(n), at) {
			t.Fatal("a move is one the first time, and no other")
		}
	}
	if now, _ := tags.Now(tag); now != digest(299) || len(tag.Status.Items) != tags.MaxItems || tag.Status.Items[1].Image != digest(298) {
		t.Errorf("it leads to %s after %d", now, len(tag.Status.Items))
	}
	if !tags.Fail(tag, "Unreachable", "no route", at) || tags.Fail(tag, "Unreachable", "no route, again", at) {
		t.Error("a failure is news the first time, and no other")
	}
	if c := tags.Failure(tag); c == nil || c.Reason != "Unreachable" {
		t.Errorf("failure %+v", c)
	}
	if !tags.Fail(tag, "", "", at) || tags.Fail(tag, "", "", at) || tags.Failure(tag) != nil {
		t.Error("that it goes well again is news, once")
	}
	tags.Fail(tag, "Denied", "", at)
	if !tags.Lead(tag, ref, "", at) || tags.Failure(tag) != nil {
		t.Error("what was seen since is no failure")
	}
	if now, known := tags.Now(tag); now != "" || !known || tag.Status.Items[0].DockerImageReference != ref.String() {
		t.Errorf("a deleted tag leads to %q, %t", now, known)
	}
}

// A tag that follows another has its own history from before, and the other's since, whatever the
// clocks show.
func TestFollow(t *testing.T) {
	t.Parallel()
	at := func(n int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 2, 3, 4, n, 0, time.UTC)) }
	event := func(n, second int) imagev1.TagEvent {
		return imagev1.TagEvent{Image: fmt.Sprint(n), Created: at(second)}
	}
	show := func(events []imagev1.TagEvent) (s string) {
		for _, e := range events {
			s += e.Image
		}
		return s
	}
	for name, c := range map[string]struct {
		own, other []imagev1.TagEvent
		want       string
	}{
		"nothing of its own":          {nil, []imagev1.TagEvent{event(2, 2), event(1, 1)}, "21"},
		"nothing since":               {[]imagev1.TagEvent{event(2, 2), event(9, 9)}, []imagev1.TagEvent{event(2, 2), event(1, 1)}, "29"},
		"moves since":                 {[]imagev1.TagEvent{event(2, 2), event(9, 9)}, []imagev1.TagEvent{event(4, 1), event(3, 2), event(2, 2), event(1, 1)}, "4329"},
		"back to where it began":      {[]imagev1.TagEvent{event(2, 2)}, []imagev1.TagEvent{event(2, 4), event(3, 3), event(2, 2)}, "232"},
		"nothing known when it began": {[]imagev1.TagEvent{event(9, 9)}, []imagev1.TagEvent{event(2, 2), event(1, 1)}, "219"},
		"followed again":              {[]imagev1.TagEvent{event(2, 5), event(9, 5)}, []imagev1.TagEvent{event(3, 6), event(2, 2), event(1, 1)}, "329"},
		"the other is gone":           {[]imagev1.TagEvent{event(2, 2)}, nil, "2"},
	} {
		if got := show(tags.Follow(c.own, c.other)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	var own, other []imagev1.TagEvent
	for n := range tags.MaxItems {
		own, other = append(own, event(n, 1)), append(other, event(1000+n, 2))
	}
	if got := tags.Follow(own, other); len(got) != tags.MaxItems || got[0].Image != "1000" {
		t.Errorf("%d events, the newest %s", len(got), got[0].Image)
	}
}

// If users and pushes move a tag in turn, it leads to the target of the last move, even within one
// second.
func TestPushed(t *testing.T) {
	t.Parallel()
	events := func(list string) (out []imagev1.TagEvent) {
		for _, word := range strings.Fields(list) {
			image, second, _ := strings.Cut(word, "@")
			n, err := strconv.Atoi(second)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, imagev1.TagEvent{Image: image, Created: metav1.Unix(int64(n), 0), Generation: int64(n)})
		}
		return out
	}
	for name, c := range map[string]struct{ own, pushes, want string }{
		"no push":                            {"a@3", "", "a"},
		"the first push":                     {"a@3", "b@4", "ba"},
		"nothing since":                      {"a@3 b@2 a@1", "a@3 b@2 a@1", "aba"},
		"a push since":                       {"a@3 b@2 a@1", "c@4 a@3 b@2 a@1", "caba"},
		"the same push again at once":        {"a@2 b@2 a@1", "b@2 a@2 b@2 a@1", "baba"},
		"the user's move was not written":    {"a@3 b@2 a@1", "b@2 a@1", "aba"},
		"nor was it before the next push":    {"a@3 b@2 a@1", "c@4 b@2 a@1", "caba"},
		"old items were taken out of both":   {"a@3", "c@4 a@3", "ca"},
		"a clock that is behind keeps order": {"a@9", "c@4 b@2", "cba"},
	} {
		got := ""
		for i, e := range tags.Pushed(events(c.own), events(c.pushes)) {
			if got += e.Image; i == 0 && e.Generation < events(c.own)[0].Generation {
				t.Errorf("%s: the generation goes back to %d", name, e.Generation)
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// No event is older than the previous one, although writers have their own clocks. Generations do
// not decrease when a tag begins to follow another.
func TestHistoriesAreInOrder(t *testing.T) {
	t.Parallel()
	ref := reference.Reference{Host: "registry.example.com", Repository: "team/app", Tag: "v1"}
	tag := tags.New(ref)
	for _, second := range []int64{100, 90, 110, 109} {
		tags.Lead(tag, ref, fmt.Sprintf("sha256:%064x", second), metav1.NewTime(time.Unix(second, 0)))
	}
	var seconds []int64
	for _, item := range tag.Status.Items {
		seconds = append(seconds, item.Created.Unix())
	}
	if want := []int64{110, 110, 100, 100}; !slices.Equal(seconds, want) {
		t.Errorf("events are of %v, want %v", seconds, want)
	}
	again := &imagev1.NamedTagEventList{Items: []imagev1.TagEvent{{Image: "b", DockerImageReference: "b", Created: metav1.NewTime(time.Unix(20, 0))}}}
	tags.Add(again, imagev1.TagEvent{Image: "a", DockerImageReference: "a", Created: metav1.NewTime(time.Unix(10, 0))})
	if got := again.Items[0].Created.Unix(); got != 20 {
		t.Errorf("an event that is followed again is of %d, before one of 20", got)
	}
	moved := []imagev1.TagEvent{{Image: "c", Created: metav1.NewTime(time.Unix(15, 0))}, {Image: "a", Created: metav1.NewTime(time.Unix(10, 0))}}
	if got := tags.Follow(again.Items, moved); len(got) != 3 || got[0].Image != "c" || got[0].Created.Unix() != 20 {
		t.Errorf("a move after that is shown as %+v", got)
	}
	own := []imagev1.TagEvent{{Image: "b", Generation: 4}, {Image: "a", Generation: 2}}
	other := []imagev1.TagEvent{{Image: "d", Generation: 1}, {Image: "c", Generation: 1}}
	var generations []int64
	for _, item := range tags.Follow(own, other) {
		generations = append(generations, item.Generation)
	}
	if want := []int64{4, 4, 4, 2}; !slices.Equal(generations, want) || other[0].Generation != 1 {
		t.Errorf("generations are %v, want %v; the other's is %d", generations, want, other[0].Generation)
	}
}

// Add follows OpenShift's rules.
func TestAdd(t *testing.T) {
	t.Parallel()
	list := &imagev1.NamedTagEventList{Tag: "v1"}
	for _, c := range []struct {
		reference, image string
		generation       int64
		news             bool
		items            int
	}{
		{"a", "1", 1, true, 1},
		{"a", "1", 1, false, 1},
		{"a", "1", 2, true, 1}, // the same again, on request
		{"a", "2", 2, true, 1}, // the reference was looked up again
		{"b", "2", 2, true, 1}, // the same image from elsewhere
		{"c", "3", 2, true, 2},
	} {
		list.Conditions = []imagev1.TagEventCondition{{Type: imagev1.ImportSuccess}}
		news := tags.Add(list, imagev1.TagEvent{DockerImageReference: c.reference, Image: c.image, Generation: c.generation})
		newest := list.Items[0]
		if news != c.news || len(list.Items) != c.items || newest.DockerImageReference != c.reference || newest.Image != c.image || newest.Generation != c.generation || news != (list.Conditions == nil) {
			t.Errorf("%+v: %t, %+v", c, news, list)
		}
	}
	for n := range 300 {
		tags.Add(list, imagev1.TagEvent{DockerImageReference: fmt.Sprint("r", n), Image: fmt.Sprint(n + 10)})
	}
	if len(list.Items) != tags.MaxItems || list.Items[0].Image != "309" {
		t.Errorf("%d events, the newest %s", len(list.Items), list.Items[0].Image)
	}
}

// A tag must lead to its first digest, or to the digest that was accepted last, even when its
// history no longer has that.
func TestOverwritten(t *testing.T) {
	t.Parallel()
	ref := reference.Reference{Host: "registry.example.com", Repository: "team/app", Tag: "v1"}
	digest := func(n int) string { return fmt.Sprintf("sha256:%064x", n) }
	at := func(n int) metav1.Time { return metav1.NewTime(time.Unix(int64(n), 0)) }
	tag := tags.New(ref)
	if tags.Overwritten(tag) != nil || tags.Overwritten(nil) != nil || tags.Kept(tag) != "" {
		t.Error("a tag that led nowhere has moved")
	}
	led := func(n int, to string) *tags.Move {
		before := tag.DeepCopy()
		tags.Lead(tag, ref, to, at(n))
		tags.KeepFirst(tag, before)
		return tags.Overwritten(tag)
	}
	if led(1, "") != nil || led(2, digest(1)) != nil || led(3, "") != nil || led(4, digest(1)) != nil {
		t.Error("a tag that was deleted and comes back has moved")
	}
	m := led(5, digest(2))
	if m == nil || m.From != digest(1) || m.To != digest(2) || m.At.Unix() != 5 {
		t.Errorf("the move is %+v", m)
	}
	if led(6, "") != nil || tags.Away(tag, digest(2)) == nil || tags.Away(tag, digest(1)) != nil || tags.Away(tag, digest(3)) != nil {
		t.Error("what a tag led to before is not judged by where it led first")
	}
	for n := range 3 * tags.MaxItems {
		led(10+n, digest(10+n))
	}
	if m := tags.Away(tag, digest(2)); m == nil || !m.At.IsZero() || m.From != digest(1) || tags.Away(tag, digest(1)) != nil {
		t.Errorf("a move that the history no longer has is %+v", m)
	}
	if m := tags.Overwritten(tag); m == nil || m.From != digest(1) || tag.Annotations[tags.First] != digest(1) {
		t.Errorf("after %d moves the move is %+v", 3*tags.MaxItems, m)
	}
	if m := led(1000, digest(1)); m != nil {
		t.Errorf("it leads where it led first, and has moved: %+v", m)
	}
	led(1001, digest(2))
	tags.AcceptMove(tag, "ann", "rebuilt", at(1002).Time)
	if m := tags.Overwritten(tag); m != nil || tags.Kept(tag) != digest(2) {
		t.Errorf("an accepted move is %+v", m)
	}
	if tags.Away(tag, digest(1)) != nil {
		t.Error("what was in order before the acceptance no longer is")
	}
	if m := led(1003, digest(1)); m == nil || m.From != digest(2) {
		t.Errorf("a move back after the acceptance is %+v", m)
	}
	for n := range 2 * tags.MaxAcceptances {
		tags.AcceptMove(tag, fmt.Sprint(n), "", at(2000+n).Time)
	}
	if all := tags.Acceptances(tag); len(all) != tags.MaxAcceptances || all[0].By != fmt.Sprint(2*tags.MaxAcceptances-1) {
		t.Errorf("%d acceptances are kept: %+v", len(all), all)
	}
}

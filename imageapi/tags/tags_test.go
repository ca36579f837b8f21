package tags_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
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

// Two repositories never have one stream, and a stream's name is one that can stand in a URL.
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

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// nothing is stored, and no job waits.
type nothing struct{ answers.Objects }

func (nothing) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return nil, apierrors.NewNotFound(imagev1.Resource("images"), name)
}

func (nothing) Enqueue(context.Context, []push.Event) error                  { return nil }
func (nothing) Find(context.Context, push.Source, string) (*push.Job, error) { return nil, nil }
func (nothing) Retry(context.Context, int64) error                           { return nil }
func (nothing) policies(set *policy.Set) func(context.Context) (*policy.Set, error) {
	return func(context.Context) (*policy.Set, error) { return set, nil }
}

// No spelling of a host gets a pod past the policy that covers it, of the cluster or of a
// namespace.
func TestNoSpellingEscapesAPolicy(t *testing.T) {
	t.Parallel()
	trust := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	files := signaturestest.Document("hub", "[docker.io/library]", trust, "") + signaturestest.Document("prod", "[prod.example.com/team]", trust, "") +
		signaturestest.Document("port", "['port.example.com:443']", trust, "") + signaturestest.Document("inside", "['registry:5000/team', '[::1]:5000']", trust, "")
	policies, err := policy.Parse([]byte(files), "policies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var d policy.Document
	if err := json.Unmarshal([]byte(`{"spec":{"scopes":["own.example.com:443/team"]}}`), &d); err != nil {
		t.Fatal(err)
	}
	set, err := policy.NewSet(append(policies, policy.DenyAll("team", "own", &d.Spec)))
	if err != nil {
		t.Fatal(err)
	}
	a := &server.Admitter{Answerer: &answers.Answerer{
		Images: nothing{}, Tags: nothing{}, Jobs: nothing{},
		Policies: answers.InForce{Policies: nothing{}.policies(set), Clock: testingclock.NewFakePassiveClock(time.Now())},
	}}
	digest := "@sha256:" + strings.Repeat("0", 64)
	for image, want := range map[string]string{
		"nginx": "hub", "docker.io/nginx:1": "hub", "docker.io:443/library/nginx": "hub", "registry-1.docker.io/library/nginx": "hub", "REGISTRY-1.docker.io:443/nginx" + digest: "hub",
		"index.docker.io/library/nginx": "hub", "index.docker.io:443/nginx:1": "hub",
		"prod.example.com/team/app:1": "prod", "prod.example.com:443/team/app:1": "prod", "Prod.Example.com:443/team/app" + digest: "prod", "prod.example.com:5000/team/app:1": "",
		"port.example.com/app": "port", "port.example.com:443/app": "port",
		"registry:5000/team/app": "inside", "REGISTRY:5000/team/app" + digest: "inside", "registry:5000/other": "", "[::1]:5000/app": "inside", "[0:0:0::1]:5000/app:1": "inside",
		"own.example.com/team/app:1": "team/own", "OWN.example.com:443/team/app:1": "team/own",
	} {
		ref, err := reference.Parse(image)
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.Judge(t.Context(), admission.Pod{Cluster: "prod", Namespace: "team"}, ref)
		if err != nil {
			t.Fatal(err)
		}
		by := ""
		for _, f := range got.Findings {
			by += f.Policy
		}
		if by != want {
			t.Errorf("%s is judged by %q, want %q", image, by, want)
		}
	}
}

// What was stored under another spelling of its host is found under the one that counts now.
func TestObjectsOfOtherSpellingsAreFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d, err := db.Open(db.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	put := func(resource, name string, obj any) {
		t.Helper()
		b, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Put(t.Context(), "/image.openshift.io/"+resource+"/"+name, 0, b, db.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	digest := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	at := func(minute int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 1, 0, minute, 0, 0, time.UTC)) }
	for digit, host := range map[string]string{"1": "h.example.com:443", "2": "registry-1.docker.io", "3": "h.example.com"} {
		put("images", digest(digit), &imagev1.Image{
			TypeMeta: metav1.TypeMeta{Kind: "Image", APIVersion: "image.openshift.io/v1"},
			ObjectMeta: metav1.ObjectMeta{Name: digest(digit), UID: types.UID(digit), CreationTimestamp: at(0), Annotations: map[string]string{
				annotation.References:   fmt.Sprintf(`["%s/team/app:v%s"]`, host, digit),
				annotation.Repositories: fmt.Sprintf(`{"%s/team/app":{"warnings":["w"]}}`, host),
			}},
			DockerImageReference: host + "/team/app@" + digest(digit), DockerImageMetadataVersion: "1.0",
		})
	}
	accepted := map[string]string{tags.CheckedAt: "2026-01-01T00:07:00Z", tags.By: `["ann, push","bob, sweep"]`, tags.First: digest("2"), tags.Accepted: `[{"digest":"` + digest("1") + `","by":"ann","at":"2026-01-01T00:06:00Z"}]`}
	annotations := map[string]map[string]string{"h.example.com_443--team--app:v1": accepted}
	tag := func(name, ref string, items ...imagev1.TagEvent) {
		_, v, _ := strings.Cut(name, ":")
		put("imagetags/default", name, &imagev1.ImageTag{
			TypeMeta:   metav1.TypeMeta{Kind: "ImageTag", APIVersion: "image.openshift.io/v1"},
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: tags.Namespace, UID: types.UID(name), CreationTimestamp: at(0), Generation: 1, Annotations: annotations[name]},
			Spec:       &imagev1.TagReference{Name: v, From: &corev1.ObjectReference{Kind: "DockerImage", Name: ref}, ReferencePolicy: imagev1.TagReferencePolicy{Type: imagev1.SourceTagReferencePolicy}},
			Status:     &imagev1.NamedTagEventList{Tag: v, Items: items},
		})
	}
	event := func(minute int, host, digit string) imagev1.TagEvent {
		return imagev1.TagEvent{Created: at(minute), DockerImageReference: host + "/team/app@" + digest(digit), Image: digest(digit), Generation: 1}
	}
	tag("h.example.com_443--team--app:v1", "h.example.com:443/team/app:v1", event(5, "h.example.com:443", "1"), event(1, "h.example.com:443", "3"))
	tag("registry-1.docker.io--team--app:v2", "registry-1.docker.io/team/app:v2", event(1, "registry-1.docker.io", "2"))
	tag("h.example.com_443--team--app:v3", "h.example.com:443/team/app:v3", event(1, "h.example.com:443", "1"))
	tag("h.example.com--team--app:v3", "h.example.com/team/app:v3", event(3, "h.example.com", "3"))
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	found := func(t *testing.T) {
		images, err := imageclient.New(serveOn(t, dir, listen(t)))
		if err != nil {
			t.Fatal(err)
		}
		servertest.Eventually(t, "nothing in an old form", func() bool {
			old, err := images.ListTags(t.Context(), metav1.ListOptions{FieldSelector: "warnings=OldReferences"})
			return err == nil && len(old.Items) == 0 && len(selected(t, images, "warnings=OldReferences")) == 0
		})
		// where each tag must lead, if it must not move: what was accepted last, or the first
		kept := map[string]string{"h.example.com/team/app:v1": "1 2", "docker.io/team/app:v2": "2 2", "h.example.com/team/app:v3": "1 1"}
		for ref, want := range map[string]string{"h.example.com/team/app:v1": "13", "docker.io/team/app:v2": "2", "h.example.com/team/app:v3": "31"} {
			parsed, err := reference.Parse(ref)
			if err != nil {
				t.Fatal(err)
			}
			got, err := images.GetTag(t.Context(), tags.Name(parsed), metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			led := ""
			for _, item := range got.Status.Items {
				led += item.Image[len("sha256:"):][:1]
				if r, err := reference.Parse(item.DockerImageReference); err != nil || r.String() != item.DockerImageReference || r.Bare() != parsed.Bare() {
					t.Errorf("%s led to %s", ref, item.DockerImageReference)
				}
			}
			if must := tags.Kept(got)[len("sha256:"):][:1] + " " + tags.FirstOf(got)[len("sha256:"):][:1]; must != kept[ref] {
				t.Errorf("%s must lead to, and first led to, %s, want %s", ref, must, kept[ref])
			}
			// renaming it does not ask a registry and does not move the tag
			if ref == "h.example.com/team/app:v1" {
				checked, by := tags.Checked(got, time.Now()), tags.Writers(got)
				if checked == nil || !checked.Time.Equal(at(7).Time) || !slices.Equal(by, []string{"ann, push", "bob, sweep"}) {
					t.Errorf("%s was checked at %v, and recorded by %q", ref, checked, by)
				}
			} else if checked := tags.Checked(got, time.Now()); checked == nil || checked.After(at(7).Time) {
				t.Errorf("%s was checked at %v", ref, checked)
			}
			if led != want || got.Spec.From.Name != ref {
				t.Errorf("%s follows %s, led to %q, want %q", ref, got.Spec.From.Name, led, want)
			}
		}
		list, err := images.ListTags(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 3 {
			t.Errorf("%d tags, %v", len(list.Items), err)
		}
		for selector, want := range map[string]string{
			"references=h.example.com/team/app": "[1 3]", "references=h.example.com:443/team/app": "[1 3]", "references=registry-1.docker.io/team/app": "[2]", "references=docker.io:443/team/app:v2": "[2]",
			"dockerImageReference=h.example.com/team/app@" + digest("1"): "[1]",
		} {
			if got := fmt.Sprint(selected(t, images, selector)); got != want {
				t.Errorf("%s found %s, want %s", selector, got, want)
			}
		}
	}
	t.Run("brought to the one form", found)
	t.Run("a second start", found)
}

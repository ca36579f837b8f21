package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
)

// reviewer asks a server about references.
type reviewer struct {
	t      testing.TB
	client restclient.Interface
}

func newReviewer(t testing.TB, config *restclient.Config) reviewer {
	t.Helper()
	config = restclient.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	config.GroupVersion = &metav1.Unversioned
	client, err := restclient.UnversionedRESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return reviewer{t, client}
}

// send sends a review as it is.
func (r reviewer) send(body string) (*answers.ReferenceReview, error) {
	raw, err := r.client.Post().AbsPath("/apis/"+answers.GroupVersion.String()+"/"+answers.Resource).Body([]byte(body)).SetHeader("Content-Type", "application/json").DoRaw(r.t.Context())
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, raw)
	}
	var review answers.ReferenceReview
	return &review, json.Unmarshal(raw, &review)
}

// ask asks questions, and returns an answer to each.
func (r reviewer) ask(questions ...answers.Question) []answers.Answer {
	r.t.Helper()
	review := answers.ReferenceReview{TypeMeta: metav1.TypeMeta{APIVersion: answers.GroupVersion.String(), Kind: answers.Kind}, Spec: answers.ReferenceReviewSpec{References: questions, FormerTags: true}}
	body, err := json.Marshal(&review)
	if err != nil {
		r.t.Fatal(err)
	}
	got, err := r.send(string(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if len(got.Status.References) != len(questions) || got.Status.AsOf.IsZero() {
		r.t.Fatalf("%d questions have the answers %+v", len(questions), got.Status)
	}
	return got.Status.References
}

// A review tells what references mean, and of every question whether it has an answer.
func TestReferenceReview(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	config, err := kubeconfigConfig(l.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	r := newReviewer(t, config)
	a, b := l.a.Host, l.b.Host
	short := func(called string) string { return l.digests[called][len("sha256:"):][:12] }
	for _, tt := range []struct {
		asked, platform string
		state           answers.State
		means, digest   string   // the whole reference, and what it is called here
		says            []string // parts of the answer, as JSON
	}{
		{a + "/team/app:v1", "", answers.Found, a + "/team/app:v1", "new", []string{`"previous":[{"digest":"` + l.digests["old"], `"lastChecked":`, `"registry":"Present"`, `"verified":"NoPolicy"`}},
		{strings.ToUpper(a[:1]) + a[1:] + "/team/app:v1", "", answers.Found, a + "/team/app:v1", "new", nil},
		{short("old"), "", answers.Found, a + "/team/app@" + l.digests["old"], "old", []string{`"formerTags":[{"reference":"` + a + `/team/app:v1"`, `"now":"` + l.digests["new"], `"assumed":["the repository ` + a + `/team/app`}},
		{"sha256:" + short("new"), "", answers.Found, a + "/team/app@" + l.digests["new"], "new", []string{`"tags":["` + a + `/team/app:v1"]`}},
		{strings.TrimPrefix(l.digests["new"], "sha256:"), "", answers.Found, a + "/team/app@" + l.digests["new"], "new", nil},
		{a + "/team/app@" + short("old"), "", answers.Found, a + "/team/app@" + l.digests["old"], "old", nil},
		{a + "/team/app:v9@" + l.digests["old"], "", answers.Found, a + "/team/app@" + l.digests["old"], "old", []string{"the tag v9 is ignored"}},
		{"app@" + l.digests["old"], "", answers.Found, a + "/team/app@" + l.digests["old"], "old", []string{"app is " + a + "/team/app"}},
		{"lone:v2", "", answers.Found, b + "/team/lone:v2", "lone", []string{"the repository " + b + "/team/lone, the only one"}},
		{"team/lone:v2", "", answers.Found, b + "/team/lone:v2", "lone", nil},
		{"lone", "", answers.Absent, "docker.io/library/lone:latest", "", []string{`"assumed":["the tag latest","the registry docker.io"],"others":["` + b + `/team/lone:v2"]`}},
		{"team/lone:v9", "", answers.Absent, "docker.io/team/lone:v9", "", []string{`"others":["` + b + `/team/lone:v2"]`}},
		{a + "/team/multi:v1", "", answers.Found, a + "/team/multi:v1", "index", []string{`"platforms":[{"platform":"linux/amd64","digest":"` + l.digests["amd64"], `"selectors":["` + a + `/team/multi:v1"]`}},
		{a + "/team/multi:v1", "linux/arm64", answers.Found, a + "/team/multi@", "arm64", []string{`"indexes":["` + l.digests["index"], `linux/arm64 of the index ` + l.digests["index"]}},
		{a + "/team/multi:v1", "linux/s390x", answers.Absent, a + "/team/multi:v1", "", []string{"is not for linux/s390x, but for linux/amd64, linux/arm64", `"reason":"OtherPlatform"`, `{"platform":"linux/arm64"`}},
		{l.digests["arm64"], "", answers.Found, a + "/team/multi@", "arm64", []string{`"indexes":["` + l.digests["index"], `"platform":"linux/arm64"`}},
		{"team/app:v1", "", answers.Ambiguous, "", "", []string{a + "/team/app:v1", b + "/team/app:v1"}},
		{a + "/team/app:v9", "", answers.Absent, a + "/team/app:v9", "", []string{`"knownTags":["v1"]`}},
		{a + "/team/app", "", answers.Absent, a + "/team/app:latest", "", []string{`"assumed":["the tag latest"]`}},
		{"nowhere.example.com/app:v1", "", answers.Absent, "nowhere.example.com/app:v1", "", nil},
		{"sha256:" + strings.Repeat("0", 64), "", answers.Absent, "", "", []string{"no image has the digest"}},
		{"sha256:0000000000", "", answers.Absent, "", "", []string{"begins with sha256:0000000000"}},
		{"sha256:00", "", answers.Invalid, "", "", []string{"at least four"}},
		{b + "/team/app@" + l.digests["old"], "", answers.Absent, "", "", []string{"is not known to be in " + b + "/team/app, but in " + a + "/team/app"}},
		{b + "/team/gone:v1", "", answers.Gone, b + "/team/gone:v1", "", []string{`"registry":"Gone"`, `"previous":[{"digest":"` + l.digests["other"]}},
		{b + "/team/deleted:v1", "", answers.NotImported, b + "/team/deleted:v1", "deleted", []string{"which is not imported", `"running":{`}},
		{a + "/Team/App:v1", "", answers.Invalid, "", "", []string{`"suggestion":"` + a + `/team/app:v1"`}},
		{" " + a + "/team/app:v1\n", "", answers.Found, a + "/team/app:v1", "new", nil},
	} {
		got := r.ask(answers.Question{Reference: tt.asked, Platform: tt.platform})[0]
		text, err := json.Marshal(&got)
		if err != nil {
			t.Fatal(err)
		}
		if got.State != tt.state || !strings.HasPrefix(got.Meaning.Reference, tt.means) || tt.digest != "" && got.Meaning.Digest != l.digests[tt.digest] || (got.Verdict == nil) != (tt.state != answers.Found) {
			t.Errorf("%q %s means %s, want %s %s %s", tt.asked, tt.platform, text, tt.state, tt.means, l.digests[tt.digest])
		}
		for _, part := range tt.says {
			if !strings.Contains(string(text), part) {
				t.Errorf("the answer about %q has not %q:\n%s", tt.asked, part, text)
			}
		}
	}

	t.Run("bounds", func(t *testing.T) {
		for body, want := range map[string]string{
			`{}`: "at least one reference",
			`{"references":[` + strings.Repeat(`{"reference":"a"},`, 500) + `{"reference":"a"}]}`: "must have at most 500 items",
			`{"references":[{"reference":""}]}`:                                                   "spec.references[0].reference",
			`{"references":[{"reference":"` + strings.Repeat("a", 1025) + `"}]}`:                  "Too long: may not be more than 1024",
		} {
			_, err := r.send(`{"apiVersion":"tidewaiter.dev/v1","kind":"ReferenceReview","spec":` + body + `}`)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%.60s is answered %v, want %q", body, err, want)
			}
		}
		if got := r.ask(make500(a + "/team/app:v1")...); got[499].Meaning.Digest != l.digests["new"] {
			t.Errorf("the last of 500 is %+v", got[499])
		}
	})
	t.Run("rights", func(t *testing.T) { reviewsByRight(t, config, a+"/team/app:v1") })
}

func make500(ref string) (all []answers.Question) {
	for range 500 {
		all = append(all, answers.Question{Reference: ref})
	}
	return all
}

// A review shows what its caller may read otherwise. The rest is unknown, with the missing right.
func reviewsByRight(t *testing.T, config *restclient.Config, ref string) {
	admin := newClientset(t, config)
	bind(t, admin, "viewer", "tidewaiter:image-viewer", "")
	bind(t, admin, "watcher", "tidewaiter:image-viewer", "")
	bind(t, admin, "watcher", "tidewaiter:cluster-viewer", "")
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "asker"}, Rules: []rbacv1.PolicyRule{{APIGroups: []string{answers.GroupVersion.Group}, Resources: []string{answers.Resource}, Verbs: []string{"create"}}}}
	if _, err := admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bind(t, admin, "asker", "asker", "")
	for _, tt := range []struct {
		user  string
		state answers.State
		lacks string // a right, as the reason of what is unknown
	}{
		{"viewer", answers.Found, `User "viewer" cannot list resource "clusterpods" in API group "tidewaiter.dev"`},
		{"watcher", answers.Found, ""},
		{"asker", answers.Unknown, `User "asker" cannot get resource "imagetags" in API group "image.openshift.io" in the namespace "default"`},
	} {
		soon(t, tt.user+" is bound", func() bool {
			_, err := newReviewer(t, as(config, tt.user)).send(`{"apiVersion":"tidewaiter.dev/v1","kind":"ReferenceReview","spec":{"references":[{"reference":"a"}]}}`)
			return err == nil
		})
		got := newReviewer(t, as(config, tt.user)).ask(answers.Question{Reference: ref})[0]
		reasons := ""
		for _, u := range got.Unknowns {
			reasons += u.Reason
		}
		if got.State != tt.state || reasons != tt.lacks {
			t.Errorf("%s is answered %s, and %q is unknown, want %q", tt.user, got.State, reasons, tt.lacks)
		}
		if tt.state != answers.Found {
			continue
		}
		// Lists of images show as much: whether pods use an image, and not where.
		images, err := imageclient.New(as(config, tt.user))
		if err != nil {
			t.Fatal(err)
		}
		for selector, lacks := range map[string]string{"used=true": "", "used-by=local/default": tt.lacks} {
			_, err := images.List(t.Context(), metav1.ListOptions{FieldSelector: selector})
			if apierrors.IsForbidden(err) != (lacks != "") || lacks == "" && err != nil || lacks != "" && !strings.Contains(err.Error(), lacks) {
				t.Errorf("%s selects by %s: %v", tt.user, selector, err)
			}
		}
	}
	_, err := newReviewer(t, as(config, "nobody")).send(`{"apiVersion":"tidewaiter.dev/v1","kind":"ReferenceReview","spec":{"references":[{"reference":"a"}]}}`)
	if err == nil || !strings.Contains(err.Error(), `cannot create resource \"referencereviews\"`) {
		t.Errorf("who may not ask is answered %v", err)
	}
}

package imageapi_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

const repository = "registry.example.com/team/app"

// stream is one that follows a repository, with tags that each follow what is given as Kind/Name.
func stream(name, repository string, from ...string) *imagev1.ImageStream {
	s := &imagev1.ImageStream{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: imagev1.ImageStreamSpec{DockerImageRepository: repository}}
	for i := 0; i < len(from); i += 2 {
		s.Spec.Tags = append(s.Spec.Tags, *specTag(from[i], from[i+1]))
	}
	return s
}

func specTag(name, from string) *imagev1.TagReference {
	kind, source, _ := strings.Cut(from, "/")
	tag := &imagev1.TagReference{Name: name, From: &corev1.ObjectReference{Kind: kind, Name: source}, ReferencePolicy: imagev1.TagReferencePolicy{Type: imagev1.SourceTagReferencePolicy}}
	tag.ImportPolicy.ImportMode = imagev1.ImportModeLegacy
	return tag
}

func inNamespace(namespace, name string) context.Context {
	return genericapirequest.WithUser(genericapirequest.WithNamespace(genericapirequest.NewContext(), namespace), &user.DefaultInfo{Name: name})
}

func (s *tagStorages) createStream(namespace string, stream *imagev1.ImageStream) (*imagev1.ImageStream, error) {
	obj, err := s.streams.Create(inNamespace(namespace, s.asUser), stream, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageStream), nil
}

func (s *tagStorages) mustCreateStream(stream *imagev1.ImageStream) *imagev1.ImageStream {
	s.t.Helper()
	made, err := s.createStream("team", stream)
	if err != nil {
		s.t.Fatal(err)
	}
	return made
}

func (s *tagStorages) updateStream(to rest.Updater, stream *imagev1.ImageStream) (*imagev1.ImageStream, error) {
	obj, _, err := to.Update(inNamespace(stream.Namespace, s.asUser), stream.Name, rest.DefaultUpdatedObjectInfo(stream.DeepCopy()), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageStream), nil
}

func (s *tagStorages) stream(name string) *imagev1.ImageStream {
	s.t.Helper()
	obj, err := s.streams.Get(inNamespace("team", s.asUser), name, &metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return obj.(*imagev1.ImageStream)
}

// history is what a tag of a stream has led to, the newest first, by the numbers of digests.
func history(stream *imagev1.ImageStream, tag string) string {
	var out []string
	for _, t := range stream.Status.Tags {
		for _, item := range t.Items {
			if t.Tag == tag {
				out = append(out, strings.TrimLeft(strings.TrimPrefix(item.Image, "sha256:"), "0"))
			}
		}
	}
	return strings.Join(out, " ")
}

// A stream shows where the tags of its repository lead, however these were written, and after each
// move.
func TestStreamsShowTheTagsOfTheirRepository(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	tag := s.lead(tags.New(s.ref), digestOf(1), "import")
	made := s.mustCreateStream(stream("app", repository))
	if made.Generation != 1 || made.Status.DockerImageRepository != "" || history(made, "v1") != "1" {
		t.Fatalf("made is %+v", made)
	}
	tag = s.lead(tag, digestOf(2), "webhook")
	other := s.ref.WithTag("v2")
	two := tags.New(other)
	tags.Lead(two, other, digestOf(3), metav1.Now())
	if _, err := s.update(s.status, two); err != nil {
		t.Fatal(err)
	}
	if got := s.stream("app"); history(got, "v1") != "2 1" || history(got, "v2") != "3" || got.Status.Tags[0].Items[0].DockerImageReference != repository+"@"+digestOf(2) {
		t.Errorf("it shows %+v", got.Status)
	}
	tags.Fail(tag, "Unreachable", "no route", metav1.Now())
	if _, err := s.update(s.status, tag); err != nil {
		t.Fatal(err)
	}
	if got := s.stream("app"); len(got.Status.Tags[0].Conditions) != 1 || got.Status.Tags[0].Conditions[0].Reason != "Unreachable" {
		t.Errorf("a failure shows as %+v", got.Status.Tags[0])
	}
	list, err := s.streams.List(inNamespace("team", "alice"), &internalversion.ListOptions{})
	if err != nil || history(&list.(*imagev1.ImageStreamList).Items[0], "v1") != "2 1" {
		t.Errorf("a list shows %+v, %v", list, err)
	}
	if got := s.selected(s.streams, "repository=registry.example.com/team/app"); !slices.Equal(got, []string{"app"}) {
		t.Errorf("by its repository it selects %v", got)
	}
	if got := s.selected(s.streams, "repository=registry.example.com/team/other"); len(got) != 0 {
		t.Errorf("by another it selects %v", got)
	}
}

// The tags of a spec follow references, other tags of the stream, tags of other streams and images,
// each by its rule.
func TestTagsOfAStreamFollow(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	tag := s.lead(tags.New(s.ref), digestOf(1), "import")
	s.mustCreateStream(stream("other", repository))
	s.mustCreateStream(stream("app", "",
		"prod", "DockerImage/"+s.ref.String(), "latest", "ImageStreamTag/prod", "elsewhere", "ImageStreamTag/other:v1",
		"image", "ImageStreamImage/other@"+digestOf(1)[:30], "fixed", "DockerImage/"+repository+"@"+digestOf(7), "none", "ImageStreamTag/other:v9"))
	s.lead(tag, digestOf(2), "import")
	got := s.stream("app")
	for name, want := range map[string]string{"prod": "2 1", "latest": "2 1", "elsewhere": "1", "image": "1", "fixed": "7", "none": ""} {
		if h := history(got, name); h != want {
			t.Errorf("%s leads to %q, want %q", name, h, want)
		}
	}
	// What a tag led to before it followed something else stays.
	for i := range got.Spec.Tags {
		if got.Spec.Tags[i].Name == "prod" {
			got.Spec.Tags[i].From.Name = repository + "@" + digestOf(8)
		}
	}
	got.Spec.Tags = slices.DeleteFunc(got.Spec.Tags, func(t imagev1.TagReference) bool { return t.Name == "elsewhere" })
	changed, err := s.updateStream(s.streams, got)
	if err != nil {
		t.Fatal(err)
	}
	if history(changed, "prod") != "8 2 1" || history(changed, "latest") != "8 2 1" || history(changed, "elsewhere") != "1" {
		t.Errorf("after the change it shows %+v", changed.Status)
	}
	if changed.Generation != 2 || *changed.Spec.Tags[0].Generation != 2 || *changed.Spec.Tags[1].Generation != 1 {
		t.Errorf("generation %d, of tags %+v", changed.Generation, changed.Spec.Tags)
	}
}

// Users write what a stream follows, and not where that leads; also not by the subresource, nor the
// server's mark.
func TestUsersWriteNoStreamStatus(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.lead(tags.New(s.ref), digestOf(1), "import")
	mine := stream("app", repository)
	mine.Annotations = map[string]string{tags.Moved: "99999999"}
	mine.Status.Tags = []imagev1.NamedTagEventList{{Tag: "v1", Items: []imagev1.TagEvent{{Created: metav1.Now(), DockerImageReference: "evil.example.com/x", Image: digestOf(66)}}}}
	status := mine.Status
	made := s.mustCreateStream(mine)
	if history(made, "v1") != "1" || made.Annotations[tags.Moved] != "" {
		t.Errorf("created as %+v", made)
	}
	made.Status, made.Annotations = status, map[string]string{tags.Moved: "99999999", "mine": "yes"}
	changed, err := s.updateStream(s.streams, made)
	if err != nil || history(changed, "v1") != "1" || changed.Annotations[tags.Moved] != "" || changed.Annotations["mine"] != "yes" || changed.Generation != 1 {
		t.Errorf("changed to %+v, %v", changed, err)
	}
	evil := changed.DeepCopy()
	evil.Status = status
	if _, err := s.updateStream(s.streamStatus, evil); !apierrors.IsInvalid(err) {
		t.Errorf("by the subresource: %v", err)
	}
	changed.Spec.DockerImageRepository, changed.Annotations[tags.Moved] = "registry.example.com/other", "5"
	told, err := s.updateStream(s.streamStatus, changed)
	if err != nil || told.Spec.DockerImageRepository != repository || told.Annotations[tags.Moved] != "5" {
		t.Errorf("the mark: %+v, %v", told, err)
	}
}

func TestInvalidStreamsAreRefused(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	many := stream("app", "")
	for i := range 1001 {
		many.Spec.Tags = append(many.Spec.Tags, *specTag(fmt.Sprint("t", i), "DockerImage/a.b/c:v1"))
	}
	scheduled := stream("app", "", "v1", "ImageStreamTag/v2")
	scheduled.Spec.Tags[0].ImportPolicy.Scheduled = true
	policy := stream("app", "", "v1", "DockerImage/a.b/c:v1")
	policy.Spec.Tags[0].ReferencePolicy.Type = "Remote"
	mode := stream("app", "", "v1", "DockerImage/a.b/c:v1")
	mode.Spec.Tags[0].ImportPolicy.ImportMode = "All"
	for name, stream := range map[string]*imagev1.ImageStream{
		"a name with a colon":      stream("app:v1", ""),
		"a name in upper case":     stream("App", ""),
		"a long name":              stream(strings.Repeat("a", 252), ""),
		"a repository with a tag":  stream("app", repository+":v1"),
		"a repository by digest":   stream("app", repository+"@"+digestOf(1)),
		"no tag":                   stream("app", "", "v 1", "DockerImage/a.b/c:v1"),
		"a tag twice":              stream("app", "", "v1", "DockerImage/a.b/c:v1", "v1", "DockerImage/a.b/c:v2"),
		"no reference":             stream("app", "", "v1", "DockerImage/a.b/C:v1"),
		"another kind":             stream("app", "", "v1", "Pod/a"),
		"a stream that is not":     stream("app", "", "v1", "ImageStreamTag/none:v1"),
		"an image that is not":     stream("app", "", "v1", "ImageStreamImage/none@sha256:1"),
		"no tag of a stream":       stream("app", "", "v1", "ImageStreamTag/none:"),
		"a scheduled tag of one":   scheduled,
		"another reference policy": policy,
		"another import mode":      mode,
		"too many tags":            many,
	} {
		if _, err := s.createStream("team", stream); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.createStream("team", stream("registry.example.com_5000--team--app", "")); err != nil {
		t.Errorf("the name of a repository's stream: %v", err)
	}
}

// allow lets users do nothing but get the layers of some streams.
type allow []string

func (a allow) Authorize(_ context.Context, what authorizer.Attributes) (authorizer.Decision, string, error) {
	if what.GetVerb() == "get" && what.GetResource() == "imagestreams" && what.GetSubresource() == "layers" && slices.Contains(a, what.GetNamespace()+"/"+what.GetName()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// Whoever may write streams in one namespace sees nothing by them that is kept in another.
func TestStreamsShowNothingThatTheirWriterMayNotPull(t *testing.T) {
	t.Parallel()
	s := newTagStoragesWith(t, allow{"default/registry.example.com--team--app", "open/app"})
	s.lead(tags.New(s.ref), digestOf(1), "import")
	s.mustCreateStream(stream("app", repository))
	secret := reference.Reference{Host: "registry.example.com", Repository: "secret/app", Tag: "v1"}
	tag := tags.New(secret)
	tags.Lead(tag, secret, digestOf(2), metav1.Now())
	if _, err := s.update(s.status, tag); err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{"open", "closed"} {
		if _, err := s.createStream(namespace, stream("app", "", "v1", "DockerImage/"+s.ref.String())); err != nil {
			t.Fatal(err)
		}
	}
	from := func(namespace string) *imagev1.ImageStream {
		tagged := stream("mine", "", "v1", "ImageStreamTag/app:v1")
		tagged.Spec.Tags[0].From.Namespace = namespace
		return tagged
	}
	for name, stream := range map[string]*imagev1.ImageStream{
		"a repository":    stream("mine", secret.Name()),
		"a tag of one":    stream("mine", "", "v1", "DockerImage/"+secret.String()),
		"an image of one": stream("mine", "", "v1", "DockerImage/"+secret.Name()+"@"+digestOf(2)),
		"a stream's":      from("closed"),
		"the repository's stream": func() *imagev1.ImageStream {
			f := from("default")
			f.Spec.Tags[0].From.Name = "registry.example.com--secret--app:v1"
			return f
		}(),
	} {
		if _, err := s.createStream("team", stream); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "may not get imagestreams/layers") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if made, err := s.createStream("team", from("open")); err != nil || history(made, "v1") != "1" {
		t.Errorf("what may be pulled: %+v, %v", made, err)
	}
	// A change of something else is nobody's business.
	got := s.stream("app")
	got.Labels = map[string]string{"a": "b"}
	if _, err := s.updateStream(s.streams, got); err != nil {
		t.Error(err)
	}
	got = s.stream("app")
	got.Spec.DockerImageRepository = secret.Name()
	if _, err := s.updateStream(s.streams, got); !apierrors.IsInvalid(err) {
		t.Errorf("by a change: %v", err)
	}
}

// A watch of streams shows where tags lead, from its first event on.
func TestWatchedStreamsShowTags(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	tag := s.lead(tags.New(s.ref), digestOf(1), "import")
	ctx, stop := context.WithCancel(inNamespace("team", "alice"))
	defer stop()
	w, err := s.streams.(rest.Watcher).Watch(ctx, &internalversion.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	next := func() watch.Event {
		t.Helper()
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				t.Fatal("the watch ended")
			}
			return e
		case <-time.After(time.Minute):
			t.Fatal("the watch tells nothing")
			return watch.Event{}
		}
	}
	s.mustCreateStream(stream("app", repository))
	if e := next(); e.Type != watch.Added || history(e.Object.(*imagev1.ImageStream), "v1") != "1" {
		t.Errorf("after it was made: %+v", e)
	}
	s.lead(tag, digestOf(2), "import")
	made := s.stream("app")
	made.Annotations = map[string]string{tags.Moved: "7"}
	if _, err := s.updateStream(s.streamStatus, made); err != nil {
		t.Fatal(err)
	}
	if e := next(); e.Type != watch.Modified || history(e.Object.(*imagev1.ImageStream), "v1") != "2 1" {
		t.Errorf("after the tag moved: %+v", e)
	}
	if _, _, err := s.streams.(rest.GracefulDeleter).Delete(inNamespace("team", "alice"), "app", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := next(); e.Type != watch.Deleted {
		t.Errorf("after it was deleted: %+v", e)
	}
}

// What kubectl shows of a stream: the tags that moved last, as many as fit.
func TestStreamTable(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	is := stream("app", repository)
	row := func() []any {
		t.Helper()
		table, err := s.streams.(rest.TableConvertor).ConvertToTable(requestContext(), &imagev1.ImageStreamList{Items: []imagev1.ImageStream{*is}}, nil)
		if err != nil || len(table.Rows) != 1 || len(table.Rows[0].Cells) != len(table.ColumnDefinitions) {
			t.Fatalf("table %+v, %v", table, err)
		}
		return table.Rows[0].Cells
	}
	if got := row(); fmt.Sprint(got) != "[app "+repository+"  ]" {
		t.Errorf("without tags: %q", got)
	}
	for i := range 30 {
		is.Status.Tags = append(is.Status.Tags, imagev1.NamedTagEventList{Tag: fmt.Sprint("v", i), Items: []imagev1.TagEvent{{Created: metav1.NewTime(time.Now().Add(-time.Hour + time.Duration(i)*time.Minute)), Image: digestOf(i)}}})
	}
	if got := row(); !strings.HasPrefix(got[2].(string), "v29,v28,v27,") || !strings.HasSuffix(got[2].(string), "more...") || !strings.HasSuffix(got[3].(string), " ago") {
		t.Errorf("with tags: %q", got)
	}
}

// listedStreams are the streams of a list in pages of limit, each with how many items its histories
// have.
func (s *tagStorages) listedStreams(namespace string, options internalversion.ListOptions) (streams []string, pages int) {
	s.t.Helper()
	for {
		obj, err := s.streams.List(inNamespace(namespace, s.asUser), &options)
		if err != nil {
			s.t.Fatal(err)
		}
		list := obj.(*imagev1.ImageStreamList)
		for _, stream := range list.Items {
			events := 0
			for _, tag := range stream.Status.Tags {
				events += len(tag.Items)
			}
			streams = append(streams, fmt.Sprintf("%s/%s=%d", stream.Namespace, stream.Name, events))
		}
		pages++
		if options.Continue = list.Continue; options.Continue == "" {
			return streams, pages
		}
		if pages > 20 {
			s.t.Fatal("the pages have no end")
		}
	}
}

// Pages of streams show the same as the whole list.
func TestStreamsPage(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.lead(s.lead(tags.New(s.ref), digestOf(1), "import"), digestOf(2), "import")
	for _, namespace := range []string{"default", "team"} {
		for i := range 3 {
			if _, err := s.createStream(namespace, stream(fmt.Sprint("app", i), repository)); err != nil {
				t.Fatal(err)
			}
		}
	}
	team := []string{"team/app0=2", "team/app1=2", "team/app2=2"}
	all := append([]string{"default/app0=2", "default/app1=2", "default/app2=2"}, team...)
	for limit := range int64(8) {
		if got, pages := s.listedStreams("", internalversion.ListOptions{Limit: limit}); !slices.Equal(got, all) || limit > 0 && pages != (5+int(limit))/int(limit) {
			t.Errorf("in pages of %d all are %v, in %d pages", limit, got, pages)
		}
		if got, _ := s.listedStreams("team", internalversion.ListOptions{Limit: limit}); !slices.Equal(got, team) {
			t.Errorf("in pages of %d the namespace has %v", limit, got)
		}
		one := internalversion.ListOptions{Limit: limit, FieldSelector: fields.OneTermEqualSelector("metadata.namespace", "team")}
		if got, _ := s.listedStreams("", one); !slices.Equal(got, team) {
			t.Errorf("in pages of %d the selected namespace has %v", limit, got)
		}
	}
}

// Many streams of long histories, listed at once, are refused; pages are cut before they are too
// large, and nothing is lost.
func TestAttackListOfLongHistories(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	t.Parallel()
	s := newTagStorages(t)
	const many = 200
	var want []string
	for i := range 3 { // 60,000 items
		s.mustCreateStream(stream(fmt.Sprint("app", i), repository))
		want = append(want, fmt.Sprintf("team/app%d=%d", i, many*tags.MaxItems))
	}
	for i := range many {
		ref := s.ref.WithTag(fmt.Sprint("v", i))
		tag := tags.New(ref)
		for j := range tags.MaxItems {
			tags.Lead(tag, ref, digestOf(j), metav1.NewTime(time.Unix(int64(j), 0)))
		}
		if _, err := s.update(s.status, tag); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.streams.List(inNamespace("team", "alice"), &internalversion.ListOptions{}); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "in pages") {
		t.Errorf("without a limit: %v", err)
	}
	if got, pages := s.listedStreams("", internalversion.ListOptions{Limit: 500}); !slices.Equal(got, want) || pages != 2 {
		t.Errorf("there are %v, in %d pages", got, pages)
	}
}

// A collection of streams is deleted as it is selected; what registries say stays.
func TestStreamsAreDeletedTogether(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.lead(tags.New(s.ref), digestOf(1), "import")
	for _, namespace := range []string{"default", "team"} {
		for i := range 3 {
			app := stream(fmt.Sprint("app", i), repository)
			app.Labels = map[string]string{"even": fmt.Sprint(i%2 == 0)}
			if _, err := s.createStream(namespace, app); err != nil {
				t.Fatal(err)
			}
		}
	}
	even := labels.SelectorFromSet(labels.Set{"even": "true"})
	obj, err := s.streams.DeleteCollection(inNamespace("team", "alice"), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, &internalversion.ListOptions{LabelSelector: even})
	if err != nil {
		t.Fatal(err)
	}
	if deleted := obj.(*imagev1.ImageStreamList).Items; len(deleted) != 2 || history(&deleted[0], "v1") != "1" {
		t.Errorf("deleted are %+v", deleted)
	}
	if got, _ := s.listedStreams("", internalversion.ListOptions{}); !slices.Equal(got, []string{"default/app0=1", "default/app1=1", "default/app2=1", "team/app1=1"}) {
		t.Errorf("left are %v", got)
	}
}

// People get what they work with by a short word.
func TestShortNames(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	for resource, short := range map[string]string{"images": "img", "imagestreams": "is", "imagestreamtags": "istag"} {
		if names := s.all.Resources()[resource].(rest.ShortNamesProvider).ShortNames(); !slices.Equal(names, []string{short}) {
			t.Errorf("%s: %v", resource, names)
		}
	}
}

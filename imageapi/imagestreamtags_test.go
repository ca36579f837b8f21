package imageapi_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// streamTags is what imagestreamtags can do.
type streamTags interface {
	rest.Lister
	rest.Getter
	rest.CreaterUpdater
	rest.GracefulDeleter
}

func (s *tagStorages) streamTags() streamTags { return s.all.StreamTags }

// put writes a tag of a stream as PUT does.
func (s *tagStorages) put(tag *imagev1.ImageStreamTag) (*imagev1.ImageStreamTag, bool, error) {
	obj, created, err := s.streamTags().Update(inNamespace("team", s.asUser), tag.Name, rest.DefaultUpdatedObjectInfo(tag.DeepCopy()), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, false, err
	}
	return obj.(*imagev1.ImageStreamTag), created, nil
}

func (s *tagStorages) post(tag *imagev1.ImageStreamTag) (*imagev1.ImageStreamTag, error) {
	obj, err := s.streamTags().Create(inNamespace("team", s.asUser), tag.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageStreamTag), nil
}

func (s *tagStorages) remove(namespace, name string, options *metav1.DeleteOptions) error {
	_, _, err := s.streamTags().Delete(inNamespace(namespace, s.asUser), name, rest.ValidateAllObjectFunc, options)
	return err
}

func (s *tagStorages) streamTag(namespace, name string) (*imagev1.ImageStreamTag, error) {
	obj, err := s.streamTags().Get(inNamespace(namespace, s.asUser), name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageStreamTag), nil
}

// istag is one that follows what is given as Kind/Name.
func istag(name, from string) *imagev1.ImageStreamTag {
	_, tag, _ := strings.Cut(name, ":")
	return &imagev1.ImageStreamTag{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "team"}, Tag: specTag(tag, from)}
}

// knownAs records in a registry that a tag of it leads to a digest.
func (s *tagStorages) knownAs(repository, tag, digest string) *imagev1.ImageTag {
	s.t.Helper()
	ref, err := reference.Parse(repository + ":" + tag)
	if err != nil {
		s.t.Fatal(err)
	}
	made := tags.New(ref)
	tags.Lead(made, ref, digest, metav1.Now())
	out, err := s.update(s.status, made)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// stored makes an image of a repository and returns its name.
func (s *tagStorages) stored(repository string) string {
	s.t.Helper()
	image := ociImage(s.t)
	image.DockerImageReference = repository + "@" + image.Name
	if _, err := s.images.Create(requestContext(), image, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	return image.Name
}

// A tag of a stream has its image, without manifest and config, whether the stream has it of its
// repository or of its spec.
func TestStreamTagsShowTheirImages(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	name := s.stored(repository)
	s.knownAs(repository, "v1", name)
	s.knownAs(repository, "gone", digestOf(1))
	s.knownAs(repository, "unknown", digestOf(2))
	gone := s.knownAs(repository, "left", digestOf(3))
	tags.Lead(gone, reference.Reference{Host: "registry.example.com", Repository: "team/app", Tag: "left"}, "", metav1.Now())
	if _, err := s.update(s.status, gone); err != nil {
		t.Fatal(err)
	}
	app := stream("app", repository, "prod", "DockerImage/"+repository+":v1", "latest", "ImageStreamTag/prod", "odd", "ImageStreamTag/a/b")
	app.Labels = map[string]string{"a": "b"}
	app.Spec.Tags[0].Annotations = map[string]string{"who": "me"}
	app.Spec.LookupPolicy.Local = true
	made := s.mustCreateStream(app)
	for _, tag := range []string{"v1", "prod", "latest"} {
		got, err := s.streamTag("team", "app:"+tag)
		if err != nil {
			t.Fatal(err)
		}
		if got.Image.Name != name || got.Image.DockerImageReference != repository+"@"+name || len(got.Image.DockerImageMetadata.Raw) == 0 || len(got.Image.DockerImageLayers) == 0 || got.Image.DockerImageManifest != "" || got.Image.DockerImageConfig != "" {
			t.Errorf("%s has %+v", tag, got.Image)
		}
		if got.Namespace != "team" || got.Name != "app:"+tag || got.UID != made.UID || got.ResourceVersion != made.ResourceVersion || got.Labels["a"] != "b" || !got.LookupPolicy.Local || got.CreationTimestamp.IsZero() {
			t.Errorf("%s is %+v", tag, got)
		}
		if inSpec := tag != "v1"; (got.Tag != nil) != inSpec || (got.Annotations["who"] == "me") != (tag == "prod") || (got.Image.Annotations["who"] == "me") != (tag == "prod") {
			t.Errorf("%s has of the spec %+v, annotations %v and %v", tag, got.Tag, got.Annotations, got.Image.Annotations)
		}
	}
	if got, err := s.streamTag("team", "app:unknown"); err != nil || got.Image.Name != digestOf(2) || got.Image.DockerImageMetadata.Raw != nil {
		t.Errorf("of an image that is not stored: %+v, %v", got, err)
	}
	for _, none := range []string{"app:left", "app:never", "app:odd", "none:v1"} {
		if _, err := s.streamTag("team", none); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `imagestreamtags.image.openshift.io "`+none+`"`) {
			t.Errorf("%s: %v", none, err)
		}
	}
	for _, bad := range []string{"app", ":v1", "app:", "app:v 1", "app:v1:v2"} {
		if _, err := s.streamTag("team", bad); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// Whoever may pull from one repository names the digest of an image of another as if it were there,
// and sees no more than what they wrote.
func TestAttackStreamTagNamesAnImageOfAnotherRepository(t *testing.T) {
	t.Parallel()
	s := newTagStoragesWith(t, allow{"default/registry.example.com--team--app"})
	name := s.stored("registry.example.com/secret/app")
	got, err := s.post(istag("app:v1", "DockerImage/"+repository+"@"+name))
	if err != nil || got.Image.Name != name || got.Image.DockerImageMetadata.Raw != nil || got.Image.DockerImageLayers != nil {
		t.Errorf("made as %+v, %v", got, err)
	}
	if got, err = s.streamTag("team", "app:v1"); err != nil || got.Image.DockerImageMetadata.Raw != nil || got.Image.DockerImageLayers != nil {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := s.post(istag("app:v2", "DockerImage/registry.example.com/secret/app@"+name)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "may not get imagestreams/layers") {
		t.Errorf("of the other repository: %v", err)
	}
}

// POST makes a tag, and its stream if there is none; what the stream's spec has is not made again.
func TestStreamTagsAreMade(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.knownAs(repository, "v1", digestOf(1))
	annotated := istag("app:v1", "DockerImage/"+repository+":v1")
	annotated.Annotations = map[string]string{"who": "me"}
	annotated.Tag.Name = "other"
	annotated.Image = imagev1.Image{DockerImageManifest: "evil", DockerImageReference: "evil.example.com/x"}
	made, err := s.post(annotated)
	if err != nil || made.Image.Name != digestOf(1) || made.Image.DockerImageReference != repository+"@"+digestOf(1) || made.Tag.Name != "v1" || made.Annotations["who"] != "me" || made.Generation != 1 {
		t.Fatalf("made %+v, %v", made, err)
	}
	if _, err := s.post(istag("app:v1", "DockerImage/"+repository+":v2")); !apierrors.IsAlreadyExists(err) || !strings.Contains(err.Error(), "app:v1") {
		t.Errorf("again: %v", err)
	}
	if _, err := s.post(istag("app:v2", "ImageStreamTag/v1")); err != nil {
		t.Error(err)
	}
	got := s.stream("app")
	if len(got.Spec.Tags) != 2 || got.Generation != 2 || *got.Spec.Tags[0].Generation != 1 || *got.Spec.Tags[1].Generation != 2 || got.Spec.Tags[0].Annotations["who"] != "me" || history(got, "v2") != "1" {
		t.Errorf("the stream is %+v", got)
	}
	unequal := istag("app:v3", "ImageStreamTag/v1")
	unequal.Tag.Annotations = map[string]string{"a": "b"}
	labelled := istag("app:v3", "ImageStreamTag/v1")
	labelled.Labels = map[string]string{"a": "b"}
	for name, tag := range map[string]*imagev1.ImageStreamTag{
		"no tag":                       {ObjectMeta: metav1.ObjectMeta{Name: "app:v3"}},
		"other annotations in the tag": unequal,
		"labels":                       labelled,
		"another kind":                 istag("app:v3", "Pod/a"),
		"no reference":                 istag("app:v3", "DockerImage/A b"),
		"a stream that is not":         istag("app:v3", "ImageStreamTag/none:v1"),
		"a name without tag":           istag("app", "ImageStreamTag/v1"),
		"a stream's name that is none": istag("App:v1", "DockerImage/"+repository+":v1"),
	} {
		if _, err := s.post(tag); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := s.streamTags().Create(inNamespace("team", "alice"), istag("dry:v1", "DockerImage/"+repository+":v1"), rest.ValidateAllObjectFunc, &metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Error(err)
	}
	if _, err := s.streamTag("team", "dry:v1"); !apierrors.IsNotFound(err) {
		t.Errorf("a dry run has left %v", err)
	}
}

// PUT without a resourceVersion makes what is not there; with one it changes that version of the
// stream or nothing.
func TestStreamTagsAreWritten(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.knownAs(repository, "v1", digestOf(1))
	s.knownAs(repository, "v2", digestOf(2))
	old := istag("app:prod", "DockerImage/"+repository+":v1")
	old.ResourceVersion = "5"
	if _, _, err := s.put(old); !apierrors.IsNotFound(err) {
		t.Errorf("with a version of no stream: %v", err)
	}
	made, created, err := s.put(istag("app:prod", "DockerImage/"+repository+":v1"))
	if err != nil || !created || made.Image.Name != digestOf(1) || made.ResourceVersion == "" {
		t.Fatalf("made %+v, %v, %v", made, created, err)
	}
	changed, created, err := s.put(istag("app:prod", "DockerImage/"+repository+":v2"))
	if err != nil || created || changed.Image.Name != digestOf(2) || changed.ResourceVersion == made.ResourceVersion {
		t.Fatalf("changed to %+v, %v, %v", changed, created, err)
	}
	if got := s.stream("app"); history(got, "prod") != "2 1" || got.Generation != 2 {
		t.Errorf("the stream is %+v", got)
	}
	if _, _, err := s.put(made); !apierrors.IsConflict(err) {
		t.Errorf("with an old version: %v", err)
	}
	// Who reads, changes annotations and writes need not change those in the spec.
	changed.Annotations = map[string]string{"who": "me"}
	changed.Image.DockerImageReference = "evil.example.com/x"
	changed, _, err = s.put(changed)
	if err != nil || changed.Tag.Annotations["who"] != "me" || changed.Image.DockerImageReference != repository+"@"+digestOf(2) {
		t.Errorf("annotated as %+v, %v", changed, err)
	}
	bare := &imagev1.ImageStreamTag{ObjectMeta: metav1.ObjectMeta{Name: "app:prod", Namespace: "team"}}
	if bare, _, err = s.put(bare); err != nil || bare.Tag == nil || bare.Tag.From.Name != repository+":v2" || len(bare.Tag.Annotations) != 0 {
		t.Errorf("without a tag: %+v, %v", bare, err)
	}
	labelled := istag("app:prod", "DockerImage/"+repository+":v1")
	labelled.Labels = map[string]string{"a": "b"}
	none := istag("app:none", "")
	none.Tag = nil
	for name, tag := range map[string]*imagev1.ImageStreamTag{"labels": labelled, "a new one that follows nothing": none} {
		if _, _, err := s.put(tag); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := istag("app:prod", "DockerImage/"+repository+":v1")
	other.UID = "other"
	if _, _, err := s.put(other); !apierrors.IsConflict(err) {
		t.Errorf("with another UID: %v", err)
	}
	// A tag that the stream has of its repository gets an entry in the spec.
	s.mustCreateStream(stream("whole", repository))
	got, created, err := s.put(istag("whole:v1", "DockerImage/"+repository+":v2"))
	if err != nil || !created || got.Image.Name != digestOf(2) {
		t.Errorf("over the repository's: %+v, %v, %v", got, created, err)
	}
}

// A patch of a tag that is not there is 404: it is given an object without UID. Server-side apply
// makes one of that.
func TestPatchesMakeNoStreamTags(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.knownAs(repository, "v1", digestOf(1))
	s.mustCreateStream(stream("app", repository))
	for name, there := range map[string]bool{"app:v1": true, "app:none": false, "none:v1": false} {
		var uid types.UID
		info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
			uid = old.(*imagev1.ImageStreamTag).UID
			return nil, apierrors.NewBadRequest("enough")
		})
		_, _, err := s.streamTags().Update(inNamespace("team", "alice"), name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
		if !apierrors.IsBadRequest(err) || (uid != "") != there {
			t.Errorf("%s is given to patches with UID %q, %v", name, uid, err)
		}
	}
}

// DELETE removes a tag and what it led to, and nothing of what others say.
func TestStreamTagsAreDeleted(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.knownAs(repository, "v1", digestOf(1))
	made := s.mustCreateStream(stream("app", repository, "prod", "DockerImage/"+repository+":v1", "latest", "ImageStreamTag/prod", "fixed", "DockerImage/"+repository+"@"+digestOf(7)))
	other := types.UID("other")
	if err := s.remove("team", "app:prod", &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}}); !apierrors.IsConflict(err) {
		t.Errorf("with another UID: %v", err)
	}
	if err := s.remove("team", "app:prod", &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Errorf("a dry run: %v", err)
	}
	if err := s.remove("team", "app:prod", &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &made.UID, ResourceVersion: &made.ResourceVersion}}); err != nil {
		t.Fatal(err)
	}
	got := s.stream("app")
	if history(got, "prod") != "" || history(got, "latest") != "1" || history(got, "fixed") != "7" || history(got, "v1") != "1" || len(got.Spec.Tags) != 2 || got.Generation != 2 {
		t.Errorf("left is %+v", got)
	}
	for _, none := range []string{"app:prod", "app:none", "none:v1"} {
		if err := s.remove("team", none, nil); !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v", none, err)
		}
	}
	// A tag that was taken out of the spec before has a history, which goes, too.
	got.Spec.Tags = nil
	if got, err := s.updateStream(s.streams, got); err != nil || history(got, "fixed") != "7" {
		t.Fatalf("without spec: %+v, %v", got, err)
	}
	if err := s.remove("team", "app:fixed", nil); err != nil {
		t.Error(err)
	}
	if got := s.stream("app"); history(got, "fixed") != "" {
		t.Errorf("left is %+v", got)
	}
	// What registries say is not a team's.
	if err := s.remove("team", "app:v1", nil); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "registry.example.com--team--app:v1") {
		t.Errorf("the repository's: %v", err)
	}
	if _, err := s.createStream(tags.Namespace, stream("registry.example.com--team--app", repository)); err != nil {
		t.Fatal(err)
	}
	if err := s.remove(tags.Namespace, "registry.example.com--team--app:v1", nil); err != nil {
		t.Error(err)
	}
	if _, err := s.streamTag("team", "app:v1"); !apierrors.IsNotFound(err) {
		t.Errorf("after its ImageTag was deleted: %v", err)
	}
}

// deny lets users do all but delete imagetags.
type deny struct{}

func (deny) Authorize(_ context.Context, what authorizer.Attributes) (authorizer.Decision, string, error) {
	if what.GetResource() == "imagetags" && what.GetVerb() == "delete" {
		return authorizer.DecisionNoOpinion, "no role", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// Whoever may delete tags of streams forgets nothing by them that only those may who delete
// ImageTags.
func TestAttackDeletingAStreamTagForgetsItsImageTag(t *testing.T) {
	t.Parallel()
	s := newTagStoragesWith(t, deny{})
	s.knownAs(repository, "v1", digestOf(1))
	if _, err := s.createStream(tags.Namespace, stream("app", repository)); err != nil {
		t.Fatal(err)
	}
	if err := s.remove(tags.Namespace, "app:v1", nil); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "no role") {
		t.Errorf("deleting: %v", err)
	}
	if got, err := s.streamTag(tags.Namespace, "app:v1"); err != nil || got.Image.Name != digestOf(1) {
		t.Errorf("left is %+v, %v", got, err)
	}
}

// listed are the names of a list in pages of limit, the namespace before each; the whole at once
// without limit.
func (s *tagStorages) listed(namespace string, options internalversion.ListOptions) (names []string) {
	s.t.Helper()
	for {
		obj, err := s.streamTags().List(inNamespace(namespace, s.asUser), &options)
		if err != nil {
			s.t.Fatal(err)
		}
		list := obj.(*imagev1.ImageStreamTagList)
		if options.Limit > 0 && int64(len(list.Items)) > options.Limit || list.ResourceVersion == "" {
			s.t.Fatalf("a page has %d tags, resourceVersion %q", len(list.Items), list.ResourceVersion)
		}
		for _, tag := range list.Items {
			if tag.Image.Name == "" || tag.Image.DockerImageMetadata.Raw != nil {
				s.t.Errorf("%s has the image %+v", tag.Name, tag.Image)
			}
			names = append(names, tag.Namespace+"/"+tag.Name)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return names
		}
		if len(names) > 1000 {
			s.t.Fatal("the pages have no end")
		}
	}
}

// A list has the tags of all streams, each once, in order, however it is cut into pages.
func TestStreamTagsAreListed(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	s.stored(repository)
	for i := range 7 {
		s.knownAs(repository, fmt.Sprint("v", i), digestOf(i))
	}
	s.knownAs("registry.example.com/team/app2", "v1", digestOf(9))
	app := stream("app", repository, "v3", "DockerImage/"+repository+"@"+digestOf(8), "a", "ImageStreamTag/v0", "z", "ImageStreamTag/v3", "nothing", "DockerImage/"+repository+":never")
	app.Labels = map[string]string{"team": "app"}
	s.mustCreateStream(app)
	s.mustCreateStream(stream("b", "", "x", "ImageStreamTag/app:v1"))
	s.mustCreateStream(stream("empty", ""))
	for _, namespace := range []string{"default", "other"} {
		if _, err := s.createStream(namespace, stream("app", "registry.example.com/team/app2")); err != nil {
			t.Fatal(err)
		}
	}
	var team []string
	for _, tag := range []string{"a", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "z"} {
		team = append(team, "team/app:"+tag)
	}
	team = append(team, "team/b:x")
	all := append([]string{"default/app:v1", "other/app:v1"}, team...)
	for limit := range int64(len(all) + 2) {
		if got := s.listed("team", internalversion.ListOptions{Limit: limit}); !slices.Equal(got, team) {
			t.Errorf("in pages of %d the namespace has %v", limit, got)
		}
		if got := s.listed("", internalversion.ListOptions{Limit: limit}); !slices.Equal(got, all) {
			t.Errorf("in pages of %d all have %v", limit, got)
		}
	}
	by := func(field string) internalversion.ListOptions {
		return internalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie(field), Limit: 1}
	}
	for selector, want := range map[string][]string{
		"metadata.name=app:v1":                             {"default/app:v1", "other/app:v1", "team/app:v1"},
		"metadata.name=app:v3":                             {"team/app:v3"},
		"metadata.name=app:none":                           nil,
		"metadata.namespace=team":                          team,
		"metadata.namespace=other":                         {"other/app:v1"},
		"metadata.name=app:v1,metadata.namespace=other":    {"other/app:v1"},
		"metadata.name!=app:v1,metadata.namespace!=team":   nil,
		"metadata.namespace!=team,metadata.namespace!=oth": {"default/app:v1", "other/app:v1"},
	} {
		if got := s.listed("", by(selector)); !slices.Equal(got, want) {
			t.Errorf("%s: %v", selector, got)
		}
	}
	if got := s.listed("", internalversion.ListOptions{LabelSelector: labels.SelectorFromSet(labels.Set{"team": "app"}), Limit: 4}); !slices.Equal(got, team[:len(team)-1]) {
		t.Errorf("by label: %v", got)
	}
}

// Between two pages streams and tags come and go: what was there all the time comes once.
func TestStreamTagPagesWhileTagsMove(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	for i := range 6 {
		s.knownAs(repository, fmt.Sprint("v", i), digestOf(i))
	}
	s.mustCreateStream(stream("app", repository))
	s.mustCreateStream(stream("b", "", "x", "ImageStreamTag/app:v5"))
	options := internalversion.ListOptions{Limit: 3}
	page := func() (names []string) {
		t.Helper()
		obj, err := s.streamTags().List(inNamespace("team", "alice"), &options)
		if err != nil {
			t.Fatal(err)
		}
		for _, tag := range obj.(*imagev1.ImageStreamTagList).Items {
			names = append(names, tag.Name)
		}
		options.Continue = obj.(*imagev1.ImageStreamTagList).Continue
		return names
	}
	if got := page(); !slices.Equal(got, []string{"app:v0", "app:v1", "app:v2"}) {
		t.Fatalf("first %v", got)
	}
	for _, tag := range []string{"v2", "v4"} {
		// the one that the page ended with, and one of the next
		if _, _, err := s.tags.Delete(inNamespace(tags.Namespace, "alice"), "registry.example.com--team--app:"+tag, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.knownAs(repository, "v0.1", digestOf(1))
	if got := page(); !slices.Equal(got, []string{"app:v3", "app:v5", "b:x"}) {
		t.Errorf("then %v", got)
	}
	options.Continue = ""
	page()
	if _, _, err := s.streams.Delete(inNamespace("team", "alice"), "app", rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := page(); !slices.Equal(got, []string{"b:x"}) {
		t.Errorf("after the stream was deleted %v", got)
	}
}

// A page reads the streams that it shows, and not each time many after them.
func TestPagesOfStreamTagsReadWhatTheyShow(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	const streams, tagsOfEach = 30, 20
	for i := range streams {
		one := stream(fmt.Sprint("app", i), "")
		for j := range tagsOfEach {
			one.Spec.Tags = append(one.Spec.Tags, *specTag(fmt.Sprint("t", j), "DockerImage/"+repository+"@"+digestOf(j)))
		}
		s.mustCreateStream(one)
	}
	for limit, most := range map[int64]int{tagsOfEach / 2: 3 * streams, 100 * tagsOfEach: streams} {
		read, listed := 0, 0
		for options := (internalversion.ListOptions{Limit: limit}); ; {
			obj, err := s.streamTags().List(context.WithValue(inNamespace("team", "alice"), readCounter{}, &read), &options)
			if err != nil {
				t.Fatal(err)
			}
			listed += len(obj.(*imagev1.ImageStreamTagList).Items)
			if options.Continue = obj.(*imagev1.ImageStreamTagList).Continue; options.Continue == "" {
				break
			}
		}
		if listed != streams*tagsOfEach || read > most {
			t.Errorf("in pages of %d there are %d tags, and %d streams were read, want %d at most", limit, listed, read, most)
		}
	}
}

// A list without a limit that is very long is refused, and a page is never longer than that.
func TestAttackListOfAllStreamTags(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	t.Parallel()
	s := newTagStorages(t)
	for i := range 11 {
		large := stream(fmt.Sprint("app", i), "")
		for j := range 1000 {
			tag := specTag(fmt.Sprint("t", j), "DockerImage/"+repository+"@"+digestOf(j))
			large.Spec.Tags = append(large.Spec.Tags, *tag)
		}
		s.mustCreateStream(large)
	}
	if _, err := s.streamTags().List(inNamespace("", "alice"), &internalversion.ListOptions{}); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "in pages") {
		t.Errorf("without a limit: %v", err)
	}
	obj, err := s.streamTags().List(inNamespace("", "alice"), &internalversion.ListOptions{Limit: 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	if list := obj.(*imagev1.ImageStreamTagList); len(list.Items) != 10000 || list.Continue == "" {
		t.Errorf("with a limit of any size: %d, %q", len(list.Items), list.Continue)
	}
	if _, err := s.streamTags().List(inNamespace("", "alice"), &internalversion.ListOptions{ResourceVersion: "1", ResourceVersionMatch: metav1.ResourceVersionMatchExact}); !apierrors.IsBadRequest(err) {
		t.Errorf("of an earlier version: %v", err)
	}
	if _, err := s.streamTags().List(inNamespace("", "alice"), &internalversion.ListOptions{Limit: 1, ResourceVersion: "1"}); err != nil {
		t.Errorf("not older than a version: %v", err)
	}
}

// Whatever a client sends as a continue token, it gets a list or is told that it is wrong.
func FuzzStreamTagContinue(f *testing.F) {
	s := newTagStorages(f)
	s.knownAs(repository, "v1", digestOf(1))
	s.knownAs(repository, "v2", digestOf(2))
	s.mustCreateStream(stream("app", repository))
	for _, namespace := range []string{"", "team"} {
		obj, err := s.streamTags().List(inNamespace(namespace, "alice"), &internalversion.ListOptions{Limit: 1})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(namespace, obj.(*imagev1.ImageStreamTagList).Continue)
	}
	f.Add("team", "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6LTEsInN0YXJ0IjoiYS4uL2IvOi8uLiJ9")
	f.Fuzz(func(t *testing.T, namespace, token string) {
		if namespace != "" {
			namespace = "team"
		}
		obj, err := s.streamTags().List(inNamespace(namespace, "alice"), &internalversion.ListOptions{Limit: 5, Continue: token})
		if err != nil && !apierrors.IsBadRequest(err) {
			t.Fatal(err)
		}
		if err == nil && len(obj.(*imagev1.ImageStreamTagList).Items) > 2 {
			t.Fatal("a tag comes twice")
		}
	})
}

func TestStreamTagTable(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	tag := istag("app:v1", "ImageStreamTag/v2")
	tag.Image = imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digestOf(1)}, DockerImageReference: "a\x1b[31m"}
	table, err := s.streamTags().ConvertToTable(requestContext(), &imagev1.ImageStreamTagList{Items: []imagev1.ImageStreamTag{*tag}}, nil)
	if err != nil || len(table.Rows) != 1 || len(table.ColumnDefinitions) != 4 {
		t.Fatalf("%+v, %v", table, err)
	}
	if got := fmt.Sprintf("%q", table.Rows[0].Cells); strings.Contains(got, `\x1b`) || !strings.Contains(got, "app:v1") || !strings.Contains(got, digestOf(1)) {
		t.Errorf("row %s", got)
	}
}

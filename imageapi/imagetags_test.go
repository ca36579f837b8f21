package imageapi_test

import (
	"cmp"
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
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// tagStorages are imagetags, their status, and images, over one database.
type tagStorages struct {
	t      testing.TB
	tags   rest.StandardStorage
	status rest.Updater
	images rest.StandardStorage
	// streams and their status are those of the same database.
	streams      rest.StandardStorage
	streamStatus rest.Updater
	all          *imageapi.Storages
	asUser       string
	ref          reference.Reference
	seconds      int64
}

func newTagStorages(t testing.TB) *tagStorages {
	t.Helper()
	return newTagStoragesWith(t, nil)
}

func newTagStoragesWith(t testing.TB, may authorizer.UnconditionalAuthorizer) *tagStorages {
	t.Helper()
	return newTagStoragesOf(t, imageapi.Options{Authorizer: may})
}

func newTagStoragesOf(t testing.TB, options imageapi.Options) *tagStorages {
	t.Helper()
	options.Scheme = scheme
	options.Answerer.Policies = cmp.Or[answers.Policies](options.Answerer.Policies, holding{})
	m, err := imageapi.New(kubestore.NewGetter(dbtest.Open(t), codecs, kubestore.Options{Read: countRead}), options)
	if err != nil {
		t.Fatal(err)
	}
	s := &tagStorages{t: t, tags: m.Tags, status: m.TagStatus, images: m.Images, streams: m.Streams, streamStatus: m.StreamStatus, all: m, asUser: "alice",
		ref: reference.Reference{Host: "registry.example.com", Repository: "team/app", Tag: "v1"}}
	t.Cleanup(s.images.Destroy)
	t.Cleanup(s.tags.Destroy)
	t.Cleanup(s.streams.Destroy)
	return s
}

func (s *tagStorages) update(to rest.Updater, tag *imagev1.ImageTag) (*imagev1.ImageTag, error) {
	ctx := genericapirequest.WithUser(genericapirequest.WithNamespace(genericapirequest.NewContext(), tags.Namespace), &user.DefaultInfo{Name: s.asUser})
	obj, _, err := to.Update(ctx, tag.Name, rest.DefaultUpdatedObjectInfo(tag.DeepCopy()), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageTag), nil
}

// lead records where the tag leads, as an importer does.
func (s *tagStorages) lead(tag *imagev1.ImageTag, digest, cause string) *imagev1.ImageTag {
	s.t.Helper()
	s.seconds++
	tags.Lead(tag, s.ref, digest, metav1.NewTime(time.Unix(1700000000+s.seconds, 0).UTC()))
	if tag.Annotations == nil {
		tag.Annotations = map[string]string{}
	}
	tag.Annotations[tags.Cause] = cause
	out, err := s.update(s.status, tag)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *tagStorages) selected(of rest.Lister, selector string) (names []string) {
	s.t.Helper()
	parsed, err := fields.ParseSelector(selector)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx := genericapirequest.WithNamespace(genericapirequest.NewContext(), metav1.NamespaceAll)
	list, err := of.List(ctx, &internalversion.ListOptions{FieldSelector: parsed})
	if err != nil {
		s.t.Fatal(err)
	}
	switch list := list.(type) {
	case *imagev1.ImageTagList:
		for _, tag := range list.Items {
			names = append(names, tag.Name)
		}
	case *imagev1.ImageStreamList:
		for _, stream := range list.Items {
			names = append(names, stream.Name)
		}
	case *imagev1.ImageList:
		for _, image := range list.Items {
			names = append(names, image.Name)
		}
	}
	return names
}

func digestOf(n int) string { return fmt.Sprintf("sha256:%064x", n) }

// The first look at a tag makes it, the next ones add to its history; who looked and why is the
// server's word.
func TestTagHistoryIsKept(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	tag := tags.New(s.ref)
	tag.Annotations = map[string]string{tags.By: `["mallory"]`}
	tag = s.lead(tag, digestOf(1), "import")
	if tag.Generation != 1 || tag.Status.Items[0].Generation != 1 {
		t.Errorf("generation %d, of the item %d", tag.Generation, tag.Status.Items[0].Generation)
	}
	s.asUser = "system:server"
	tag.Annotations[tags.By] = `["mallory"]`
	tag = s.lead(tag, digestOf(2), "webhook local")
	tag = s.lead(tag, "", "sweep")
	if got, want := tag.Annotations[tags.By], `["system:server, sweep","system:server, webhook local","alice, import"]`; got != want {
		t.Errorf("it was written by %s, want %s", got, want)
	}
	for selector, want := range map[string]bool{
		"image=" + digestOf(2): false, "reference=registry.example.com/team/app:v1": true, "repository=registry.example.com/team/app": true, "repository=registry.example.com/team": false,
		"gone=true": true, "gone=": false, "image=": true, "named=App:V1": true, "named=ship": false,
	} {
		if got := s.selected(s.tags, selector); slices.Contains(got, tag.Name) != want {
			t.Errorf("%s selects %v", selector, got)
		}
	}
	s.lead(tag, digestOf(2), "import")
	for _, selector := range []string{"image=" + digestOf(2), "gone=", "gone!=true"} {
		if got := s.selected(s.tags, selector); !slices.Equal(got, []string{tag.Name}) {
			t.Errorf("once it leads to the image again, %s selects %v", selector, got)
		}
	}
}

// mayAccept lets one user accept moves of tags, and nobody anything else.
type mayAccept string

func (m mayAccept) Authorize(_ context.Context, what authorizer.Attributes) (authorizer.Decision, string, error) {
	if what.GetUser().GetName() == string(m) && what.GetVerb() == "accept" && what.GetResource() == "imagetags" && what.GetNamespace() == tags.Namespace {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// Whoever may write tags, as the role edit may, neither accepts a move nor makes the server forget
// where a tag must lead: not by deleting the tag, and not by saying it led elsewhere first.
func TestMovesAreAcceptedByRight(t *testing.T) {
	t.Parallel()
	s := newTagStoragesWith(t, mayAccept("ann"))
	tag := s.lead(tags.New(s.ref), digestOf(1), "import")
	tag = s.lead(tag, digestOf(2), "import")
	forget := func() error {
		ctx := genericapirequest.WithUser(genericapirequest.WithNamespace(genericapirequest.NewContext(), tags.Namespace), &user.DefaultInfo{Name: s.asUser})
		_, _, err := s.all.Tags.Delete(ctx, tag.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
		return err
	}
	accept := func() (*imagev1.ImageTag, error) {
		asked := tag.DeepCopy()
		metav1.SetMetaDataAnnotation(&asked.ObjectMeta, tags.Accept, digestOf(2))
		return s.update(s.tags, asked)
	}
	if _, err := accept(); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "alice may not accept moves of tags: ask for the role tidewaiter:tag-accepter in the namespace default") {
		t.Errorf("who may write tags accepts a move: %v", err)
	}
	if err := forget(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ask for the role tidewaiter:tag-accepter") {
		t.Errorf("who may write tags deletes one: %v", err)
	}
	forged := tag.DeepCopy()
	metav1.SetMetaDataAnnotation(&forged.ObjectMeta, tags.First, digestOf(2))
	if tag = s.lead(forged, digestOf(3), "import"); tags.Kept(tag) != digestOf(1) {
		t.Errorf("an importer says that the tag first led to %s", tags.Kept(tag))
	}
	tag = s.lead(tag, digestOf(2), "import")
	s.asUser = "ann"
	after, err := accept()
	if err != nil || tags.Kept(after) != digestOf(2) || tags.Acceptances(after)[0].By != "ann" {
		t.Errorf("who may accept it has the tag lead to %s: %v", tags.Kept(after), err)
	}
	if err := forget(); err != nil {
		t.Error(err)
	}
	// A tag that has led nowhere is nothing to forget.
	s.asUser = "alice"
	created, err := s.tags.Create(genericapirequest.WithNamespace(genericapirequest.NewContext(), tags.Namespace), tags.New(s.ref), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err == nil {
		tag, err = created.(*imagev1.ImageTag), forget()
	}
	if err != nil {
		t.Error(err)
	}
}

// A write that is based on what others have changed since is refused, also that of a tag that
// others have made since.
func TestLateTagWritesAreRefused(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	first := s.lead(tags.New(s.ref), digestOf(1), "import")
	s.lead(first.DeepCopy(), digestOf(2), "import")
	tags.Lead(first, s.ref, digestOf(3), metav1.Now())
	if _, err := s.update(s.status, first); !apierrors.IsConflict(err) {
		t.Errorf("a late write: %v", err)
	}
	made := tags.New(s.ref)
	tags.Lead(made, s.ref, digestOf(3), metav1.Now())
	if _, err := s.update(s.status, made); !apierrors.IsInvalid(err) && !apierrors.IsConflict(err) {
		t.Errorf("a late making: %v", err)
	}
}

// Users write what a tag follows, and not where that leads.
func TestUsersWriteNoTagStatus(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	tag := tags.New(s.ref)
	tags.Lead(tag, s.ref, digestOf(1), metav1.Now())
	ctx := genericapirequest.WithNamespace(genericapirequest.NewContext(), tags.Namespace)
	obj, err := s.tags.Create(ctx, tag.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made := obj.(*imagev1.ImageTag)
	if made.Status != nil || made.Generation != 1 || *made.Spec.Generation != 1 {
		t.Errorf("made is %+v", made)
	}
	made.Status = tag.Status
	made.Spec.ImportPolicy.Scheduled = true
	changed, err := s.update(s.tags, made)
	if err != nil {
		t.Fatal(err)
	}
	if changed.Status != nil || changed.Generation != 2 || *changed.Spec.Generation != 2 {
		t.Errorf("changed is %+v, generation %d", changed, *changed.Spec.Generation)
	}
	changed.Spec.From.Name = "registry.example.com/other:v1"
	changed.Status = &imagev1.NamedTagEventList{Tag: "v1"}
	tags.Lead(changed, s.ref, digestOf(1), metav1.Now())
	looked, err := s.update(s.status, changed)
	if err != nil {
		t.Fatal(err)
	}
	if ref, _ := tags.Reference(looked); ref != s.ref || looked.Generation != 2 || looked.Status.Items[0].Generation != 2 {
		t.Errorf("a write of the status changed the spec: %+v", looked)
	}
}

func TestInvalidTagsAreRefused(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	for name, change := range map[string]func(*imagev1.ImageTag){
		"no tag in the name":    func(tag *imagev1.ImageTag) { tag.Name = "app" },
		"no stream in the name": func(tag *imagev1.ImageTag) { tag.Name = ":v1" },
		"another tag":           func(tag *imagev1.ImageTag) { tag.Spec.Name = "v2" },
		"no spec":               func(tag *imagev1.ImageTag) { tag.Spec = nil },
		"follows nothing":       func(tag *imagev1.ImageTag) { tag.Spec.From = nil },
		"follows a stream": func(tag *imagev1.ImageTag) {
			tag.Spec.From = &corev1.ObjectReference{Kind: "ImageStreamTag", Name: "a:b"}
		},
		"follows a digest":    func(tag *imagev1.ImageTag) { tag.Spec.From.Name = "a.b/c@" + digestOf(1) },
		"the name of another": func(tag *imagev1.ImageTag) { tag.Spec.From.Name = "a.b/c:v1" },
		"another status' tag": func(tag *imagev1.ImageTag) { tag.Status.Tag = "v2" },
		"no digest":           func(tag *imagev1.ImageTag) { tag.Status.Items[0].Image = "latest" },
		"no reference":        func(tag *imagev1.ImageTag) { tag.Status.Items[0].DockerImageReference = "" },
		"no time":             func(tag *imagev1.ImageTag) { tag.Status.Items[0].Created = metav1.Time{} },
		"too long": func(tag *imagev1.ImageTag) {
			tag.Status.Items = slices.Repeat(tag.Status.Items, tags.MaxItems+1)
		},
	} {
		tag := tags.New(s.ref)
		tags.Lead(tag, s.ref, digestOf(1), metav1.Now())
		change(tag)
		if _, err := s.update(s.status, tag); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// references= says what now points at an image: also of an image with more tags than it shows, and
// not what a tag led to once. Where nobody has looked yet, what is recorded on images is the
// answer.
func TestReferencesSayWhereATagLeadsNow(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	create := func(n int, references ...string) string {
		image := plainImage()
		image.Name, image.Annotations = digestOf(n), map[string]string{annotation.References: `["` + strings.Join(references, `","`) + `"]`}
		if _, err := s.images.Create(requestContext(), image, rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		return image.Name
	}
	old, now := create(1, s.ref.String(), "registry.example.com/team/app:old"), create(2, "registry.example.com/team/app:other")
	selector := "references=" + s.ref.String()
	if got := s.selected(s.images, selector); !slices.Equal(got, []string{old}) {
		t.Errorf("before anybody has looked it selects %v", got)
	}
	tag := s.lead(tags.New(s.ref), now, "import")
	if got := s.selected(s.images, selector); !slices.Equal(got, []string{now}) {
		t.Errorf("it selects %v", got)
	}
	if got := s.selected(s.images, "references.recorded="+s.ref.String()); !slices.Equal(got, []string{old}) {
		t.Errorf("recorded it is on %v", got)
	}
	if got := s.selected(s.images, "references=registry.example.com/team/app"); !slices.Equal(got, []string{old, now}) {
		t.Errorf("the repository has %v", got)
	}
	s.lead(tag, "", "sweep")
	if got := s.selected(s.images, selector); len(got) != 0 {
		t.Errorf("after it was deleted it selects %v", got)
	}
}

// What kubectl shows of a tag: an unknown is one, with its reason.
func TestTagTable(t *testing.T) {
	t.Parallel()
	s := newTagStorages(t)
	row := func(tag *imagev1.ImageTag) []any {
		table, err := s.tags.(rest.TableConvertor).ConvertToTable(requestContext(), tag, nil)
		if err != nil {
			t.Fatal(err)
		}
		if table.Rows[0].Object.Object == nil || len(table.Rows[0].Cells) != len(table.ColumnDefinitions) {
			t.Fatalf("row %+v", table.Rows[0])
		}
		return table.Rows[0].Cells
	}
	tag := tags.New(s.ref)
	if got := row(tag); got[1] != "Unknown" || got[2] != "Unknown" || got[3] != "<none>" {
		t.Errorf("before anybody has looked: %v", got)
	}
	if got := row(tag)[4]; got != "never" {
		t.Errorf("never checked: %v", got)
	}
	tags.Lead(tag, s.ref, digestOf(1), metav1.NewTime(time.Now().Add(-3*time.Hour)))
	if got := row(tag)[4]; got != "ok, 3h ago" {
		t.Errorf("checked long ago: %v", got)
	}
	tags.Confirm(tag, time.Now().Add(-2*time.Hour), time.Now())
	if got := row(tag)[4]; got != "ok, 120m ago" {
		t.Errorf("confirmed since: %v", got)
	}
	tags.Lead(tag, s.ref, "", metav1.Now())
	if got := row(tag); got[1] != "<deleted>" || got[3] != "sha256:000000000000" || got[4] != "ok, 0s ago" || got[5] != "<none>" || got[6] != s.ref.String() {
		t.Errorf("deleted: %v", got)
	}
	tags.Fail(tag, "Unreachable", "no route", metav1.NewTime(time.Now().Add(-time.Hour)))
	if got := row(tag)[4]; got != "Unreachable for 60m, before: ok, 0s ago" {
		t.Errorf("unreachable: %v", got)
	}
}

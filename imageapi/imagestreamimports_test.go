package imageapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	configv1 "github.com/openshift/api/config/v1"
	"github.com/openshift/api/image/docker10"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// registryOfTests stands for an importer and the registries: it has the tags that it is given, each
// of the one image that there is, and after it a second one as an index has it.
type registryOfTests struct {
	s    *tagStorages
	tags []string
	// known tags that are not listed; those that are not among tags are gone
	unlisted []string
	wait     chan struct{} // closed when answers may come; nil for now
	came     chan struct{} // gets a value for each import that waits

	mu    sync.Mutex
	asked []string
}

func (r *registryOfTests) Import(_ context.Context, ref reference.Reference, dryRun bool) ([]*imagev1.Image, error) {
	if r.wait != nil {
		r.came <- struct{}{}
		<-r.wait
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked = append(r.asked, ref.String())
	if !slices.Contains(r.tags, ref.Tag) {
		return nil, apierrors.NewNotFound(imagev1.Resource("images"), ref.String())
	}
	image := ociImage(r.s.t)
	image.DockerImageReference = ref.String()
	if !dryRun {
		image.DockerImageReference = ref.Bare().WithDigest(image.Name).String()
		if _, err := r.s.images.Create(requestContext(), image.DeepCopy(), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
		r.s.knownAs(ref.Bare().String(), ref.Tag, image.Name)
	}
	return []*imagev1.Image{image, bareImage(r.s.t, "docker-schema2.json", "docker-config.json")}, nil
}

func (r *registryOfTests) Tags(context.Context, reference.Reference, int) (listed, unlisted []string, err error) {
	if len(r.tags) == 0 {
		return nil, nil, errors.New("no such repository")
	}
	return slices.DeleteFunc(slices.Clone(r.tags), func(tag string) bool { return slices.Contains(r.unlisted, tag) }), r.unlisted, nil
}

func newImports(t testing.TB, options imageapi.Options, tags ...string) (*tagStorages, *registryOfTests) {
	t.Helper()
	r := &registryOfTests{tags: tags}
	options.Importer = r
	r.s = newTagStoragesOf(t, options)
	return r.s, r
}

// importing is an import of references, each into the tag before it.
func importing(stream string, tagsAndReferences ...string) *imagev1.ImageStreamImport {
	out := &imagev1.ImageStreamImport{ObjectMeta: metav1.ObjectMeta{Name: stream, Namespace: "team"}, Spec: imagev1.ImageStreamImportSpec{Import: true}}
	for i := 0; i < len(tagsAndReferences); i += 2 {
		out.Spec.Images = append(out.Spec.Images, imagev1.ImageImportSpec{
			From: corev1.ObjectReference{Kind: "DockerImage", Name: tagsAndReferences[i+1]}, To: &corev1.LocalObjectReference{Name: tagsAndReferences[i]},
		})
	}
	return out
}

func (s *tagStorages) imported(asked *imagev1.ImageStreamImport) (*imagev1.ImageStreamImport, error) {
	asked = asked.DeepCopy()
	scheme.Default(asked)
	obj, err := s.all.Imports.Create(inNamespace("team", s.asUser), asked, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.ImageStreamImport), nil
}

// An import makes the stream and tags that follow what was imported. What fails is said of each, in
// the answer and in the stream, until it succeeds.
func TestImportsIntoStreams(t *testing.T) {
	t.Parallel()
	s, r := newImports(t, imageapi.Options{}, "v1")
	got, err := s.imported(importing("app", "prod", repository+":v1", "late", repository+":v2"))
	if err != nil {
		t.Fatal(err)
	}
	name := ociImage(t).Name
	one, two := got.Status.Images[0], got.Status.Images[1]
	if one.Status.Status != metav1.StatusSuccess || one.Tag != "prod" || one.Image == nil || one.Image.Name != name || one.Image.DockerImageReference != repository+"@"+name || one.Image.DockerImageManifest != "" || len(one.Manifests) != 0 {
		t.Errorf("imported as %+v", one)
	}
	if two.Status.Status != metav1.StatusFailure || two.Status.Code != 404 || two.Image != nil {
		t.Errorf("what is not there came to %+v", two)
	}
	stream := got.Status.Import
	if stream == nil || len(stream.Spec.Tags) != 2 || stream.Spec.Tags[0].From.Name != repository+":v1" || stream.Spec.Tags[0].ImportPolicy.ImportMode != imagev1.ImportModeLegacy || stream.Generation != 1 {
		t.Fatalf("the stream is %+v", stream)
	}
	tags := stream.Status.Tags
	if len(tags) != 2 || tags[0].Tag != "late" || len(tags[0].Items) != 0 || tags[0].Conditions[0].Type != imagev1.ImportSuccess || tags[0].Conditions[0].Status != corev1.ConditionFalse || tags[0].Conditions[0].Reason != "NotFound" || tags[1].Items[0].Image != name {
		t.Errorf("its tags are %+v", tags)
	}
	r.tags = append(r.tags, "v2")
	if got, err = s.imported(importing("app", "late", repository+":v2")); err != nil {
		t.Fatal(err)
	}
	if late := got.Status.Import.Status.Tags[0]; len(late.Items) != 1 || len(late.Conditions) != 0 || got.Status.Import.Generation != 1 {
		t.Errorf("once it is there, the tag is %+v of %+v", late, got.Status.Import.ObjectMeta)
	}
}

// An import that is to change nothing stores nothing, and shows manifests to who asks for them,
// with those of an index.
func TestImportThatOnlyLooks(t *testing.T) {
	t.Parallel()
	s, _ := newImports(t, imageapi.Options{}, "v1")
	asked := importing("app", "prod", repository+":v1")
	asked.Spec.Import, asked.Spec.Images[0].IncludeManifest, asked.Spec.Images[0].ImportPolicy.ImportMode = false, true, imagev1.ImportModePreserveOriginal
	got, err := s.imported(asked)
	if err != nil || got.Status.Import != nil || got.Status.Images[0].Image.DockerImageManifest == "" || len(got.Status.Images[0].Manifests) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, image := range []*imagev1.Image{got.Status.Images[0].Image, &got.Status.Images[0].Manifests[0]} {
		var config docker10.DockerImage
		if err := json.Unmarshal(image.DockerImageMetadata.Raw, &config); err != nil || config.Config == nil || config.Architecture == "" || len(image.DockerImageLayers) == 0 || image.DockerImageMetadataVersion != "1.0" {
			t.Errorf("of %s it says %s, %+v: %v", image.Name, image.DockerImageMetadata.Raw, image.DockerImageLayers, err)
		}
	}
	if _, err := s.streams.Get(inNamespace("team", "alice"), "app", &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the stream was made: %v", err)
	}
	if _, err := s.images.Get(requestContext(), ociImage(t).Name, &metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the image was stored: %v", err)
	}
}

// What oc new-app --list asks for is not an image, and does not stand in the way of what is; into a
// tag it cannot be imported.
func TestImportOfEverything(t *testing.T) {
	t.Parallel()
	s, r := newImports(t, imageapi.Options{Authorizer: follower{follows: true}, AllowedRegistries: []configv1.RegistryLocation{{DomainName: "registry.example.com"}}}, "v1")
	asked := importing("newapp", "", "*", "", repository+":v1")
	asked.Spec.Import, asked.Spec.Images[0].To, asked.Spec.Images[1].To = false, nil, nil
	got, err := s.imported(asked)
	if err != nil {
		t.Fatal(err)
	}
	if all, one := got.Status.Images[0], got.Status.Images[1]; all.Status.Status != metav1.StatusFailure || all.Status.Reason != metav1.StatusReasonInvalid || all.Image != nil || one.Image == nil {
		t.Errorf("everything came to %+v, and an image to %+v", all, one)
	}
	if _, err := s.imported(importing("app", "all", "*")); !apierrors.IsInvalid(err) {
		t.Errorf("into a tag: %v", err)
	}
	if !slices.Equal(r.asked, []string{repository + ":v1"}) {
		t.Errorf("registries were asked for %v", r.asked)
	}
}

// Of a repository as many tags are imported as of a list of images, and the others are named.
func TestImportOfARepository(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 60 {
		names = append(names, fmt.Sprint("v", i))
	}
	s, r := newImports(t, imageapi.Options{}, names...)
	asked := importing("app")
	asked.Spec.Repository = &imagev1.RepositoryImportSpec{From: corev1.ObjectReference{Kind: "DockerImage", Name: repository}}
	got, err := s.imported(asked)
	if err != nil {
		t.Fatal(err)
	}
	of := got.Status.Repository
	if of.Status.Status != metav1.StatusSuccess || len(of.Images) != 50 || of.Images[0].Tag != "v0" || of.Images[0].Image == nil || !slices.Equal(of.AdditionalTags, names[50:]) || len(got.Status.Import.Spec.Tags) != 50 {
		t.Errorf("of the repository came %+v and %d tags", of.Status, len(of.Images))
	}
	r.tags = nil
	if got, err = s.imported(asked); err != nil || got.Status.Repository.Status.Status != metav1.StatusFailure || len(got.Status.Import.Spec.Tags) != 50 {
		t.Errorf("of one that is not there: %+v, %v", got, err)
	}
}

// A repository may have a known tag that its list lacks: it is imported with the others. If it is
// gone, that is no failure.
func TestImportOfARepositoryAsksForWhatItsListLacks(t *testing.T) {
	t.Parallel()
	s, r := newImports(t, imageapi.Options{}, "v1", "v2")
	r.unlisted = []string{"v2", "v3"}
	asked := importing("app")
	asked.Spec.Repository = &imagev1.RepositoryImportSpec{From: corev1.ObjectReference{Kind: "DockerImage", Name: repository}}
	got, err := s.imported(asked)
	if err != nil {
		t.Fatal(err)
	}
	images := got.Status.Repository.Images
	if len(images) != 2 || images[0].Tag != "v1" || images[1].Tag != "v2" || images[1].Image == nil || len(got.Status.Import.Spec.Tags) != 2 {
		t.Errorf("of the repository came %+v", images)
	}
	if !slices.Contains(r.asked, repository+":v3") {
		t.Errorf("the registry was asked for %v", r.asked)
	}
}

// oc import-image --all of a stream of the registry whose image API this is imports what the
// stream's tags follow elsewhere: what that registry has it tells of itself.
func TestImportOfAllThatAStreamFollows(t *testing.T) {
	t.Parallel()
	own := ownRegistry + "/team/app"
	s, r := newImports(t, imageapi.Options{Registry: ownRegistry, Authorizer: follower{follows: true}, AllowedRegistries: []configv1.RegistryLocation{{DomainName: "registry.example.com"}}}, "v1")
	all := func(stream string) *imagev1.ImageStreamImport {
		asked := importing(stream)
		asked.Spec.Repository = &imagev1.RepositoryImportSpec{From: corev1.ObjectReference{Kind: "DockerImage", Name: ownRegistry + "/team/" + stream}}
		return asked
	}
	s.mustCreateStream(stream("app", "", "v1", "DockerImage/"+repository+":v1", "gone", "DockerImage/"+repository+":gone", "self", "DockerImage/"+own+":self", "same", "ImageStreamTag/v1"))
	got, err := s.imported(all("app"))
	if err != nil {
		t.Fatal(err)
	}
	of := got.Status.Repository
	if of.Status.Status != metav1.StatusSuccess || len(of.Images) != 2 || of.Images[0].Tag != "v1" || of.Images[0].Image == nil || of.Images[1].Tag != "gone" || of.Images[1].Status.Code != 404 {
		t.Errorf("of what the stream follows came %+v", of)
	}
	if tags := got.Status.Import.Spec.Tags; len(tags) != 4 || tags[0].From.Name != repository+":v1" || tags[2].From.Name != own+":self" {
		t.Errorf("its tags follow %+v", tags)
	}
	if slices.Sort(r.asked); !slices.Equal(r.asked, []string{repository + ":gone", repository + ":v1"}) {
		t.Errorf("registries were asked for %v", r.asked)
	}
	r.asked = nil
	s.mustCreateStream(stream("pushed", "", "self", "DockerImage/"+ownRegistry+"/team/pushed:self"))
	s.mustCreateStream(stream("hidden", "", "v1", "DockerImage/169.254.169.254/app:v1"))
	for name, want := range map[string]string{"pushed": "no tag of the stream follows another registry", "hidden": "may not be imported"} {
		if _, err := s.imported(all(name)); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), want) || len(r.asked) > 0 {
			t.Errorf("%s: %v, and registries were asked for %v", name, err, r.asked)
		}
	}
}

// follower may follow what is of repositories in default and create images if it says so.
type follower struct{ creates, follows bool }

func (f follower) Authorize(_ context.Context, what authorizer.Attributes) (authorizer.Decision, string, error) {
	if what.GetResource() == "images" && !f.creates || what.GetResource() == "imagestreams" && !f.follows {
		return authorizer.DecisionDeny, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// Nobody has the server ask a registry that is not allowed, or show with its credentials what he
// may not see; of no image of such an import anybody is asked.
func TestAttackImportSteersTheServer(t *testing.T) {
	t.Parallel()
	allowed := []configv1.RegistryLocation{{DomainName: "registry.example.com"}, {DomainName: "*.example.org:5000"}, {DomainName: "plain.example.com", Insecure: true}}
	for name, c := range map[string]struct {
		who      follower
		from     string
		insecure bool
		want     string
	}{
		"allowed":             {follower{follows: true}, repository + ":v1", false, ""},
		"by an asterisk":      {follower{follows: true}, "a.example.org:5000/app:v1", false, ""},
		"over plain HTTP":     {follower{follows: true}, "plain.example.com/app:v1", true, ""},
		"another protocol":    {follower{follows: true}, "plain.example.com/app:v1", false, "may not be imported"},
		"another port":        {follower{follows: true}, "registry.example.com:8443/app:v1", false, "may not be imported"},
		"another host":        {follower{follows: true}, "registry.example.com.evil.example:443/app:v1", false, "may not be imported"},
		"loopback":            {follower{follows: true}, "127.0.0.1:2379/app:v1", false, "may not be imported"},
		"who creates images":  {follower{follows: true, creates: true}, "127.0.0.1:2379/app:v1", false, ""},
		"who may not follow":  {follower{creates: true}, repository + ":v1", false, "may not get imagestreams/layers"},
		"a part is forbidden": {follower{follows: true}, repository + ":v1 169.254.169.254/app:v1", false, "may not be imported"},
	} {
		s, r := newImports(t, imageapi.Options{Authorizer: c.who, AllowedRegistries: allowed}, "v1")
		asked := importing("app")
		for i, from := range strings.Fields(c.from) {
			asked.Spec.Images = append(asked.Spec.Images, importing("", fmt.Sprint("t", i), from).Spec.Images...)
			asked.Spec.Images[i].ImportPolicy.Insecure = c.insecure
		}
		_, err := s.imported(asked)
		if c.want == "" && err != nil || c.want != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if asked := len(r.asked) > 0; asked != (c.want == "") {
			t.Errorf("%s: the registries were asked for %v", name, r.asked)
		}
	}
}

// Imports that are wrong in themselves are refused.
func TestImportsThatAreRefused(t *testing.T) {
	t.Parallel()
	s, r := newImports(t, imageapi.Options{}, "v1")
	many := importing("app")
	for i := range 51 {
		many.Spec.Images = append(many.Spec.Images, importing("", fmt.Sprint("t", i), repository+":v1").Spec.Images...)
	}
	kind, tagged := importing("app", "t", repository+":v1"), importing("app")
	kind.Spec.Images[0].From.Kind = "ImageStreamTag"
	tagged.Spec.Repository = &imagev1.RepositoryImportSpec{From: corev1.ObjectReference{Kind: "DockerImage", Name: repository + ":v1"}}
	for name, c := range map[string]struct {
		asked *imagev1.ImageStreamImport
		want  string
	}{
		"nothing":          {importing("app"), "at least one image"},
		"no reference":     {importing("app", "t", "A/:"), "spec.images[0].from.name"},
		"no tag":           {importing("app", "a b", repository+":v1"), "must be a tag"},
		"a tag twice":      {importing("app", "t", repository+":v1", "t", repository+":v2"), "Duplicate"},
		"no name":          {importing("A!", "t", repository+":v1"), "metadata.name"},
		"too many":         {many, "must have at most 50 items"},
		"another kind":     {kind, "supported values: \"DockerImage\""},
		"a repository tag": {tagged, "spec.repository.from.name"},
	} {
		if _, err := s.imported(c.asked); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(r.asked) > 0 {
		t.Errorf("registries were asked for %v", r.asked)
	}
	stale := importing("app", "t", repository+":v1")
	stale.ResourceVersion = "1"
	if _, err := s.imported(stale); !apierrors.IsNotFound(err) {
		t.Errorf("into a version of no stream: %v", err)
	}
	s.mustCreateStream(stream("app", ""))
	if _, err := s.imported(stale); !apierrors.IsConflict(err) {
		t.Errorf("into an old version: %v", err)
	}
	none := newTagStorages(t)
	if _, err := none.imported(importing("app", "t", repository+":v1")); !apierrors.IsBadRequest(err) {
		t.Errorf("without an importer: %v", err)
	}
}

// Registries that do not answer hold four imports of a user. Those of other users go on.
func TestAttackImportsThatHang(t *testing.T) {
	t.Parallel()
	s, r := newImports(t, imageapi.Options{}, "v1")
	r.wait, r.came = make(chan struct{}), make(chan struct{}, 100)
	const n, ofUser = 20, 4
	begin := func(s *tagStorages, n int) chan error {
		results := make(chan error, n)
		for range n {
			go func() {
				looks := importing("app", "t", repository+":v1")
				looks.Spec.Import = false
				_, err := s.imported(looks)
				results <- err
			}()
		}
		return results
	}
	hostile := begin(s, n)
	for range ofUser {
		<-r.came
	}
	honest := *s
	honest.asUser = "somebody else"
	others := begin(&honest, 3)
	for range n - ofUser {
		if err := <-hostile; !apierrors.IsTooManyRequests(err) {
			t.Errorf("beyond four: %v", err)
		}
	}
	for range 3 {
		<-r.came
	}
	close(r.wait)
	for range ofUser {
		if err := <-hostile; err != nil {
			t.Errorf("of the four: %v", err)
		}
	}
	for range 3 {
		if err := <-others; err != nil {
			t.Errorf("of another user: %v", err)
		}
	}
}

package imageapi_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/imageapi"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// stranger judges an image that is in a repository of others as well.
type stranger struct{}

func (stranger) Current(context.Context) error { return nil }

func (stranger) Verify(_ context.Context, image *imagev1.Image, _ func(string) ([]*imagev1.Image, error)) bool {
	verdict := func(keys ...string) string {
		all := map[string]annotation.Verdict{}
		for _, key := range keys {
			by := "release"
			if strings.Contains(key, "acquisition") {
				by = "acquisition-only"
			}
			all[key] = annotation.Verdict{Verified: "True", Policy: by, Message: "signed by " + by, Signers: []string{by}}
		}
		b, _ := json.Marshal(all) // strings always marshal
		return string(b)
	}
	const others = "registry.example.com/acquisition/project-zeus"
	image.Annotations[annotation.Verdicts] = verdict(repository, repository+":v1", others, others+":v9-unreleased", annotation.NotJudged)
	image.Annotations[annotation.NamespaceVerdicts] = verdict(repository+"#team", repository+"#acquisition", others+"#team")
	image.Annotations[annotation.Policy] = "release@1,acquisition-only@1"
	image.Annotations[annotation.NamespacePolicy] = "acquisition/acquisition-only@1"
	image.Annotations[annotation.Recheck] = "2026-01-02T03:04:05Z"
	for i := range image.Signatures {
		s := &image.Signatures[i]
		s.ImageIdentity = others + ":v9-unreleased"
		s.Conditions = []imagev1.SignatureCondition{{Type: "Trusted", Status: "True", Message: "signed by acquisition-only"}, {Type: "ForImage", Status: "True"}}
		s.IssuedTo = &imagev1.SignatureSubject{SignatureGenericEntity: imagev1.SignatureGenericEntity{CommonName: "acquisition-only"}}
		if strings.HasSuffix(s.Name, "@own") {
			s.ImageIdentity, s.Conditions[0].Message, s.IssuedTo = repository+":v1", "signed by release", nil
		}
	}
	return true
}

// holder imports one image, which is stored.
type holder struct{ image *imagev1.Image }

func (h *holder) Import(context.Context, reference.Reference, bool) ([]*imagev1.Image, error) {
	return []*imagev1.Image{h.image, h.image}, nil
}

func (*holder) Tags(context.Context, reference.Reference, int) (listed, unlisted []string, err error) {
	return nil, nil, nil
}

// An image that is in a repository of others as well is shown through a stream as what it is in the
// stream's repository, to the stream's namespace: no reference, signature, verdict or policy of
// others is told.
func TestAttackImageOfAStreamTellsOfOthers(t *testing.T) {
	t.Parallel()
	by := &holder{}
	mayRead := false
	s := newTagStoragesOf(t, imageapi.Options{Authorizer: imageReader{may: &mayRead}, Images: imageregistry.Options{Verifier: stranger{}}, Importer: by})
	image := ociImage(t)
	image.DockerImageReference = "registry.example.com/acquisition/project-zeus@" + image.Name
	zeus, err := reference.Parse("registry.example.com/acquisition/project-zeus:v9-unreleased")
	if err != nil {
		t.Fatal(err)
	}
	for _, half := range []string{"own", "both", "acquisition", "client"} {
		image.Signatures = append(image.Signatures, signature(image.Name, half, "atomic", "by "+half))
	}
	image.Annotations = map[string]string{"team.example.com/note": "kept"}
	annotation.SetKnown(image.Annotations, []reference.Reference{zeus, s.ref})
	annotation.SetMissing(image.Annotations, map[reference.Reference]string{zeus.Bare().WithTag("v8-acquisition"): "2026-01-02T03:04:05Z", s.ref.Bare().WithTag("old"): "2026-01-02T03:04:05Z"})
	annotation.SetFound(image.Annotations, map[string]annotation.Repository{
		repository:           {Signatures: []string{"own", "both"}, Warnings: []string{"of the own repository"}},
		zeus.Bare().String(): {Signatures: []string{"acquisition", "both"}, Warnings: []string{"of acquisition"}},
	})
	obj, err := s.images.Create(requestContext(), image, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	by.image = obj.(*imagev1.Image)
	if b, _ := json.Marshal(by.image); strings.Count(string(b), "acquisition") < 20 {
		t.Fatalf("the image itself does not tell of others: %s", b)
	}
	if _, _, err := s.put(istag("app:v1", "DockerImage/"+repository+"@"+image.Name)); err != nil {
		t.Fatal(err)
	}
	answers := map[string]*imagev1.Image{}
	tag, err := s.streamTag("team", "app:v1")
	if err != nil {
		t.Fatal(err)
	}
	answers["istag"] = &tag.Image
	obj, err = s.all.Tags.Get(inNamespace("team", s.asUser), "app:v1", &metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	answers["imagetag"] = obj.(*imagev1.ImageTag).Image
	member, err := s.streamImage("app@" + image.Name)
	if err != nil {
		t.Fatal(err)
	}
	answers["isimage"] = &member.Image
	asked := importing("new", "v1", s.ref.String())
	asked.Spec.Images[0].ImportPolicy.ImportMode = imagev1.ImportModePreserveOriginal
	imported, err := s.imported(asked)
	if err != nil {
		t.Fatal(err)
	}
	answers["import"], answers["platform of an import"] = imported.Status.Images[0].Image, &imported.Status.Images[0].Manifests[0]
	for what, shown := range answers {
		b, err := json.Marshal(shown)
		if err != nil {
			t.Fatal(err)
		}
		if at := strings.Index(string(b), "acquisition"); at >= 0 {
			t.Errorf("%s tells of others: %s", what, b[max(0, at-60):min(len(b), at+60)])
		}
		var names []string
		for _, one := range shown.Signatures {
			_, half, _ := strings.Cut(one.Name, "@")
			names = append(names, half)
		}
		if strings.Join(names, " ") != "own both" || shown.Signatures[0].ImageIdentity != repository+":v1" || len(shown.Signatures[0].Conditions) != 2 || len(shown.Signatures[1].Conditions) != 0 {
			t.Errorf("%s has the signatures %+v", what, shown.Signatures)
		}
		a := shown.Annotations
		if known := annotation.Known(a); len(known) != 1 || known[0] != s.ref || len(annotation.Missing(a)) != 1 || len(annotation.Found(a)) != 1 || a["team.example.com/note"] != "kept" ||
			len(annotation.Judged(a)) != 3 || len(annotation.JudgedInNamespaces(a)) != 1 || annotation.Judged(a)[repository].Policy != "release" {
			t.Errorf("%s has the annotations %v", what, a)
		}
	}

	// OpenShift's registry may read Images. It gives out the signatures that were written through it,
	// in each repository that has the image: GET /extensions/v2/NAME/signatures/DIGEST.
	mayRead = true
	member, err = s.streamImage("app@" + image.Name)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, one := range member.Image.Signatures {
		_, half, _ := strings.Cut(one.Name, "@")
		names = append(names, half)
		if half == "client" && (string(one.Content) != "by client" || one.ImageIdentity != "" || len(one.Conditions) != 0) {
			t.Errorf("a client's signature is %+v", one)
		}
	}
	if strings.Join(names, " ") != "own both client" {
		t.Errorf("who may read Images gets the signatures %v", names)
	}
}

// imageReader may get images if it says so, and do all else.
type imageReader struct{ may *bool }

func (r imageReader) Authorize(_ context.Context, what authorizer.Attributes) (authorizer.Decision, string, error) {
	if what.GetResource() == "images" && what.GetVerb() == "get" && !*r.may {
		return authorizer.DecisionDeny, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

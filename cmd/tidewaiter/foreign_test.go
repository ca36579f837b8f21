package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"
	imagev1 "github.com/openshift/api/image/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// namesDigest answers each HEAD for a manifest with a digest.
func namesDigest(digest, mediaType string) registrytest.Fault {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if req.Method != http.MethodHead {
				next.ServeHTTP(w, req)
				return
			}
			w.Header().Set("Content-Type", mediaType)
			w.Header().Set("Docker-Content-Digest", digest)
		})
	}
}

// streamUser is somebody with rights in one namespace.
type streamUser struct {
	t         *testing.T
	client    restclient.Interface
	namespace string
}

// get returns the answer to a path of the namespace as text, also of an error.
func (u streamUser) get(path string) string {
	u.t.Helper()
	body, _ := u.client.Get().AbsPath("/apis/image.openshift.io/v1/namespaces/" + u.namespace + "/" + path).DoRaw(u.t.Context())
	return string(body)
}

// importInto asks for an import into a stream and returns the answer as text.
func (u streamUser) importInto(stream string, spec imagev1.ImageStreamImportSpec) string {
	u.t.Helper()
	spec.Import = true
	body, err := json.Marshal(&imagev1.ImageStreamImport{
		TypeMeta: metav1.TypeMeta{APIVersion: "image.openshift.io/v1", Kind: "ImageStreamImport"}, ObjectMeta: metav1.ObjectMeta{Name: stream}, Spec: spec,
	})
	if err != nil {
		u.t.Fatal(err)
	}
	answer, err := u.client.Post().AbsPath("/apis/image.openshift.io/v1/namespaces/"+u.namespace+"/imagestreamimports").SetHeader("Content-Type", "application/json").Body(body).DoRaw(u.t.Context())
	if err != nil {
		u.t.Fatalf("%v: %s", err, answer)
	}
	return string(answer)
}

// shown is all that a stream's user can read through it of an image.
func (u streamUser) shown(stream, digest string) map[string]string {
	u.t.Helper()
	all := map[string]string{}
	for _, path := range []string{
		"imagestreams", "imagestreams/" + stream, "imagestreams/" + stream + "/layers", "imagestreamimages/" + stream + "@" + digest,
		"imagestreamtags", "imagestreamtags/" + stream + ":v1", "imagetags", "imagetags/" + stream + ":v1",
	} {
		all[path] = u.get(path)
	}
	return all
}

// Whoever knows the digest of an image of others learns nothing of it from a registry of their own
// that names the digest and serves no byte: not from the import's answer, and not from what a
// stream shows afterwards.
func TestAttackStreamOfAForeignDigest(t *testing.T) {
	t.Parallel()
	private, evil, admin := registrytest.New(t), registrytest.New(t), serve(t)
	images, err := imageclient.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	const config = `{"os":"linux","architecture":"s390x","author":"acquirer","config":{"Env":["PASSWORD=hunter2"],"Labels":{"project":"zeus"},"Cmd":["/bin/zeus"]},"rootfs":{"type":"layers","diff_ids":[]}}`
	digest := pushed(t, private, "acquisition/secret:v9", config, nil)
	importInto(t, images, nil, private.Host+"/acquisition/secret:v9")
	image, err := images.Get(t.Context(), digest, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	raw := image.DockerImageManifest
	secrets := []string{"hunter2", "zeus", "acquirer", "s390x", private.Host, "acquisition", manifest.Digest([]byte(config)), manifest.Digest([]byte("a layer"))}
	reveals := func(answer string) (all []string) {
		for _, secret := range secrets {
			if strings.Contains(answer, secret) {
				all = append(all, secret)
			}
		}
		return all
	}

	// mallory has a namespace, and may import from the repositories below evil/ of a registry.
	administrator := newClientset(t, admin)
	bind(t, administrator, "mallory", "registry-editor", "evil")
	client := progressClient(t, as(admin, "mallory"))
	mallory := streamUser{t, client, "evil"}
	if answer, err := client.Get().AbsPath("/apis/image.openshift.io/v1/images/" + digest).DoRaw(t.Context()); err == nil || len(reveals(string(answer))) > 0 {
		t.Fatalf("mallory may read images: %v, %s", err, answer)
	}
	one := func(reference string) imagev1.ImageStreamImportSpec {
		return imagev1.ImageStreamImportSpec{Images: []imagev1.ImageImportSpec{{
			From: corev1.ObjectReference{Kind: "DockerImage", Name: reference}, To: &corev1.LocalObjectReference{Name: "v1"}, IncludeManifest: true,
			ImportPolicy: imagev1.TagImportPolicy{ImportMode: imagev1.ImportModePreserveOriginal},
		}}}
	}
	entry := func(digest, raw string) string {
		return fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":%d}`, types.OCIManifestSchema1, digest, len(raw))
	}
	anIndex := func(repository string, entries ...string) {
		list := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[%s]}`, types.OCIImageIndex, strings.Join(entries, ","))
		evil.PushManifest(repository+":v1", string(types.OCIImageIndex), manifest.Digest(list), list)
	}
	attacks := map[string]func(repository string) imagev1.ImageStreamImportSpec{
		"tag": func(repository string) imagev1.ImageStreamImportSpec {
			evil.Inject(repository+"/manifests/", 0, namesDigest(digest, string(types.OCIManifestSchema1)))
			return one(evil.Host + "/" + repository + ":v1")
		},
		"digest": func(repository string) imagev1.ImageStreamImportSpec {
			evil.Inject(repository+"/manifests/", 0, namesDigest(digest, string(types.OCIManifestSchema1)))
			return one(evil.Host + "/" + repository + "@" + digest)
		},
		"repository": func(repository string) imagev1.ImageStreamImportSpec {
			pushed(t, evil, repository+":v1", `{"os":"linux","architecture":"amd64"}`, nil)
			evil.Inject(repository+"/manifests/", 0, namesDigest(digest, string(types.OCIManifestSchema1)))
			return imagev1.ImageStreamImportSpec{Repository: &imagev1.RepositoryImportSpec{
				From: corev1.ObjectReference{Kind: "DockerImage", Name: evil.Host + "/" + repository}, IncludeManifest: true,
			}}
		},
		"index": func(repository string) imagev1.ImageStreamImportSpec {
			anIndex(repository, entry(digest, raw))
			evil.Inject("HEAD .*"+repository+"/manifests/"+digest, 0, namesDigest(digest, string(types.OCIManifestSchema1)))
			return one(evil.Host + "/" + repository + ":v1")
		},
		"index-with-an-image-of-its-own": func(repository string) imagev1.ImageStreamImportSpec {
			own := `{"schemaVersion":2}`
			anIndex(repository, entry(pushed(t, evil, repository+":own", `{"os":"linux","architecture":"amd64"}`, func(raw string) string {
				own = strings.Replace(raw, manifest.Digest([]byte("a layer")), manifest.Digest([]byte("own layer")), 1)
				return own
			}), own), entry(digest, raw))
			evil.Inject("HEAD .*"+repository+"/manifests/"+digest, 0, namesDigest(digest, string(types.OCIManifestSchema1)))
			return one(evil.Host + "/" + repository + ":v1")
		},
	}
	names := []string{"honest"}
	for stream := range attacks {
		names = append(names, stream)
	}
	for i, name := range names {
		names[i] = tags.Stream(reference.Reference{Host: evil.Host, Repository: "evil/" + name})
	}
	if _, err := administrator.RbacV1().Roles("default").Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "evil"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"image.openshift.io"}, Resources: []string{"imagestreams/layers"}, ResourceNames: names, Verbs: []string{"get"}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := administrator.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "evil"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "evil"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "mallory"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	soon(t, "mallory may follow the repositories", func() bool {
		review, err := administrator.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "mallory", ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: "default", Group: "image.openshift.io", Resource: "imagestreams", Subresource: "layers", Name: names[0], Verb: "get"},
		}}, metav1.CreateOptions{})
		return err == nil && review.Status.Allowed
	})
	for stream, attack := range attacks {
		t.Run(stream, func(t *testing.T) {
			mallory := mallory
			mallory.t = t
			spec := attack("evil/" + stream)
			for range 2 {
				if answer := mallory.importInto(stream, spec); len(reveals(answer)) > 0 {
					t.Errorf("the answer shows %q:\n%s", reveals(answer), answer)
				}
				for path, answer := range mallory.shown(stream, digest) {
					if all := reveals(answer); len(all) > 0 {
						t.Errorf("%s shows %q:\n%s", path, all, answer)
					}
				}
			}
		})
	}

	// What the test looks for is there if a registry has all bytes.
	pushed(t, evil, "evil/honest:v1", config, nil)
	mallory.importInto("honest", one(evil.Host+"/evil/honest:v1"))
	answers := mallory.shown("honest", digest)
	for path, least := range map[string]int{"imagestreams/honest/layers": 2, "imagestreamimages/honest@" + digest: 5, "imagestreamtags/honest:v1": 5} {
		if all := reveals(answers[path]); len(all) < least {
			t.Errorf("%s of a registry that has the image shows but %q:\n%s", path, all, answers[path])
		}
	}
	for path, answer := range answers {
		if strings.Contains(answer, private.Host) || strings.Contains(answer, "acquisition") {
			t.Errorf("%s names the private repository:\n%s", path, answer)
		}
	}
}

// An image whose signatures the registry refuses to show is imported into its stream.
func TestStreamImportWhoseSignaturesAreRefused(t *testing.T) {
	t.Parallel()
	registry, admin := registrytest.New(t), serve(t)
	digest := pushed(t, registry, "team/app:v1", `{"os":"linux","architecture":"amd64"}`, nil)
	registry.Inject("/referrers/|sha256-", 0, registrytest.Status(http.StatusTooManyRequests, "TOOMANYREQUESTS"))
	user := streamUser{t, progressClient(t, admin), "team"}
	answer := user.importInto("app", imagev1.ImageStreamImportSpec{Images: []imagev1.ImageImportSpec{{
		From: corev1.ObjectReference{Kind: "DockerImage", Name: registry.Host + "/team/app:v1"}, To: &corev1.LocalObjectReference{Name: "v1"},
	}}})
	if !strings.Contains(answer, `"status":"Success"`) || !strings.Contains(answer, digest) {
		t.Errorf("it is not imported: %s", answer)
	}
	images, err := imageclient.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	image, err := images.Get(t.Context(), digest, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range annotation.Found(image.Annotations) {
		if !strings.Contains(found.Unread, "TOOMANYREQUESTS") {
			t.Errorf("its signatures are not unknown: %+v", found)
		}
	}
}

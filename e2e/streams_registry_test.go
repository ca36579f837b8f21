package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
)

// streamRegistry is what the registry of TestRegistryOfStreams calls itself.
const streamRegistry = "image-registry.e2e:5000"

// streamCaller sends the requests of one user of TestRegistryOfStreams.
type streamCaller struct {
	*rest.RESTClient
}

// send returns the status code and the body of the answer, as JSON.
func (c streamCaller) send(t testing.TB, verb, path string, query url.Values, body any) (int, map[string]any) {
	t.Helper()
	request := c.Verb(verb).AbsPath("/apis/image.openshift.io/v1/" + path).MaxRetries(0)
	for key := range query {
		request.Param(key, query.Get(key))
	}
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		request.Body(text)
	}
	var code int
	text, err := request.Do(t.Context()).StatusCode(&code).Raw()
	answer := map[string]any{}
	if json.Unmarshal(text, &answer) != nil {
		t.Fatalf("%s %s: %d %v: %s", verb, path, code, err, text)
	}
	return code, answer
}

// must is send of what is answered with a code.
func (c streamCaller) must(t testing.TB, code int, verb, path string, query url.Values, body any) map[string]any {
	t.Helper()
	got, answer := c.send(t, verb, path, query, body)
	if got != code {
		t.Fatalf("%s %s: %d, want %d: %v", verb, path, got, code, answer)
	}
	return answer
}

// at is a value in JSON; nil if there is none.
func at(value any, path ...string) any {
	for _, key := range path {
		m, _ := value.(map[string]any)
		value = m[key]
	}
	return value
}

// pushedImage is the Image that OpenShift's registry makes of an image that was pushed to a repository of it.
func pushedImage(t testing.TB, repository string, image v1.Image) map[string]any {
	t.Helper()
	manifest, err := image.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	config, err := image.RawConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	mediaType, err := image.MediaType()
	if err != nil {
		t.Fatal(err)
	}
	digest := images.Digest(t, image).String()
	return map[string]any{
		"metadata": map[string]any{"name": digest, "annotations": map[string]any{
			"openshift.io/image.managed": "true", "image.openshift.io/manifestBlobStored": "true", "image.openshift.io/dockerLayersOrder": "ascending",
		}},
		"dockerImageReference": streamRegistry + "/" + repository + "@" + digest,
		"dockerImageManifest":  string(manifest), "dockerImageManifestMediaType": string(mediaType), "dockerImageConfig": string(config),
	}
}

func mapping(t testing.TB, stream, tag string, image v1.Image) map[string]any {
	t.Helper()
	return map[string]any{"kind": "ImageStreamMapping", "apiVersion": "image.openshift.io/v1",
		"metadata": map[string]any{"namespace": "team", "name": stream}, "image": pushedImage(t, "team/"+stream, image), "tag": tag}
}

// The requests that OpenShift's registry sends when somebody logs in, pushes, pulls, signs and lists, recorded from
// image-registry: with its own credential, and with that of the user where it does so.
func TestRegistryOfStreams(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	if err := os.WriteFile(config, []byte("streams: {registry: "+streamRegistry+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := harness.StartServer(t, "--config", config)
	s.Kubectl(t, "create", "namespace", "team")
	s.Kubectl(t, "create", "clusterrolebinding", "registry", "--clusterrole=tidewaiter:registry", "--user=registry")
	s.Kubectl(t, "create", "rolebinding", "alice", "-n", "team", "--clusterrole=edit", "--user=alice")
	s.Kubectl(t, "create", "clusterrolebinding", "signer", "--clusterrole=system:image-signer", "--user=signer")
	user := func(name string) streamCaller { return streamCaller{restClient(t, as(s.Config(t), name))} }
	registry, alice := user("registry"), user("alice")
	imgs := images.Numbered(t, 14)
	digest := func(i int) string { return images.Digest(t, imgs[i]).String() }
	harness.Eventually(t, func() error {
		if code, answer := registry.send(t, "GET", "namespaces/team/imagestreams", nil, nil); code != http.StatusOK {
			return fmt.Errorf("the registry may not list streams yet: %v", answer)
		}
		if code, answer := alice.send(t, "GET", "namespaces/team/imagestreams", nil, nil); code != http.StatusOK {
			return fmt.Errorf("alice may not list streams yet: %v", answer)
		}
		return nil
	})

	t.Run("login", func(t *testing.T) { logsIn(t, as(s.Config(t), "alice")) })

	registry.must(t, http.StatusNotFound, "GET", "namespaces/team/imagestreams/app", nil, nil)
	first := mapping(t, "app", "v1", imgs[0])
	missing := registry.must(t, http.StatusNotFound, "POST", "namespaces/team/imagestreammappings", nil, first)
	if at(missing, "details", "kind") != "imagestreammappings" || at(missing, "details", "name") != "app" {
		t.Errorf("without a stream: %v", missing)
	}
	if code, answer := alice.send(t, "POST", "namespaces/team/imagestreammappings", nil, first); code != http.StatusForbidden {
		t.Errorf("a user maps: %d %v", code, answer)
	}
	made := alice.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreams", nil, map[string]any{
		"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "metadata": map[string]any{"name": "app"}})
	if got := at(made, "status", "dockerImageRepository"); got != streamRegistry+"/team/app" {
		t.Errorf("the stream is of %v", got)
	}
	if done := registry.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreammappings", nil, first); done["kind"] != "Status" || done["status"] != "Success" {
		t.Errorf("a mapping is answered with %v", done)
	}
	byDigest := pushedImage(t, "team/app", imgs[1])
	byDigest["kind"], byDigest["apiVersion"] = "Image", "image.openshift.io/v1"
	registry.must(t, http.StatusCreated, "POST", "images", nil, byDigest)
	registry.must(t, http.StatusConflict, "POST", "images", nil, byDigest)

	pulled := registry.must(t, http.StatusOK, "GET", "namespaces/team/imagestreams/app", nil, nil)
	if text := fmt.Sprint(at(pulled, "status", "tags")); !strings.Contains(text, digest(0)) || !strings.Contains(text, streamRegistry+"/team/app@"+digest(0)) {
		t.Errorf("the stream leads to %s", text)
	}
	image := registry.must(t, http.StatusOK, "GET", "images/"+digest(0), nil, nil)
	if at(image, "metadata", "annotations", "openshift.io/image.managed") != "true" || image["dockerImageManifest"] != nil {
		t.Errorf("the image is %v", image)
	}
	layers := registry.must(t, http.StatusOK, "GET", "namespaces/team/imagestreams/app/layers", nil, nil)
	if configDigest, err := imgs[0].ConfigName(); err != nil || at(layers, "blobs", configDigest.String()) == nil || at(layers, "blobs", digest(0)) == nil {
		t.Errorf("its blobs are %v, %v", layers["blobs"], err)
	}
	if secrets := registry.must(t, http.StatusOK, "GET", "namespaces/team/imagestreams/app/secrets", nil, nil); secrets["kind"] != "SecretList" {
		t.Errorf("its secrets are %v", secrets)
	}
	registry.must(t, http.StatusOK, "GET", "namespaces/team/imagestreamimages/app@"+digest(0), nil, nil)
	signature := map[string]any{"kind": "ImageSignature", "apiVersion": "image.openshift.io/v1", "type": "atomic", "content": "AAAA",
		"metadata": map[string]any{"name": digest(0) + "@" + strings.Repeat("5", 32)}}
	harness.Eventually(t, func() error {
		if code, answer := user("signer").send(t, "POST", "imagesignatures", nil, signature); code != http.StatusCreated {
			return fmt.Errorf("signing: %d %v", code, answer)
		}
		return nil
	})

	alice.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreams", nil, map[string]any{
		"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "metadata": map[string]any{"name": "second"}})
	var wait sync.WaitGroup
	for i := range 12 {
		wait.Go(func() {
			if code, answer := registry.send(t, "POST", "namespaces/team/imagestreammappings", nil, mapping(t, "app", fmt.Sprint("many", i), imgs[i+2])); code != http.StatusCreated {
				t.Errorf("push %d of twelve: %d %v", i, code, answer)
			}
		})
	}
	wait.Wait()
	pulled = registry.must(t, http.StatusOK, "GET", "namespaces/team/imagestreams/app", nil, nil)
	if tags, _ := at(pulled, "status", "tags").([]any); len(tags) != 13 {
		t.Errorf("after thirteen pushes there are %d tags", len(tags))
	}

	var catalog []string
	for query := (url.Values{"limit": {"1"}}); ; {
		page := registry.must(t, http.StatusOK, "GET", "imagestreams", query, nil)
		items, _ := page["items"].([]any)
		for _, item := range items {
			catalog = append(catalog, fmt.Sprint(at(item, "metadata", "namespace"), "/", at(item, "metadata", "name")))
		}
		next, _ := at(page, "metadata", "continue").(string)
		if next == "" {
			break
		}
		query.Set("continue", next)
	}
	if got := strings.Join(catalog, " "); got != "team/app team/second" {
		t.Errorf("the catalog is %s", got)
	}
}

// logsIn asks who a user is, and whether he may pull and push, as the registry does with his token: in protobuf.
func logsIn(t *testing.T, config *rest.Config) {
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	self, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || self.Status.UserInfo.Username != "alice" {
		t.Errorf("it is %+v, %v", self, err)
	}
	for access, want := range map[string]bool{"team get layers": true, "team update layers": true, "other get layers": false, "team get status": true} {
		part := strings.Fields(access)
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: part[0], Verb: part[1], Group: "image.openshift.io", Resource: "imagestreams/" + part[2], Name: "app"},
		}}, metav1.CreateOptions{})
		if err != nil || review.Status.Allowed != want {
			t.Errorf("%s: %+v, %v", access, review, err)
		}
	}
}

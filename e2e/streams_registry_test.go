package e2e

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
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

// pushedImage is the Image that OpenShift's registry makes of an image that was pushed to a
// repository of it.
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

// The requests that OpenShift's registry sends when somebody logs in, pushes, pulls, signs and
// lists, recorded from image-registry: with its own credential, and with that of the user where it
// does so.
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

// logsIn asks who a user is, and whether they may pull and push, as the registry does with their
// token: in protobuf.
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

// pushedArtifact is what OpenShift's registry makes of a manifest that is not an image's, of one
// layer.
func pushedArtifact(t testing.TB, repository, config, configType, layerType string, more map[string]any) map[string]any {
	t.Helper()
	manifest := map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": map[string]any{"mediaType": configType, "digest": digestOf(config), "size": len(config)},
		"layers": []any{map[string]any{"mediaType": layerType, "digest": digestOf(layerType), "size": len(layerType)}},
	}
	maps.Copy(manifest, more)
	raw, err := json.Marshal(manifest)
	if err != nil {
		t.Fatal(err)
	}
	digest := digestOf(string(raw))
	return map[string]any{
		"metadata": map[string]any{"name": digest, "annotations": map[string]any{
			"openshift.io/image.managed": "true", "image.openshift.io/manifestBlobStored": "true", "image.openshift.io/dockerLayersOrder": "ascending",
		}},
		"dockerImageReference": streamRegistry + "/" + repository + "@" + digest,
		"dockerImageManifest":  string(raw), "dockerImageManifestMediaType": "application/vnd.oci.image.manifest.v1+json", "dockerImageConfig": config,
	}
}

func digestOf(content string) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content)))
}

// The requests of OpenShift's registry when what is not an image is pushed to it: cosign's
// signatures and attestations by tag and as referrers, a chart, and what ORAS pushes. All are found
// by tag and by name, and none is among images: not in lists from stored bytes or in pages, not in
// tables, not in watches.
func TestRegistryOfStreamsTakesArtifacts(t *testing.T) {
	t.Parallel()
	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	if err := os.WriteFile(config, []byte("streams: {registry: "+streamRegistry+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := harness.StartServer(t, "--config", config)
	s.Kubectl(t, "create", "namespace", "team")
	registry := streamCaller{restClient(t, s.Config(t))}
	registry.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreams", nil, map[string]any{
		"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "metadata": map[string]any{"name": "app"}})

	client := imageClient(t, s)
	told, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer told.Stop()
	toldOfArtifacts, err := client.Watch(t.Context(), metav1.ListOptions{FieldSelector: "artifact=true"})
	if err != nil {
		t.Fatal(err)
	}
	defer toldOfArtifacts.Stop()

	imgs := images.Numbered(t, 2)
	registry.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreammappings", nil, mapping(t, "app", "v1", imgs[0]))
	second := images.Digest(t, imgs[1]).String()
	signed := images.Digest(t, imgs[0]).String()
	subject := map[string]any{"mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": signed, "size": 1}
	name := strings.Replace(signed, ":", "-", 1)
	const imageConfig = "application/vnd.oci.image.config.v1+json"
	const emptyConfig = "application/vnd.oci.empty.v1+json"
	const rootfs = `{"architecture":"","os":"","rootfs":{"type":"layers","diff_ids":[]}}`
	artifacts := []struct {
		what, tag, kind string
		image           map[string]any
	}{
		{"cosign's signature", name + ".sig", "application/vnd.dev.cosign.simplesigning.v1+json",
			pushedArtifact(t, "team/app", rootfs, imageConfig, "application/vnd.dev.cosign.simplesigning.v1+json", nil)},
		{"cosign's attestation", name + ".att", "application/vnd.dsse.envelope.v1+json",
			pushedArtifact(t, "team/app", rootfs, imageConfig, "application/vnd.dsse.envelope.v1+json", nil)},
		{"BuildKit's attestation", "", "application/vnd.in-toto+json",
			pushedArtifact(t, "team/app", rootfs, imageConfig, "application/vnd.in-toto+json", nil)},
		{"a chart", "1.0.0", "application/vnd.cncf.helm.config.v1+json",
			pushedArtifact(t, "team/app", `{"name":"app","version":"1.0.0"}`, "application/vnd.cncf.helm.config.v1+json", "application/vnd.cncf.helm.chart.content.v1.tar+gzip", nil)},
		{"what ORAS pushes", "data", "application/vnd.example.data",
			pushedArtifact(t, "team/app", "{}", emptyConfig, "application/octet-stream", map[string]any{"artifactType": "application/vnd.example.data"})},
		{"a referrer", "", "application/vnd.dev.sigstore.bundle.v0.3+json",
			pushedArtifact(t, "team/app", "{}", emptyConfig, "application/vnd.dev.sigstore.bundle.v0.3+json", map[string]any{"artifactType": "application/vnd.dev.sigstore.bundle.v0.3+json", "subject": subject})},
	}
	var names []string
	for _, a := range artifacts {
		digest := at(a.image, "metadata", "name").(string)
		names = append(names, digest)
		if a.tag == "" {
			byDigest := maps.Clone(a.image)
			byDigest["kind"], byDigest["apiVersion"] = "Image", "image.openshift.io/v1"
			registry.must(t, http.StatusCreated, "POST", "images", nil, byDigest)
			registry.must(t, http.StatusConflict, "POST", "images", nil, byDigest)
		} else {
			registry.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreammappings", nil, map[string]any{"kind": "ImageStreamMapping", "apiVersion": "image.openshift.io/v1",
				"metadata": map[string]any{"namespace": "team", "name": "app"}, "image": a.image, "tag": a.tag})
			if tag := registry.must(t, http.StatusOK, "GET", "namespaces/team/imagestreamtags/app:"+a.tag, nil, nil); at(tag, "image", "metadata", "name") != digest {
				t.Errorf("%s: its tag is %v", a.what, tag)
			}
			registry.must(t, http.StatusOK, "GET", "namespaces/team/imagestreamimages/app@"+digest, nil, nil)
		}
		if stored := registry.must(t, http.StatusOK, "GET", "images/"+digest, nil, nil); at(stored, "metadata", "annotations", "tidewaiter.dev/artifact-type") != a.kind {
			t.Errorf("%s is stored as %v", a.what, stored)
		}
	}
	last := mapping(t, "app", "v2", imgs[1])
	registry.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreammappings", nil, last)

	layers := registry.must(t, http.StatusOK, "GET", "namespaces/team/imagestreams/app/layers", nil, nil)
	for _, a := range artifacts {
		if digest := at(a.image, "metadata", "name").(string); a.tag != "" && (at(layers, "blobs", digest) == nil || at(layers, "images", digest, "config") == nil) {
			t.Errorf("the registry may not give out %s: %v", a.what, layers)
		}
	}

	want := []string{signed, second}
	slices.Sort(want)
	slices.Sort(names)
	var paged []string
	for query := (url.Values{"limit": {"1"}}); ; {
		page := registry.must(t, http.StatusOK, "GET", "images", query, nil)
		items, _ := page["items"].([]any)
		for _, item := range items {
			paged = append(paged, at(item, "metadata", "name").(string))
		}
		next, _ := at(page, "metadata", "continue").(string)
		if next == "" {
			break
		}
		if left := at(page, "metadata", "remainingItemCount"); left != float64(1) {
			t.Errorf("of two images after the first %v remain", left)
		}
		query.Set("continue", next)
	}
	for how, got := range map[string][]string{
		"a list in pages": paged,
		"kubectl":         strings.Fields(s.Kubectl(t, "get", "images", "-o", "jsonpath={.items[*].metadata.name}")),
	} {
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", how, got, want)
		}
	}
	if table := s.Kubectl(t, "get", "images", "--no-headers"); strings.Count(table, "\n") != len(want) {
		t.Errorf("the table is\n%s", table)
	}
	asked := strings.Fields(s.Kubectl(t, "get", "images", "--field-selector", "artifact=true", "-o", "jsonpath={.items[*].metadata.name}"))
	if !slices.Equal(asked, names) {
		t.Errorf("asked for artifacts: %v, want %v", asked, names)
	}
	// The registry's hard prune deletes the blobs of what is not in its list.
	asRegistry := s.Config(t)
	asRegistry.UserAgent = "dockerregistry/v0.0.0 (linux/amd64) kubernetes/$Format"
	prune, err := dynamic.NewForConfig(asRegistry)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := prune.Resource(imageResource).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var inUse []string
	for _, object := range kept.Items {
		inUse = append(inUse, object.GetName())
	}
	if all := slices.Concat(want, names); !slices.Equal(slices.Sorted(slices.Values(inUse)), slices.Sorted(slices.Values(all))) {
		t.Errorf("the registry's prune knows %v, want %v", inUse, all)
	}
	if table := s.Kubectl(t, "get", "images", "--no-headers", "--field-selector", "artifact=true"); strings.Count(table, "\n") != len(names) || strings.Contains(table, "Unsigned") {
		t.Errorf("the table of artifacts is\n%s", table)
	}
	if table := s.Kubectl(t, "get", "images", "--no-headers", names[0]); strings.Count(table, "\n") != 1 {
		t.Errorf("the table of one artifact is\n%s", table)
	}

	until := func(w watch.Interface, end string) (seen []string) {
		for event := range w.ResultChan() {
			name := event.Object.(metav1.Object).GetName()
			if event.Type == watch.Added {
				seen = append(seen, name)
			}
			if name == end {
				return seen
			}
		}
		t.Errorf("the watch ended after %v", seen)
		return seen
	}
	if seen := until(told, second); !slices.Equal(seen, []string{signed, second}) {
		t.Errorf("a watch of images is told of %v", seen)
	}
	if seen := until(toldOfArtifacts, at(artifacts[len(artifacts)-1].image, "metadata", "name").(string)); len(seen) != len(artifacts) {
		t.Errorf("a watch of artifacts is told of %v", seen)
	}
}

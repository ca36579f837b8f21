package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
)

// ocPruner goes by the rules of `oc adm prune images --keep-younger-than=0 --confirm`: it sends the
// same requests in the same order, and writes down what it would delete in the registry. If the
// environment variable OC names a program, and server is set, it runs that as `oc adm`, beside a
// registry that writes down what it is asked to delete.
type ocPruner struct {
	client    *rest.RESTClient
	server    *harness.Server
	revisions int

	links, manifests, blobs []string // as repository@digest, and of blobs the digest
	deleted                 []string // images
	errs                    []error
}

// ocStream and ocImage are what oc reads of the kinds, and sends back.
type ocStream struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              json.RawMessage `json:"spec"`
	Status            struct {
		DockerImageRepository string      `json:"dockerImageRepository"`
		Tags                  []ocHistory `json:"tags,omitempty"`
	} `json:"status"`
}

type ocHistory struct {
	Tag        string          `json:"tag"`
	Items      []ocEvent       `json:"items"`
	Conditions json.RawMessage `json:"conditions,omitempty"`
}

type ocEvent struct {
	Created              metav1.Time `json:"created"`
	DockerImageReference string      `json:"dockerImageReference"`
	Image                string      `json:"image"`
	Generation           int64       `json:"generation"`
}

type ocImage struct {
	Metadata                     metav1.ObjectMeta
	DockerImageManifestMediaType string
	DockerImageMetadata          struct{ ID string }
	DockerImageLayers            []struct{ Name string }
	DockerImageManifests         []struct{ Digest string }
}

// all are the blobs of an image beside its manifest.
func (i *ocImage) all() (blobs []string) {
	for _, layer := range i.DockerImageLayers {
		blobs = append(blobs, layer.Name)
	}
	if len(i.DockerImageManifests) == 0 && i.DockerImageMetadata.ID != "" {
		blobs = append(blobs, i.DockerImageMetadata.ID)
	}
	return blobs
}

// send sends a request, and reads the answer if that is 200.
func (p *ocPruner) send(t testing.TB, verb, path string, body, into any) error {
	t.Helper()
	request := p.client.Verb(verb).RequestURI(path).MaxRetries(0)
	if body != nil {
		text, err := json.Marshal(body)
		must(t, err)
		request.Body(text)
	}
	text, err := request.Do(t.Context()).Raw()
	if err == nil && into != nil {
		must(t, json.Unmarshal(text, into))
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w: %s", verb, path, err, text)
	}
	return nil
}

// run runs oc.
func (p *ocPruner) run(t testing.TB, oc string) error {
	t.Helper()
	p.links, p.manifests, p.blobs = nil, nil, nil // of a try before
	var mu sync.Mutex
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete {
			return // it is there
		}
		mu.Lock()
		defer mu.Unlock()
		path, digest := filepath.Split(r.URL.Path)
		switch repository := strings.TrimPrefix(path, "/v2/"); {
		case path == "/admin/blobs/":
			p.blobs = append(p.blobs, digest)
		case strings.HasSuffix(repository, "/blobs/"):
			p.links = append(p.links, strings.TrimSuffix(repository, "/blobs/")+"@"+digest)
		default:
			p.manifests = append(p.manifests, strings.TrimSuffix(repository, "/manifests/")+"@"+digest)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer registry.Close()
	names := func() []string { return strings.Fields(p.server.Kubectl(t, "get", "images", "-o", "name")) }
	before := names()
	token := strings.TrimSpace(p.server.Kubectl(t, "create", "token", "pruner", "-n", "team"))
	got := harness.Run(t, harness.Command{Path: oc, Env: []string{"HOME=" + t.TempDir()}, Args: []string{"adm", "prune", "images", "--keep-younger-than=0", fmt.Sprint("--keep-tag-revisions=", p.revisions), "--confirm",
		"--registry-url=" + registry.URL, "--force-insecure", "--server", p.server.URL, "--insecure-skip-tls-verify", "--token", token}})
	after := names()
	for _, name := range before {
		if !slices.Contains(after, name) {
			p.deleted = append(p.deleted, strings.TrimPrefix(name, "image.image.openshift.io/"))
		}
	}
	t.Logf("oc: %d\n%s%s", got.Code, got.Stdout, got.Stderr)
	if got.Code != 0 {
		return errors.New(got.Stderr)
	}
	return nil
}

// prune returns an error if oc stops before it has changed anything.
func (p *ocPruner) prune(t testing.TB) error {
	t.Helper()
	if oc := os.Getenv("OC"); oc != "" && p.server != nil {
		return p.run(t, oc)
	}
	used := map[string]bool{} // namespace/name@digest, and namespace/name:tag
	for _, list := range []struct {
		path     string
		template func(json.RawMessage) []byte
		optional bool
	}{
		{"/api/v1/pods", func(spec json.RawMessage) []byte { return spec }, false},
		{"/api/v1/replicationcontrollers", templateOf, false},
		{"/apis/build.openshift.io/v1/buildconfigs", nil, true},
		{"/apis/build.openshift.io/v1/builds", nil, true},
		{"/apis/apps/v1/daemonsets", templateOf, false},
		{"/apis/apps/v1/deployments", templateOf, false},
		{"/apis/apps.openshift.io/v1/deploymentconfigs", templateOf, true},
		{"/apis/apps/v1/replicasets", templateOf, false},
		{"/apis/apps/v1/statefulsets", templateOf, false},
		{"/apis/batch/v1/jobs", templateOf, false},
		{"/apis/batch/v1/cronjobs", templateOf, false},
		{"/api/v1/limitranges", nil, false},
	} {
		var objects struct {
			Items []struct{ Spec json.RawMessage }
		}
		err := p.send(t, "GET", list.path, nil, &objects)
		if list.optional && err != nil && strings.Contains(err.Error(), "could not find the requested resource") {
			continue
		}
		if err != nil {
			return err
		}
		for _, object := range objects.Items {
			var spec corev1.PodSpec
			must(t, json.Unmarshal(list.template(object.Spec), &spec))
			for _, container := range append(spec.InitContainers, spec.Containers...) {
				if parts := strings.Split(container.Image, "/"); len(parts) == 3 {
					used[parts[1]+"/"+parts[2]] = true
				}
			}
		}
	}
	var streams struct{ Items []*ocStream }
	if err := p.send(t, "GET", "/apis/image.openshift.io/v1/imagestreams", nil, &streams); err != nil {
		return err
	}
	var list struct{ Items []*ocImage }
	if err := p.send(t, "GET", "/apis/image.openshift.io/v1/images?limit=5000", nil, &list); err != nil {
		return err
	}
	known := map[string]*ocImage{}
	for _, image := range list.Items {
		known[image.Metadata.Name] = image
	}
	inHistory := map[string]bool{}
	for _, stream := range streams.Items {
		for _, tag := range p.stream(t, stream, known, used).Status.Tags {
			for _, item := range tag.Items {
				inHistory[item.Image] = true
			}
		}
	}
	for _, image := range list.Items {
		for _, listed := range image.DockerImageManifests {
			inHistory[listed.Digest] = inHistory[listed.Digest] || inHistory[image.Metadata.Name]
		}
	}
	counts := map[string]int{}
	for _, image := range list.Items {
		for _, blob := range append(image.all(), image.Metadata.Name) {
			counts[blob]++
		}
	}
	for _, image := range list.Items {
		name := image.Metadata.Name
		if inHistory[name] {
			continue
		}
		for _, blob := range append(image.all(), name) {
			if counts[blob]--; counts[blob] == 0 {
				p.blobs = append(p.blobs, blob)
			}
		}
		if err := p.send(t, "DELETE", "/apis/image.openshift.io/v1/images/"+name, map[string]any{"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}, nil); err != nil {
			p.errs = append(p.errs, err)
		} else {
			p.deleted = append(p.deleted, name)
		}
	}
	return nil
}

// templateOf is the pod that is made by an object with this spec.
func templateOf(spec json.RawMessage) []byte {
	var object struct {
		Template struct{ Spec json.RawMessage }
	}
	_ = json.Unmarshal(spec, &object)
	return object.Template.Spec
}

// stream takes out of the histories of a stream what is not kept, and returns it as the server then
// says that it is; if that failed, as it was to be.
func (p *ocPruner) stream(t testing.TB, listed *ocStream, known map[string]*ocImage, used map[string]bool) *ocStream {
	t.Helper()
	name := listed.Namespace + "/" + listed.Name
	path := "/apis/image.openshift.io/v1/namespaces/" + listed.Namespace + "/imagestreams/" + listed.Name
	stream := &ocStream{}
	if err := p.send(t, "GET", path, nil, stream); err != nil {
		p.errs = append(p.errs, err)
		return listed
	}
	blobs, manifests := map[string]int{}, map[string]int{}
	each := func(visit func(tag string, revision int, item ocEvent, image *ocImage) (keep bool)) {
		var left []ocHistory
		for _, tag := range stream.Status.Tags {
			var items []ocEvent
			for revision, item := range tag.Items {
				if visit(tag.Tag, revision, item, known[item.Image]) {
					items = append(items, item)
				}
			}
			if tag.Items = items; len(items) > 0 {
				left = append(left, tag)
			}
		}
		stream.Status.Tags = left
	}
	each(func(_ string, _ int, _ ocEvent, image *ocImage) bool {
		if image != nil {
			manifests[image.Metadata.Name]++
			for _, blob := range image.all() {
				blobs[blob]++
			}
		}
		return true
	})
	var gone []string
	out := 0
	each(func(tag string, revision int, item ocEvent, image *ocImage) bool {
		if revision == 0 && used[name+":"+tag] || image != nil && (revision < p.revisions || used[name+"@"+item.Image]) {
			return true
		}
		if out++; image == nil {
			return false
		}
		if manifests[item.Image]--; manifests[item.Image] == 0 {
			gone = append(gone, name+"@"+item.Image)
		}
		for _, blob := range image.all() {
			if blobs[blob]--; blobs[blob] == 0 {
				p.links = append(p.links, name+"@"+blob)
			}
		}
		return false
	})
	if out == 0 {
		return stream
	}
	answer := &ocStream{}
	if err := p.send(t, "PUT", path+"/status", stream, answer); err != nil {
		p.errs = append(p.errs, err)
		return stream
	}
	p.manifests = append(p.manifests, gone...)
	return answer
}

// What OpenShift's registry has, and a pod of a cluster that is followed uses or a tag leads to, is
// not deleted there by who prunes by the lists of this API, as oc adm prune images does. While it
// is unknown what the cluster uses nothing is, and what nothing needs goes in both.
func TestPruningByLists(t *testing.T) {
	t.Parallel()
	cluster := harness.StartServer(t)
	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "importRunning: false\nstreams: {registry: %q}\nclusters:\n- {name: prod, kubeconfig: %s, importRunning: false}\n", streamRegistry, cluster.Kubeconfig), 0o600))
	s := harness.StartServer(t, "--config", config)
	s.Kubectl(t, "create", "namespace", "team")
	s.Kubectl(t, "create", "serviceaccount", "pruner", "-n", "team")
	s.Kubectl(t, "create", "clusterrolebinding", "pruner", "--clusterrole=system:image-pruner", "--serviceaccount=team:pruner")
	admin := streamCaller{restClient(t, s.Config(t))}
	pruner := func(revisions int) *ocPruner {
		return &ocPruner{client: restClient(t, as(s.Config(t), "system:serviceaccount:team:pruner")), server: s, revisions: revisions}
	}
	imgs := images.Numbered(t, 5)
	digest := func(i int) string { return images.Digest(t, imgs[i]).String() }
	configOf := func(image v1.Image) string {
		name, err := image.ConfigName()
		must(t, err)
		return name.String()
	}
	admin.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreams", nil, map[string]any{
		"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "metadata": map[string]any{"name": "app"}})
	for i := range 4 {
		admin.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreammappings", nil, mapping(t, "app", "v1", imgs[i]))
	}
	// An index that lists the last: no pod tells its digest.
	index := pushedImage(t, "team/app", imgs[0])
	indexDigest := digestOf("index")
	index["metadata"].(map[string]any)["name"] = indexDigest
	index["dockerImageReference"] = streamRegistry + "/team/app@" + indexDigest
	delete(index, "dockerImageManifest")
	delete(index, "dockerImageConfig")
	index["dockerImageManifestMediaType"] = "application/vnd.oci.image.index.v1+json"
	index["dockerImageManifests"] = []any{map[string]any{"digest": digest(4), "mediaType": "application/vnd.oci.image.manifest.v1+json", "manifestSize": 1, "architecture": "amd64", "os": "linux"}}
	listed := pushedImage(t, "team/app", imgs[4])
	listed["kind"], listed["apiVersion"] = "Image", "image.openshift.io/v1"
	admin.must(t, http.StatusCreated, "POST", "images", nil, listed)
	for _, image := range []map[string]any{index, pushedImage(t, "team/app", imgs[3])} {
		admin.must(t, http.StatusCreated, "POST", "namespaces/team/imagestreammappings", nil, map[string]any{"kind": "ImageStreamMapping", "apiVersion": "image.openshift.io/v1",
			"metadata": map[string]any{"namespace": "team", "name": "app"}, "image": image, "tag": "multi"})
	}

	// Pods of the cluster know the registry by another name.
	run := func(pod, digest string) {
		t.Helper()
		cluster.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q},"spec":{"containers":[{"name":"main","image":"app"}]}}`, pod), "create", "-n", "payments", "-f", "-")
		cluster.Kubectl(t, "patch", "pod", pod, "-n", "payments", "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
			`{"status":{"containerStatuses":[{"name":"main","image":"x","imageID":"apps.example.com/team/app@%s","ready":true,"restartCount":0}]}}`, digest))
	}
	run("app-1", digest(1))
	run("multi-1", digest(4))
	awaitUsed := func(n int) {
		t.Helper()
		harness.Eventually(t, func() error {
			if got := s.Kubectl(t, "get", "images", "--field-selector", "used=true", "-o", "name"); strings.Count(got, "sha256:") != n {
				return fmt.Errorf("used are %s", got)
			}
			return nil
		})
	}
	awaitUsed(3)
	wantContains(t, "the controllers", s.Kubectl(t, "get", "rc", "-A", "-o", "yaml"), streamRegistry+"/team/app@"+digest(1), streamRegistry+"/team/app@"+indexDigest)
	if got := s.Kubectl(t, "get", "all,rc", "-n", "team"); strings.Contains(got, "replicationcontroller") {
		t.Errorf("get all has %s", got)
	}

	for round, revisions := range []int{1, 1, 0} {
		p := pruner(revisions)
		harness.Eventually(t, func() error { return p.prune(t) }) // the binding takes a moment
		if len(p.errs) > 0 {
			t.Errorf("round %d: %v", round, p.errs)
		}
		var links, manifests, blobs, deleted []string
		if round == 0 {
			for _, i := range []int{0, 2} {
				deleted, blobs = append(deleted, digest(i)), append(blobs, digest(i), configOf(imgs[i]))
				links, manifests = append(links, "team/app@"+configOf(imgs[i])), append(manifests, "team/app@"+digest(i))
			}
		}
		for what, lists := range map[string][2][]string{"links": {p.links, links}, "manifests": {p.manifests, manifests}, "blobs": {p.blobs, blobs}, "images": {p.deleted, deleted}} {
			got, want := lists[0], lists[1]
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("round %d: of %s %v go, want %v", round, what, got, want)
			}
		}
		stream := fmt.Sprint(at(admin.must(t, http.StatusOK, "GET", "namespaces/team/imagestreams/app", nil, nil), "status", "tags"))
		for i, stays := range []bool{false, true, false, true} {
			if strings.Contains(stream, digest(i)) != stays {
				t.Errorf("round %d: the stream leads to %s; %d: want %t", round, stream, i, stays)
			}
		}
	}

	// What is used and in no history would be deleted: so nobody is told what else would.
	stops := func(says ...string) {
		t.Helper()
		p := pruner(0)
		err := p.prune(t)
		for _, want := range says {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("oc stops with %v, want %q", err, want)
			}
		}
		if len(p.links)+len(p.manifests)+len(p.blobs)+len(p.deleted) > 0 {
			t.Errorf("it has deleted %+v", p)
		}
	}
	stray := pushedImage(t, "team/app", imgs[2])
	stray["kind"], stray["apiVersion"] = "Image", "image.openshift.io/v1"
	admin.must(t, http.StatusCreated, "POST", "images", nil, stray)
	run("stray-1", digest(2))
	awaitUsed(4)
	stops("not in the history of any tag", "oc tag --source=docker "+streamRegistry+"/team/app@"+digest(2)+" team/app:in-use")
	admin.must(t, http.StatusCreated, "PUT", "namespaces/team/imagestreamtags/app:in-use", nil, map[string]any{"kind": "ImageStreamTag", "apiVersion": "image.openshift.io/v1",
		"metadata": map[string]any{"name": "app:in-use", "namespace": "team"}, "tag": map[string]any{"from": map[string]any{"kind": "DockerImage", "name": streamRegistry + "/team/app@" + digest(2)}}})
	if p := pruner(0); p.prune(t) != nil || len(p.blobs)+len(p.deleted)+len(p.errs) > 0 {
		t.Errorf("with a tag: %+v", p)
	}

	cluster.Kill(t)
	harness.Eventually(t, func() error {
		if got := s.TryKubectl(t, "get", "rc", "-A"); !strings.Contains(got.Stderr, "it is unknown which images pods use or workloads need: the pods of cluster prod are those of") {
			return fmt.Errorf("%d %s%s", got.Code, got.Stdout, got.Stderr)
		}
		return nil
	})
	stops("the pods of cluster prod are those of")
}

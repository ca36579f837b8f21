package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	tidewaiterserver "github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// An import by the command moves a tag, as a push does: the image that it led to is left, and its
// history has both.
func TestImportMovesATag(t *testing.T) {
	t.Parallel()
	dir, registry := t.TempDir(), registrytest.New(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	images, err := imageclient.New(serveOn(t, dir, listener))
	if err != nil {
		t.Fatal(err)
	}
	ref := reference.Reference{Host: registry.Host, Repository: "team/app", Tag: "v1"}
	var digests []string
	for _, os := range []string{"linux", "plan9"} {
		digests = append(digests, pushed(t, registry, "team/app:v1", `{"os":"`+os+`","architecture":"amd64"}`, nil))
		if code, _, stderr := tidewaiter(t, "import", "--kubeconfig", tidewaiterserver.KubeconfigPath(dir), ref.String()); code != cli.ExitOK {
			t.Fatalf("exit code %d: %s", code, stderr)
		}
	}
	list, err := images.List(t.Context(), metav1.ListOptions{FieldSelector: "references=" + ref.String()})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != digests[1] {
		t.Errorf("%d images have the tag, %v", len(list.Items), err)
	}
	tag, err := images.GetTag(t.Context(), tags.Name(ref), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var history []string
	for _, item := range tag.Status.Items {
		history = append(history, item.Image)
	}
	slices.Reverse(digests)
	if !slices.Equal(history, digests) {
		t.Errorf("the history is %q, want %q", history, digests)
	}
}

// A server that keeps no ImageTags, such as OpenShift's, is imported into without them.
func TestImportIntoAServerWithoutTags(t *testing.T) {
	t.Parallel()
	registry, behind := registrytest.New(t), serve(t)
	target, err := url.Parse(behind.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := restclient.TransportFor(behind)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = transport
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.Path, "imagetags"), strings.Contains(r.URL.RawQuery, "references.recorded"):
			t.Errorf("it was asked %s %s", r.Method, r.URL)
			http.NotFound(w, r)
		case r.URL.Path == "/apis/"+imagev1.GroupVersion.String():
			w.Header().Set("Content-Type", "application/json")
			list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: imagev1.GroupVersion.String(), APIResources: []metav1.APIResource{{Name: "images", Kind: "Image"}, {Name: "imagetags", Kind: "ImageTag"}}}
			if err := json.NewEncoder(w).Encode(list); err != nil {
				t.Error(err)
			}
		default:
			r.Header.Del("Authorization") // which is for this server
			proxy.ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	config := clientcmdapi.NewConfig()
	config.Clusters["other"] = &clientcmdapi.Cluster{Server: server.URL, InsecureSkipTLSVerify: true}
	config.AuthInfos["me"] = &clientcmdapi.AuthInfo{Token: "of the other server"}
	config.Contexts["other"] = &clientcmdapi.Context{Cluster: "other", AuthInfo: "me"}
	config.CurrentContext = "other"
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	pushed(t, registry, "team/app:v1", `{"os":"linux","architecture":"amd64"}`, nil)
	if code, _, stderr := tidewaiter(t, "import", "--kubeconfig", kubeconfig, registry.Host+"/team/app:v1"); code != cli.ExitOK {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// An import into a data directory is of what that says of policies: without one, no image costs a
// request for each tag of signatures that it might have.
func TestImportIntoADirectoryAsksForNoTagThatIsNotListed(t *testing.T) {
	registry := registrytest.New(t)
	args := []string{"import", "--data-dir", filepath.Join(t.TempDir(), "data"), "--create-data-dir"}
	for i := range 3 {
		ref := fmt.Sprint("team/app:v", i)
		registry.Push(ref, servertest.SampleImage(t, ref))
		args = append(args, registry.Host+"/"+ref)
	}
	if code, _, stderr := tidewaiter(t, args...); code != cli.ExitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	if lists, asked := registry.Count("/tags/list"), registry.Count("/manifests/sha256-"); lists != 1 || asked != 0 {
		t.Errorf("%d lists of tags, %d requests for tags of signatures", lists, asked)
	}
}

// A pipeline that has the role tidewaiter:importer and no other imports signed images, again and by
// new tags, and is told of no right that it lacks. One that may only read is warned, even if
// nothing is new.
func TestTheRoleOfImportersIsEnoughToImport(t *testing.T) {
	t.Parallel()
	registry := newUnderPolicy(t)
	data := filepath.Join(registry.dir, "data")
	config := serveWith(t, tidewaiterserver.Options{DataDir: data, Policy: registry.policy, Isolated: true}, listen(t))
	admin := newClientset(t, config)
	token := filepath.Join(registry.dir, "token")
	if err := os.WriteFile(token, []byte(serviceAccountToken(t, admin, "ci", "robot", authenticationv1.TokenRequestSpec{})), 0o600); err != nil {
		t.Fatal(err)
	}
	bind(t, admin, "system:serviceaccount:ci:robot", "tidewaiter:importer", "")

	digest := registry.Push("team/app:v1", servertest.SampleImage(t, "app"))
	registry.Push("team/app:v2", servertest.SampleImage(t, "app"))
	registry.sign("team/app:v1", digest)
	robot := []string{"import", "--server", config.Host, "--certificate-authority", filepath.Join(data, "pki", "ca.crt"), "--token-file", token}
	for _, what := range [][]string{{"team/app:v1"}, {"team/app:v1", "team/app:v2"}, {"team/app@" + digest}} {
		args := slices.Clone(robot)
		for _, reference := range what {
			args = append(args, registry.Host+"/"+reference)
		}
		if code, stdout, stderr := tidewaiter(t, args...); code != cli.ExitOK || strings.Contains(stderr, "Warning") || strings.Contains(stderr, "forbidden") {
			t.Errorf("import %v: exit code %d: %s%s", what, code, stdout, stderr)
		}
	}
	if code, stdout, stderr := tidewaiter(t, "import", "--server", config.Host, "--certificate-authority", filepath.Join(data, "pki", "ca.crt"), "--token-file", token, "--all-tags", registry.Host+"/team/app"); code != cli.ExitOK {
		t.Errorf("import --all-tags: exit code %d: %s%s", code, stdout, stderr)
	}
	if got := newReviewer(t, config).ask(answers.Question{Reference: registry.Host + "/team/app:v2"})[0]; got.State != answers.Found || got.Verdict == nil || got.Verdict.Verified != verdicts.VerifiedTrue {
		t.Errorf("what it imported is answered %+v", got)
	}

	reader := filepath.Join(registry.dir, "reader")
	if err := os.WriteFile(reader, []byte(serviceAccountToken(t, admin, "ci", "reader", authenticationv1.TokenRequestSpec{})), 0o600); err != nil {
		t.Fatal(err)
	}
	bind(t, admin, "system:serviceaccount:ci:reader", "tidewaiter:image-viewer", "")
	code, stdout, stderr := tidewaiter(t, "import", "--server", config.Host, "--certificate-authority", filepath.Join(data, "pki", "ca.crt"), "--token-file", reader, registry.Host+"/team/app:v1")
	if code != cli.ExitOK || !strings.Contains(stdout, "unchanged") || !strings.Contains(stderr, "warning: the server did not record that the registry was asked; an import needs the role tidewaiter:importer: ") {
		t.Errorf("an import that may only read: exit code %d: %s%s", code, stdout, stderr)
	}
}

// Whoever finds that a tag has moved asks the registry for what it led to: many delete that.
func TestEveryDoorAsksForWhatATagHasLeft(t *testing.T) {
	t.Parallel()
	dir, registry := t.TempDir(), registrytest.New(t)
	config := serveIn(t, dir)
	images, err := imageclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	user := streamUser{t, newClientset(t, config).RESTClient(), "default"}
	for door, doImport := range map[string]func(ref string){
		"import": func(ref string) {
			if code, _, stderr := tidewaiter(t, "import", "--kubeconfig", tidewaiterserver.KubeconfigPath(dir), ref); code != cli.ExitOK {
				t.Error(stderr)
			}
		},
		"imagestreamimport": func(ref string) {
			user.importInto("app", imagev1.ImageStreamImportSpec{Images: []imagev1.ImageImportSpec{{From: corev1.ObjectReference{Kind: "DockerImage", Name: ref}, ImportPolicy: imagev1.TagImportPolicy{Insecure: true}}}})
		},
	} {
		ref := door + "/app:v1"
		before := registry.Push(ref, servertest.SampleImage(t, door))
		doImport(registry.Host + "/" + ref)
		registry.Push(ref, servertest.SampleImage(t, door+" again"))
		registry.Inject(before, 0, registrytest.Status(http.StatusNotFound, "MANIFEST_UNKNOWN"))
		doImport(registry.Host + "/" + ref)
		image, err := images.Get(t.Context(), before, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if gone := image.Annotations[annotation.Gone]; !strings.Contains(gone, before) {
			t.Errorf("%s: the image that the tag led to is marked %q", door, gone)
		}
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	tidewaiterserver "github.com/tidewaiter/tidewaiter/cmd/internal/server"
	"github.com/tidewaiter/tidewaiter/cmd/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
)

// An import by the command moves a tag, as a push does: the image that it led to is left, and its history has both.
func TestImportMovesATag(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
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
	t.Setenv("KUBECONFIG", "")
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

// An import into a data directory is of what that says of policies: without one, no image costs a request for each tag of
// signatures that it might have.
func TestImportIntoADirectoryAsksForNoTagThatIsNotListed(t *testing.T) {
	t.Setenv("KUBECONFIG", "")
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

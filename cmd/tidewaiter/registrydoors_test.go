package main

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// registryDoor is a way by which the server gets to ask a registry about the tag v1 of a
// repository.
type registryDoor struct {
	name string
	// look has the server ask. deleted says that the tag is gone, and want is where it leads.
	look func(repository, want string, deleted bool)
	// fresh says that the door asks only about images that are not known, and listed that it asks for
	// the list of tags first.
	fresh, listed bool
}

// path begins the repositories of a door.
func (d registryDoor) path() string { return strings.ReplaceAll(d.name, " ", "-") }

// doored is a server with each door to a registry.
type doored struct {
	t        *testing.T
	registry *registrytest.Registry
	images   *imageclient.Client
	doors    []registryDoor
}

func newDoored(t *testing.T, options ...registrytest.Option) *doored {
	t.Helper()
	const secret = "0123456789abcdef0123"
	d := &doored{t: t, registry: registrytest.New(t, options...)}
	cluster, dir, host := clustertest.New(t), t.TempDir(), d.registry.Host
	cluster.Set(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "default"}})
	configuration := func(sweep string) string {
		return "authFile: auth.json\nclusters:\n- {name: prod, kubeconfig: prod.kubeconfig}\nreceivers:\n- {name: pushes, type: distribution, hosts: ['" + host + "'], secretFile: secret}\n" + sweep
	}
	write := func(file, text string) {
		t.Helper()
		path := filepath.Join(dir, file)
		if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	policy := strings.Replace(signaturestest.Document("guard", `["`+host+`/admission"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), ""), "metadata: {", "metadata: {annotations: {tidewaiter.dev/admission: audit}, ", 1)
	credentials := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte("user:s3cr3t")))
	for file, text := range map[string]string{"auth.json": credentials, "config.yaml": configuration(""), "secret": secret, "prod.kubeconfig": string(cluster.Kubeconfig()), "policy.yaml": policy} {
		write(file, text)
	}
	config := serveWith(t, server.Options{DataDir: filepath.Join(dir, "data"), ConfigFile: filepath.Join(dir, "config.yaml"), Policy: filepath.Join(dir, "policy.yaml"), Isolated: true}, listen(t))
	var err error
	if d.images, err = imageclient.New(config); err != nil {
		t.Fatal(err)
	}
	client, err := restclient.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	user := streamUser{t, newClientset(t, config).RESTClient(), "default"}
	command := func(deleted bool, args ...string) {
		t.Helper()
		code, out, errs := tidewaiter(t, append([]string{"import", "--authfile", filepath.Join(dir, "auth.json"), "--kubeconfig", server.KubeconfigPath(filepath.Join(dir, "data"))}, args...)...)
		if (code == cli.ExitOK) == deleted {
			t.Errorf("import %q ends with %d: %s%s", args, code, out, errs)
		}
	}
	sweeps := 0
	d.doors = []registryDoor{
		{name: "import", look: func(repository, _ string, deleted bool) { command(deleted, host+"/"+repository+":v1") }},
		{name: "all-tags", listed: true, look: func(repository, want string, deleted bool) {
			command(deleted && want != "", "--all-tags", host+"/"+repository) // a tag that is gone is no failure
		}},
		{name: "webhook", look: func(repository, want string, deleted bool) {
			action, target := "push", fmt.Sprintf(`"digest":%q,"tag":"v1"`, want)
			if deleted {
				action, target = "delete", `"tag":"v1"`
			}
			body := fmt.Sprintf(`{"events":[{"id":%q,"action":%q,"target":{%s,"repository":%q},"request":{"host":%q}}]}`, rand.Text(), action, target, repository, host)
			if code := send(t, config, "POST", "/hooks/pushes", secret, body); code != http.StatusAccepted {
				t.Errorf("the webhook is answered %d", code)
			}
		}},
		{name: "stream", look: func(repository, _ string, _ bool) {
			user.importInto("app", imagev1.ImageStreamImportSpec{Images: []imagev1.ImageImportSpec{{
				From: corev1.ObjectReference{Kind: "DockerImage", Name: host + "/" + repository + ":v1"}, ImportPolicy: imagev1.TagImportPolicy{Insecure: true},
			}}})
		}},
		{name: "stream of a repository", listed: true, look: func(repository, _ string, _ bool) {
			user.importInto("all", imagev1.ImageStreamImportSpec{Repository: &imagev1.RepositoryImportSpec{
				From: corev1.ObjectReference{Kind: "DockerImage", Name: host + "/" + repository}, ImportPolicy: imagev1.TagImportPolicy{Insecure: true},
			}})
		}},
		{name: "admission", fresh: true, look: func(repository, _ string, _ bool) {
			askAdmission(t, client, config.Host+admission.Path+"/prod?timeout=30s", review(host+"/"+repository+":v1"))
		}},
		{name: "runs", fresh: true, look: func(repository, _ string, _ bool) {
			cluster.Set(&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: strings.ReplaceAll(repository, "/", "-")},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: host + "/" + repository + ":v1"}}},
			})
		}},
		{name: "sweep", look: func(repository, _ string, _ bool) {
			sweeps++
			write("config.yaml", configuration(fmt.Sprintf("sweep:\n  every: %dh\n  repositories: [%s/%s]\n", sweeps, host, repository)))
		}},
	}
	return d
}

// leads returns where a tag is known to lead, and how often that is known to have changed; no
// digest if the registry is known to have lost it.
func (d *doored) leads(repository string) (digest string, known bool, events int) {
	d.t.Helper()
	tag, err := d.images.GetTag(d.t.Context(), tags.Name(reference.Reference{Host: d.registry.Host, Repository: repository, Tag: "v1"}), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", false, 0
	}
	if err != nil {
		d.t.Fatal(err)
	}
	digest, known = tags.Now(tag)
	return digest, known, len(tag.Status.Items)
}

// gone are the names by which an image is known to be no longer in the registry.
func (d *doored) gone(digest string) (names []string) {
	d.t.Helper()
	image, err := d.images.Get(d.t.Context(), digest, metav1.GetOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	for ref := range annotation.Missing(image.Annotations) {
		names = append(names, strings.TrimPrefix(ref.String(), d.registry.Host+"/"))
	}
	slices.Sort(names)
	return names
}

// asked reports whether the registry was asked about the tag since Reset.
func (d *doored) asked(repository string) bool {
	return d.registry.Count("/v2/"+repository+"/manifests/v1") > 0
}

// A registry that denies to HEAD what it gives to GET, as Nexus and other proxies do, has it, by
// whichever door it is asked: what is new is imported, and nothing that is known is lost.
func TestEveryDoorAsksByGetWhatIsDeniedToHead(t *testing.T) {
	t.Parallel()
	for _, status := range []int{403, 404} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			d, digests := newDoored(t), map[string]string{}
			for _, door := range d.doors {
				known, fresh := door.path()+"/known", door.path()+"/fresh"
				for _, repository := range []string{known, fresh} {
					digests[repository] = d.registry.Push(repository+":v1", servertest.SampleImage(t, repository))
				}
				d.registry.Heal()
				d.doors[0].look(known, digests[known], false)
				d.registry.Inject("HEAD .*/manifests/", 0, registrytest.Status(status, "MANIFEST_UNKNOWN"))
				for _, repository := range []string{fresh, known} {
					if door.fresh && repository == known {
						continue
					}
					d.registry.Reset()
					door.look(repository, digests[repository], false)
					soon(t, door.name+" asks about "+repository, func() bool {
						digest, isKnown, _ := d.leads(repository)
						return isKnown && digest == digests[repository] && d.asked(repository)
					})
				}
			}
			for repository, pushed := range digests {
				if digest, _, events := d.leads(repository); digest != pushed || events != 1 {
					t.Errorf("%s leads to %q after %d events", repository, digest, events)
				}
				if got := d.gone(pushed); len(got) > 0 {
					t.Errorf("%s: its image is marked as gone from %q", repository, got)
				}
			}
		})
	}
}

// A registry may delete a manifest with its last tag, and tell of the tag alone. Whichever door the
// deletion is found by, the digests are asked for, too: of an index also those that it lists.
func TestEveryDoorAsksForWhatATagTookAlong(t *testing.T) {
	t.Parallel()
	d := newDoored(t)
	for _, door := range d.doors {
		if door.fresh {
			continue // they ask for no tag that is gone; what runs is asked for by a sweep
		}
		repository := door.path() + "/deleted"
		index, err := sample.MultiPlatform(sample.Spec{Name: repository}, false, "linux/amd64", "linux/arm64")
		if err != nil {
			t.Fatal(err)
		}
		listed, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}
		digest := d.registry.PushIndex(repository+":v1", index)
		want := map[string][]string{digest: {repository + ":v1", repository + "@" + digest}}
		for _, child := range listed.Manifests {
			want[child.Digest.String()] = []string{repository + "@" + child.Digest.String()}
		}
		d.doors[0].look(repository, digest, false)
		d.registry.Push(repository+":kept", servertest.SampleImage(t, "kept")) // the repository stays
		for manifest := range want {
			d.delete(repository, manifest)
		}
		d.delete(repository, "v1")
		door.look(repository, "", true)
		for manifest, names := range want {
			soon(t, fmt.Sprintf("%s: %.19s is known to be gone as %q", door.name, manifest, names), func() bool {
				return slices.Equal(d.gone(manifest), names)
			})
		}
		if now, known, _ := d.leads(repository); !known || now != "" {
			t.Errorf("%s: the tag leads to %q", door.name, now)
		}
	}
}

// A registry that answers a credential without rights, or one that has expired, that it has no such
// thing has lost nothing, by whichever door it is asked. The doors say that they may not see it.
func TestNoDoorBelievesWhatIsHidden(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"NAME_UNKNOWN", "MANIFEST_UNKNOWN"} {
		t.Run(code, func(t *testing.T) {
			t.Parallel()
			d, digests := newDoored(t, registrytest.WithAuth(registrytest.Auth{Scheme: "basic", Username: "user", Password: "s3cr3t"})), map[string]string{}
			for _, door := range d.doors {
				if door.fresh {
					continue
				}
				repository := door.path() + "/hidden"
				digest := d.registry.Push(repository+":v1", servertest.SampleImage(t, repository))
				digests[repository] = digest
				d.registry.Heal()
				d.doors[0].look(repository, digest, false)
				d.registry.Inject("/v2/.+", 0, registrytest.Status(http.StatusNotFound, code))
				d.registry.Reset()
				door.look(repository, digest, true)
				if door.name == "webhook" { // a deletion that is not believed is tried again, and says so in the queue
					soon(t, "the webhook asks", func() bool { return d.asked(repository) })
					door.look(repository, digest, false)
				}
				soon(t, door.name+" says why it knows no more", func() bool {
					tag, err := d.images.GetTag(t.Context(), tags.Name(reference.Reference{Host: d.registry.Host, Repository: repository, Tag: "v1"}), metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					failed := tags.Failure(tag)
					// these two do not come to the tag
					lists, sweeps := door.listed && d.registry.Count("/v2/"+repository+"/tags/list") > 0, door.name == "sweep" && d.registry.Count("/v2/"+repository+"/manifests/") > 0
					return failed != nil && failed.Reason == "Unauthorized" || lists || sweeps
				})
			}
			for repository, digest := range digests {
				if led, _, events := d.leads(repository); led != digest || events != 1 || len(d.gone(digest)) > 0 {
					t.Errorf("%s:v1 leads to %q after %d events, and its image is gone from %q", repository, led, events, d.gone(digest))
				}
			}
		})
	}
}

// A list of tags may be a part of the truth, as a proxy's is. Whichever door reads it, a known tag
// that it lacks is asked for: it is imported if it has moved.
func TestEveryDoorAsksForWhatItsListLacks(t *testing.T) {
	t.Parallel()
	d := newDoored(t)
	for _, door := range d.doors {
		if !door.listed && door.name != "sweep" {
			continue // they read no list
		}
		repository := door.path() + "/partial"
		first := d.registry.Push(repository+":v1", servertest.SampleImage(t, repository+" one"))
		d.registry.Heal()
		d.doors[0].look(repository, first, false)
		second := d.registry.Push(repository+":v1", servertest.SampleImage(t, repository+" two"))
		d.registry.Push(repository+":kept", servertest.SampleImage(t, "kept"))
		d.registry.Inject("/v2/"+repository+"/tags/list", 0, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, `{"name":%q,"tags":["kept"]}`, repository)
			})
		})
		door.look(repository, "", false)
		soon(t, door.name+" imports a known tag that no list has", func() bool {
			led, _, _ := d.leads(repository)
			return led == second
		})
	}
}

// delete deletes a tag or a manifest in the registry.
func (d *doored) delete(repository, reference string) {
	d.t.Helper()
	req, err := http.NewRequestWithContext(d.t.Context(), http.MethodDelete, d.registry.URL+"/v2/"+repository+"/manifests/"+reference, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	resp, err := d.registry.Server().Client().Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode >= 300 {
		d.t.Fatalf("deleting %s of %s is answered %s", reference, repository, resp.Status)
	}
}

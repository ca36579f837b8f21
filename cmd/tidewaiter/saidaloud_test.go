package main

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// impatient is the real clock, but that a ticker's ticks come soon: files are read again at once.
type impatient struct{ clock.RealClock }

func (c impatient) NewTicker(d time.Duration) clock.Ticker {
	return c.RealClock.NewTicker(min(d, 20*time.Millisecond))
}

// awaitLine waits until the log has a text n times, and fails if it has it more often.
func awaitLine(t *testing.T, log *servertest.LogBuffer, text string, n int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); strings.Count(log.String(), text) < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the log has %q %d times, want %d:\n%s", text, strings.Count(log.String(), text), n, log)
		}
	}
	if got := strings.Count(log.String(), text); got != n {
		t.Errorf("the log has %q %d times, want %d:\n%s", text, got, n, log)
	}
}

// At the default level the log has one line when a cluster cannot be followed, when an import finds
// that what runs is no longer verified, and when policies are broken; and one line when each of
// these ends.
func TestTroublesAreLoggedOnceAndTheirEnds(t *testing.T) {
	log := logAt(t, 0)
	h := &harbour{t: t, registry: registrytest.New(t), found: &brought{signatures: map[string][]imagev1.ImageSignature{}, annotations: map[string]map[string]string{}, fail: map[string]error{}}}
	q := &questions{harbour: h, cluster: clustertest.New(t), digests: map[string]string{}}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	key := signaturestest.NewKey(t, signaturestest.P256)
	policy := signaturestest.Document("prod", `["`+q.registry.Host+`/prod"]`, signaturestest.TrustKey(key, nil), "")
	write("policy.yaml", policy)
	write("prod.kubeconfig", string(q.cluster.Kubeconfig()))
	write("config.yaml", "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\n")
	q.cluster.Forbid("pods")
	q.Config = serveWith(t, server.Options{DataDir: filepath.Join(dir, "data"), ConfigFile: filepath.Join(dir, "config.yaml"), Policy: filepath.Join(dir, "policy.yaml"), Isolated: true, Clock: impatient{}}, listen(t))
	q.review = newReviewer(t, q.Config)
	var err error
	if q.images, err = imageclient.New(q.Config); err != nil {
		t.Fatal(err)
	}
	awaitLine(t, log, "A cluster cannot be followed", 1)
	if text := log.String(); !strings.Contains(text, "cluster=prod") || !strings.Contains(text, "forbidden") {
		t.Errorf("the log does not say which cluster, and why: %s", text)
	}
	q.cluster.Allow("pods")
	awaitLine(t, log, "A cluster is followed again", 1)

	q.image("one", "prod/app:v1")
	signature := q.sign(key, "prod/app:v1", q.digests["one"], 0)
	q.bring("prod/app", q.digests["one"], signature)
	q.importTag("prod/app:v1")
	tag := q.registry.Host + "/prod/app:v1"
	q.runs("a", tag, q.digests["one"])
	soon(t, "the pod is followed", func() bool { return q.review.ask(answers.Question{Reference: tag})[0].Running.Pods > 0 })
	q.bring("prod/app", q.digests["one"]) // the signature is deleted
	q.importTag("prod/app:v1")
	q.importTag("prod/app:v1")
	awaitLine(t, log, "An image that pods use is no longer verified", 1)
	q.bring("prod/app", q.digests["one"], signature)
	q.importTag("prod/app:v1")
	awaitLine(t, log, "An image that pods use is verified again", 1)

	write("policy.yaml", "broken")
	awaitLine(t, log, "Policies cannot be reloaded, the old ones stay in force", 1)
	write("policy.yaml", policy)
	awaitLine(t, log, "Policies can be reloaded again", 1)
	if strings.Contains(log.String(), ".go:") {
		t.Errorf("the log names files of sources: %s", log)
	}
}

// At -v 1 each import that a push causes is a line, and so is each verdict. Below 6 no line names
// files of sources, neither of this program nor of others.
func TestImportsAndVerdictsAreLoggedAtOne(t *testing.T) {
	for _, verbosity := range []int{1, 5} {
		t.Run(fmt.Sprint(verbosity), func(t *testing.T) {
			log := logAt(t, verbosity)
			registry, cluster := newUnderPolicy(t), clustertest.New(t)
			file := registry.write(map[string]string{
				"config.yaml": "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\nreceivers:\n- {name: pushes, type: distribution, hosts: ['" + registry.Host + "'], secretFile: secret}\n",
				"secret":      "0123456789abcdef0123", "prod.kubeconfig": string(cluster.Kubeconfig()),
			})
			config := serveWith(t, server.Options{DataDir: filepath.Join(registry.dir, "data"), ConfigFile: file, Policy: registry.policy, Isolated: true}, listen(t))
			push := func(repository string, signed bool) (digest string) {
				t.Helper()
				digest = registry.push(repository, repository+":v1", signed)
				body := fmt.Sprintf(`{"events":[{"id":"%s","action":"push","target":{"digest":%q,"repository":%q,"tag":"v1"},"request":{"host":%q}}]}`, rand.Text(), digest, repository, registry.Host)
				if code := send(t, config, "POST", "/hooks/pushes", "0123456789abcdef0123", body); code != http.StatusAccepted {
					t.Fatalf("the push is answered %d", code)
				}
				return digest
			}
			plain, signed := push("team/plain", false), push("team/signed", true)
			awaitLine(t, log, "msg=Imported", 2)
			for _, want := range []string{
				"receiver=pushes reference=" + registry.Host + "/team/plain:v1 ", "receiver=pushes reference=" + registry.Host + "/team/signed:v1 ",
				`msg="A new image has a verdict" image=` + plain + " verdict=Unsigned\n", `msg="A new image has a verdict" image=` + signed + " verdict=True\n",
			} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log lacks %q:\n%s", want, log)
				}
			}
			for line := range strings.Lines(log.String()) {
				if strings.Contains(line, ".go:") {
					t.Errorf("a file of sources is named: %s", line)
				}
			}
		})
	}
}

// At -v 1 each verdict that changes is a line, in the place where it changed: by a sweep after a
// change of policies, by an import that no longer finds a signature, by a policy of a namespace.
// The worst of an image's verdicts need not change.
func TestVerdictsThatChangeAreLoggedAtOne(t *testing.T) {
	log := logAt(t, 1)
	h := &harbour{t: t, registry: registrytest.New(t), found: &brought{signatures: map[string][]imagev1.ImageSignature{}, annotations: map[string]map[string]string{}, fail: map[string]error{}}}
	q := &questions{harbour: h, digests: map[string]string{}}
	dir, host := t.TempDir(), h.registry.Host
	ours, theirs := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	file := filepath.Join(dir, "policy.yaml")
	prod := func(key *signaturestest.Key) string {
		return signaturestest.Document("prod", `["`+host+`/prod"]`, signaturestest.TrustKey(key, nil), "")
	}
	strict := signaturestest.Document("strict", `["`+host+`/strict"]`, signaturestest.TrustKey(theirs, nil), "")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(prod(ours) + strict)
	q.Config = serveWith(t, server.Options{DataDir: filepath.Join(dir, "data"), Policy: file, Isolated: true, Clock: impatient{}}, listen(t))
	var err error
	if q.images, err = imageclient.New(q.Config); err != nil {
		t.Fatal(err)
	}
	q.image("one", "prod/app:v1")
	q.bring("prod/app", q.digests["one"], q.sign(ours, "prod/app:v1", q.digests["one"], 0))
	q.importTag("prod/app:v1")
	// where nobody has signed, so the worst is Unsigned from now on
	q.copies("one", "strict/app:v1")
	changed := func(in, verdict, before string) string {
		return `msg="A verdict changed" image=` + q.digests["one"] + " in=" + host + in + " verdict=" + verdict + " before=" + before
	}
	write(prod(theirs) + strict) // the key is revoked
	awaitLine(t, log, changed("/prod/app", "False", "True"), 1)
	write(prod(ours) + strict)
	awaitLine(t, log, changed("/prod/app", "True", "False"), 1)
	q.bring("prod/app", q.digests["one"]) // the signature is deleted
	q.importTag("prod/app:v1")
	awaitLine(t, log, changed("/prod/app", "Unsigned", "True"), 1)
	write(strict)
	awaitLine(t, log, changed("/prod/app", "NoPolicy", "Unsigned"), 1)
	client, err := dynamic.NewForConfig(q.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newClientset(t, q.Config).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ofTeam := policies{client.Resource(policyapi.GroupVersion.WithResource("imagepolicies")).Namespace("team"), t}
	ofTeam.create(strings.Replace(prod(ours), "kind: ClusterImagePolicy", "kind: ImagePolicy", 1))
	awaitLine(t, log, changed("/prod/app#team", "Unsigned", "NoPolicy"), 1)
	if n := strings.Count(log.String(), "A verdict changed"); n != 5 {
		t.Errorf("%d verdicts changed, want 5:\n%s", n, log)
	}
}

// Somebody has a reference imported by the server, and checked: it is known by whom. What names no
// registry, or cannot be parsed, is refused as the API refuses.
func TestImportIsAskedFor(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t)
	config := serveWith(t, server.Options{DataDir: t.TempDir(), Isolated: true}, listen(t))
	admin := newClientset(t, config)
	ask := func(text string) error {
		return admin.RESTClient().Post().AbsPath("/tidewaiter/imports").Param("reference", text).Do(t.Context()).Error()
	}
	digest := registry.Push("team/app:v1", servertest.SampleImage(t, "app"))
	if err := ask(registry.Host + "/team/app:v1"); err != nil {
		t.Fatal(err)
	}
	soon(t, "the image is there, and who asked", func() bool {
		events, err := admin.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "ImportAsked" && e.InvolvedObject.Name == digest && strings.HasSuffix(e.Message, "/team/app:v1 was asked for by tidewaiter-admin")
		})
	})
	for text, want := range map[string]string{"": "does not name its registry", "team/app:v1": "does not name its registry", registry.Host + "/Team/app": "lower case"} {
		if err := ask(text); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is answered %v", text, err)
		}
	}
}

// hasty is impatient, and has what waits for a time wait for a moment.
type hasty struct{ impatient }

func (c hasty) After(d time.Duration) <-chan time.Time {
	return c.RealClock.After(min(d, 20*time.Millisecond))
}

// A registry is asked by its settings in the changed configuration, without a restart.
func TestRegistriesAreReloaded(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("team/app:v1", servertest.SampleImage(t, "app"))
	file := servertest.WriteConfig(t, "registries: [{prefix: \""+registry.Host+"\", blocked: true}]\n")
	config := serveWith(t, server.Options{DataDir: t.TempDir(), ConfigFile: file, Isolated: true, Clock: hasty{}}, listen(t))
	user := streamUser{t, newClientset(t, config).RESTClient(), "default"}
	imported := func() string {
		return user.importInto("app", imagev1.ImageStreamImportSpec{Images: []imagev1.ImageImportSpec{{From: corev1.ObjectReference{Kind: "DockerImage", Name: registry.Host + "/team/app:v1"}}}})
	}
	if got := imported(); !strings.Contains(got, "blocked") {
		t.Errorf("a registry that is blocked is asked: %s", got)
	}
	if err := os.WriteFile(file, []byte("registries: [{prefix: \""+registry.Host+"\", insecure: true}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	soon(t, "the registry is asked", func() bool { return strings.Contains(imported(), `"status":"Success"`) })
}

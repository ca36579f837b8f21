package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	restclient "k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	tidewaiterserver "github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// review is what an API server asks about a pod in the namespace team that runs an image.
func review(images ...string) []byte {
	var containers []string
	for i, image := range images {
		containers = append(containers, fmt.Sprintf(`{"name":"c%d","image":%q}`, i, image))
	}
	return fmt.Appendf(nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","resource":{"group":"","version":"v1","resource":"pods"},"namespace":"team","operation":"CREATE",
		"object":{"spec":{"imagePullSecrets":[{"name":"pull"}],"containers":[%s]}}}}`, strings.Join(containers, ","))
}

// serveAdmission serves with the policies of a file, and returns a function that asks whether a pod
// with some images is admitted.
func serveAdmission(t *testing.T, dir, policies string) func(images ...string) *admissionv1.AdmissionResponse {
	t.Helper()
	config := serveWith(t, tidewaiterserver.Options{DataDir: filepath.Join(dir, "data"), Policy: policies, Isolated: true}, listen(t))
	client := httpClient(t, config)
	return func(images ...string) *admissionv1.AdmissionResponse {
		return askAdmission(t, client, config.Host+admission.Path+"?timeout=30s", review(images...))
	}
}

// askAdmission asks a server about a pod.
func askAdmission(t testing.TB, client *http.Client, url string, body []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	response, err := client.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var got admissionv1.AdmissionReview
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || json.Unmarshal(text, &got) != nil || got.Response == nil {
		t.Fatalf("answered %d %s, %v", response.StatusCode, text, err)
	}
	return got.Response
}

// Pods are judged by the policies that cover their images, each by its mode, also where the image
// is not known yet.
func TestAdmission(t *testing.T) {
	t.Parallel()
	const password = "correct-horse-battery-staple"
	registry := newUnderPolicy(t)
	private := registrytest.New(t, registrytest.WithAuth(registrytest.Auth{Scheme: "bearer", Username: "team", Password: password}))
	signed := registry.push("signed", "team/signed:1", true)
	plain := registry.push("team/plain:1", "team/plain:1", false)
	registry.push("trial/plain:1", "trial/plain:1", false)
	registry.push("quiet/plain:1", "quiet/plain:1", false)
	registry.push("lenient/plain:1", "lenient/plain:1", false)
	private.Push("team/app:1", servertest.SampleImage(t, "team/app:1"))
	private.Push("other/app:1", servertest.SampleImage(t, "other/app:1"))

	cluster := clustertest.New(t)
	login := base64.StdEncoding.EncodeToString([]byte("team:" + password))
	cluster.Set(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pull"}, Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{
		corev1.DockerConfigJsonKey: fmt.Appendf(nil, `{"auths":{%q:{"auth":%q}}}`, private.Host, login),
	}}, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "default"}})
	config := registry.write(map[string]string{"prod.kubeconfig": string(cluster.Kubeconfig()), "config.yaml": "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig}\n"})
	server := serveWith(t, tidewaiterserver.Options{DataDir: filepath.Join(registry.dir, "data"), ConfigFile: config, Policy: registry.policy, Isolated: true}, listen(t))
	objects := policiesOf(t, server)
	other := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	with := func(document, annotations string) string {
		return strings.Replace(document, "metadata: {", "metadata: {annotations: {"+annotations+"}, ", 1)
	}
	for name, annotations := range map[string]string{"trial": "tidewaiter.dev/admission: warn", "quiet": "tidewaiter.dev/admission: audit", "lenient": "tidewaiter.dev/admission-unknown: allow"} {
		objects.create(with(signaturestest.Document(name, `["`+registry.Host+"/"+name+`"]`, other, ""), annotations))
	}
	objects.create(signaturestest.Document("private", `["`+private.Host+`/team"]`, other, ""))
	for name, annotations := range map[string]string{"mode": "tidewaiter.dev/admission: deny", "unknown": "tidewaiter.dev/admission-unknown: enforce"} {
		_, err := objects.Create(t.Context(), object(t, with(signaturestest.Document(name, `["`+private.Host+`/x"]`, other, ""), annotations)), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "metadata.annotations.tidewaiter.dev/admission") || !strings.Contains(err.Error(), "must be ") {
			t.Errorf("a wrong annotation for %s: %v", name, err)
		}
	}
	client := httpClient(t, server)
	path := server.Host + admission.Path + "/prod?timeout=30s"
	check := func(image, allowed string, warnings int, want ...string) {
		t.Helper()
		got := askAdmission(t, client, path, review(image))
		said := got.AuditAnnotations["findings"]
		if got.Result != nil {
			said = got.Result.Message
		}
		if fmt.Sprint(got.Allowed) != allowed || len(got.Warnings) != warnings {
			t.Errorf("a pod with %s is answered %+v", image, got)
		}
		for _, w := range want {
			if !strings.Contains(said, w) {
				t.Errorf("a pod with %s: %q lacks %q", image, said, w)
			}
		}
	}
	at := registry.Host + "/"
	check(at+"team/signed:1", "true", 0)
	check(at+"team/signed@"+signed, "true", 0)
	check(at+"team/plain:1", "false", 0, at+"team/plain:1 ("+plain[:19]+")", `does not meet policy "harbour-master"`, "Unsigned")
	// a good digest that the repository does not have
	check(at+"other/app@"+signed, "false", 0, "is not known to meet", "could not be imported", "not found")
	check(at+"trial/plain:1", "true", 1, "warned", `policy "trial"`)
	check(at+"quiet/plain:1", "true", 0, "audited", `policy "quiet"`)
	// it is known in time
	check(at+"lenient/plain:1", "false", 0, `does not meet policy "lenient"`, "Unsigned")
	// whoever may push may have deleted it, and can push it again
	check(at+"lenient/gone:1", "false", 0, "is not known to meet", "could not be imported", "not found")
	// the mode bounds what becomes of what is unknown
	check(at+"quiet/gone:1", "true", 0, "audited", "is not known to meet")
	check(private.Host+"/team/app:1", "false", 0, "does not meet", "Unsigned")
	check(private.Host+"/other/app:1", "true", 0) // no policy covers it
	if n := private.Count("GET /v2/other/app/manifests/*"); n != 0 {
		t.Errorf("what no policy covers was asked for %d times", n)
	}

	// What is known costs no registry a request.
	asked := len(registry.AllRequests())
	check(at+"team/signed:1", "true", 0)
	check(at+"team/plain:1", "false", 0)
	for _, r := range registry.AllRequests()[asked:] {
		if strings.Contains(r.Path, "/team/") { // what is not known may still be looked for
			t.Errorf("the registry was asked about what is known: %v", r)
		}
	}

	// A tag is judged by what it leads to now.
	if code, out, errs := tidewaiter(t, "import", "--data-dir", filepath.Join(registry.dir, "data"), at+"team/signed:1"); code != cli.ExitOK {
		t.Fatalf("import: %s%s", out, errs)
	}
	registry.push("not signed", "team/signed:1", false)
	if code, out, errs := tidewaiter(t, "import", "--data-dir", filepath.Join(registry.dir, "data"), at+"team/signed:1"); code != cli.ExitOK {
		t.Fatalf("import: %s%s", out, errs)
	}
	check(at+"team/signed:1", "false", 0, "Unsigned")
	check(at+"team/signed@"+signed, "true", 0)

	// A policy that is tried beside one that is met refuses nothing.
	objects.create(with(signaturestest.Document("strict", `["`+registry.Host+`"]`, other, ""), "tidewaiter.dev/admission: audit"))
	check(at+"team/signed@"+signed, "true", 0, "audited", `policy "strict"`)
	check(at+"team/plain:1", "false", 0, `policy "harbour-master"`)
	// The mode follows at once, and no verdict with it.
	if _, err := objects.Patch(t.Context(), "strict", types.MergePatchType, []byte(`{"metadata":{"annotations":{"tidewaiter.dev/admission":"enforce"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	check(at+"team/signed@"+signed, "false", 0, `does not meet policy "strict"`)

	// Whoever may not ask learns nothing.
	stranger := restclient.AnonymousClientConfig(server)
	nobody := httpClient(t, stranger)
	response, err := nobody.Post(path, "application/json", bytes.NewReader(review(at+"team/plain:1")))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusUnauthorized || bytes.Contains(text, []byte("policy")) {
		t.Errorf("a stranger is answered %d %s", response.StatusCode, text)
	}
}

// BenchmarkAdmission is the time that the server takes for one of 200 pods a second, each of two
// containers, whose images are known, signed and covered by a policy. It is asked over TLS by one
// caller, as a cluster's API server is, whose time has the sending, TLS and the way through the
// server's filters in it; how many were judged within 2 ms the server counts. Text that is not a
// reference may be of any image, so each policy that may be about it counts: those of the cluster
// and of the pod's namespace. Those of other namespaces are not for its pods, and are not named to
// them.
func TestAttackUnreadableReferenceNamesPoliciesOfOthers(t *testing.T) {
	t.Parallel()
	var all []*policy.Policy
	for name, namespace := range map[string]string{"everywhere": "", "project-zeus": "acquisition", "own": "team"} {
		var d policy.Document
		document := signaturestest.Document(name, `["registry.example.com"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), "")
		if err := yaml.Unmarshal([]byte(strings.TrimPrefix(document, "---\n")), &d); err != nil {
			t.Fatal(err)
		}
		p, err := policy.New(namespace, name, &d.Spec)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	set, err := policy.NewSet(all)
	if err != nil {
		t.Fatal(err)
	}
	a := &tidewaiterserver.Admitter{Answerer: &answers.Answerer{Policies: answers.InForce{Policies: func(context.Context) (*policy.Set, error) { return set, nil }}}}
	for namespace, want := range map[string]string{"team": "everywhere team/own", "acquisition": "everywhere acquisition/project-zeus", "other": "everywhere"} {
		got, err := a.Judge(t.Context(), admission.Pod{Namespace: namespace}, reference.Reference{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, f := range got.Findings {
			names = append(names, f.Policy)
		}
		if strings.Join(names, " ") != want {
			t.Errorf("a pod of %s is judged by %v, want %s", namespace, names, want)
		}
	}
}

func BenchmarkAdmission(b *testing.B) {
	const images, rate = 1000, 200
	dir := b.TempDir()
	names, trust := seedSigned(b, dir, images)
	s := runProcess(b, dir, "--policy", trust)
	s.awaitVerdicts(b, images, "True")
	client, err := restclient.HTTPClientFor(s.Config)
	if err != nil {
		b.Fatal(err)
	}
	defer client.CloseIdleConnections()
	body := func(i int) []byte {
		image := "registry.example.com/team/app@" + names[i%images]
		return bytes.Replace(review(image), []byte(`"containers":[`), fmt.Appendf(nil, `"initContainers":[{"name":"init","image":"registry.example.com/team/app@%s"}],"containers":[`, names[(i*7+1)%images]), 1)
	}
	if got := askAdmission(b, client, s.Config.Host+admission.Path, body(0)); !got.Allowed || got.Warnings != nil {
		b.Fatalf("answered %+v", got)
	}
	took := make(chan time.Duration, b.N)
	ticker := time.NewTicker(time.Second / rate)
	defer ticker.Stop()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	before := processorTime(b, s.cmd.Process.Pid)
	b.ResetTimer()
	for i := range b.N {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			b.Fatal(ctx.Err())
		}
		go func() {
			start := time.Now()
			got := askAdmission(b, client, s.Config.Host+admission.Path, body(i))
			if !got.Allowed {
				b.Errorf("answered %+v", got)
			}
			took <- time.Since(start)
		}()
	}
	all := make([]time.Duration, 0, b.N)
	for range b.N {
		all = append(all, <-took)
	}
	b.StopTimer()
	slices.Sort(all)
	at := func(part float64) float64 { return float64(all[int(part*float64(len(all)-1))].Microseconds()) / 1000 }
	b.ReportMetric(at(.5), "ms-p50")
	b.ReportMetric(at(.99), "ms-p99")
	b.ReportMetric(float64((processorTime(b, s.cmd.Process.Pid)-before).Microseconds())/1000/float64(b.N), "cpu-ms/pod")

	// What the server itself took, of each review.
	response, err := client.Get(s.Config.Host + "/metrics")
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	const duration = `tidewaiter_admission_duration_seconds_`
	judged := map[string]float64{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		var n float64
		for _, what := range []string{`bucket{waited="false",le="0.002"}`, `count{waited="false"}`} {
			if _, err := fmt.Sscanf(lines.Text(), duration+what+" %f", &n); err == nil {
				judged[what] = n
			}
		}
	}
	if judged[`count{waited="false"}`] == 0 {
		b.Fatalf("the server has counted %v", judged)
	}
	b.ReportMetric(100*judged[`bucket{waited="false",le="0.002"}`]/judged[`count{waited="false"}`], "%-judged-in-2ms")
}

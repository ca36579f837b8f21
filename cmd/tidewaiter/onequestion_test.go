package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/prune"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// questions is a server with policies, a cluster that it follows and one that is away, a registry
// with a mirror, and images in every situation that people ask about.
type questions struct {
	*harbour
	cluster    *clustertest.Cluster
	review     reviewer
	kubeconfig string
	http       *http.Client
	digests    map[string]string         // by what an image is called here
	doors      map[string]int            // how many questions each was asked
	covered    covering                  // pairs of doors, questions, names and verdicts
	pruned     map[string]prune.Decision // what prune would do with each image
}

// image pushes an image of its own, without a name to be found by.
func (q *questions) image(called, tag string) {
	q.t.Helper()
	layer := fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":%q,"size":1000}`, manifest.Digest([]byte(called)))
	q.digests[called] = pushed(q.t, q.registry, tag, `{"os":"linux","architecture":"amd64","config":{"Labels":{"called":"`+called+`"}}}`, func(raw string) string {
		head, _, _ := strings.Cut(raw, `"layers":[`)
		return head + `"layers":[` + layer + `]}`
	})
}

// copies gives an image a name, as who promotes or moves a tag does, and imports it by that.
func (q *questions) copies(called, tag string, signed ...imagev1.ImageSignature) {
	q.t.Helper()
	repository, _, _ := strings.Cut(tag, ":")
	stored, err := q.images.Get(q.t.Context(), q.digests[called], metav1.GetOptions{})
	if err != nil {
		q.t.Fatal(err)
	}
	q.registry.PushManifest(tag, stored.DockerImageManifestMediaType, stored.Name, []byte(stored.DockerImageManifest))
	if signed != nil {
		q.bring(repository, stored.Name, signed...)
	}
	q.importTag(tag)
}

// runs has a pod of the cluster name an image and run a digest.
func (q *questions) runs(pod, reference, digest string) {
	repository, _, _ := strings.Cut(reference, "@")
	if i := strings.LastIndexByte(repository, ':'); i > strings.LastIndexByte(repository, '/') {
		repository = repository[:i]
	}
	q.cluster.Set(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: pod, CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: reference}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", ImageID: repository + "@" + digest, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}}},
	})
}

func newQuestions(t *testing.T) *questions {
	t.Helper()
	q := &questions{
		harbour: &harbour{t: t, registry: registrytest.New(t), found: &brought{signatures: map[string][]imagev1.ImageSignature{}, annotations: map[string]map[string]string{}, fail: map[string]error{}}},
		cluster: clustertest.New(t), digests: map[string]string{}, doors: map[string]int{}, covered: covering{},
	}
	host, dir := q.registry.Host, t.TempDir()
	ours, theirs := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	q.image("through", "excepted/app:through")
	documents := signaturestest.Document("prod", `["`+host+`/prod"]`, signaturestest.TrustKey(ours, nil), "") +
		signaturestest.Document("strict", `["`+host+`/strict"]`, signaturestest.TrustKey(theirs, nil), "") +
		signaturestest.Document("lax", `["`+host+`/both"]`, signaturestest.TrustKey(ours, nil), "{matchPolicy: MatchRepository}") +
		signaturestest.Document("second", `["`+host+`/both"]`, signaturestest.TrustKey(theirs, nil), "{matchPolicy: MatchRepository}") +
		signaturestest.Document("excepting", `["`+host+`/excepted"]`, signaturestest.TrustKey(ours, nil), "{matchPolicy: MatchRepository}") +
		"  exceptions:\n  - {images: [" + host + "/excepted/app:let], until: \"" + letUntil + "\", by: ann@example.com, reason: it is rebuilt tomorrow}\n" +
		"  - {images: [" + q.digests["through"] + "], until: \"" + letUntil + "\", by: ann@example.com, reason: its signer is ill}\n" +
		signaturestest.Document("mirrored", `["`+host+`/mirrored"]`, signaturestest.TrustKey(ours, nil), "") +
		signaturestest.Document("multi", `["`+host+`/multi"]`, signaturestest.TrustKey(ours, nil), "{matchPolicy: MatchRepository}")
	for _, one := range []string{
		signaturestest.Document("old", `["`+host+`/either"]`, signaturestest.TrustKey(ours, nil), "{matchPolicy: MatchRepository}"),
		signaturestest.Document("new", `["`+host+`/either"]`, signaturestest.TrustKey(theirs, nil), ""),
	} {
		documents += strings.Replace(one, "spec:\n", "spec:\n  alternatives: release\n", 1)
	}
	away := clustertest.New(t)
	for file, text := range map[string]string{
		"policies.yaml": documents, "prod.kubeconfig": string(q.cluster.Kubeconfig()), "away.kubeconfig": string(away.Kubeconfig()),
		"config.yaml": "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\n" +
			"imageTagMirrors:\n- {source: " + host + "/prod, mirrors: [mirror.example.com/copy]}\n- {source: " + host + "/shadow, mirrors: [" + host + "/mirrored]}\n" +
			"imageDigestMirrors:\n- {source: " + host + "/prod, mirrors: [mirror.example.com/copy]}\n- {source: " + host + "/shadow, mirrors: [" + host + "/mirrored]}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	q.Config = serveWith(t, server.Options{DataDir: data, ConfigFile: filepath.Join(dir, "config.yaml"), Policy: filepath.Join(dir, "policies.yaml"), Isolated: true, Console: true}, listen(t))
	q.kubeconfig, q.review = server.KubeconfigPath(data), newReviewer(t, q.Config)
	var err error
	if q.images, err = imageclient.New(q.Config); err != nil {
		t.Fatal(err)
	}
	if q.http, err = restclient.HTTPClientFor(q.Config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.http.CloseIdleConnections)
	client, err := dynamic.NewForConfig(q.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newClientset(t, q.Config).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	document := signaturestest.Document("ours", `["`+host+`/spaced"]`, signaturestest.TrustKey(ours, nil), "{matchPolicy: MatchRepository}")
	ofTeam := policies{client.Resource(policyapi.GroupVersion.WithResource("imagepolicies")).Namespace("team"), t}
	ofTeam.create(strings.Replace(document, "kind: ClusterImagePolicy", "kind: ImagePolicy", 1))

	// One is signed as v1.0. Whoever may push has moved v2.0 to it, too.
	q.image("one", "prod/app:v1.0")
	q.bring("prod/app", q.digests["one"], q.sign(ours, "prod/app:v1.0", q.digests["one"], 0))
	q.importTag("prod/app:v1.0")
	q.copies("one", "prod/app:v2.0")
	// Three has no signature. The tag moved has been moved to it.
	q.copies("one", "prod/app:moved")
	q.runs("stays", host+"/prod/app:moved", q.digests["one"])
	q.image("three", "prod/app:v3.0")
	q.importTag("prod/app:v3.0")
	q.copies("three", "prod/app:moved")
	// It was promoted to where others must sign, and copied to where nobody asks.
	q.copies("one", "strict/app:v1.0")
	q.copies("one", "free/copy:v1.0")
	q.image("theirs", "strict/app:v2.0")
	q.bring("strict/app", q.digests["theirs"], q.sign(theirs, "strict/app:v2.0", q.digests["theirs"], 0))
	q.importTag("strict/app:v2.0")
	q.image("wrong", "strict/app:wrong")
	q.bring("strict/app", q.digests["wrong"], q.sign(ours, "strict/app:wrong", q.digests["wrong"], 0))
	q.importTag("strict/app:wrong")
	q.image("free", "free/signed:v1.0")
	q.bring("free/signed", q.digests["free"], q.sign(ours, "free/signed:v1.0", q.digests["free"], 0))
	q.importTag("free/signed:v1.0")
	q.image("plain", "free/plain:v1.0")
	q.importTag("free/plain:v1.0")
	// Two policies have a scope in common.
	q.image("half", "both/app:half")
	q.bring("both/app", q.digests["half"], q.sign(ours, "both/app:half", q.digests["half"], 0))
	q.importTag("both/app:half")
	q.image("whole", "both/app:whole")
	q.bring("both/app", q.digests["whole"], q.sign(ours, "both/app:whole", q.digests["whole"], 0), q.sign(theirs, "both/app:whole", q.digests["whole"], 0))
	q.importTag("both/app:whole")
	// A namespace has a policy.
	q.image("spaced", "spaced/app:v1.0")
	q.bring("spaced/app", q.digests["spaced"], q.sign(ours, "spaced/app:v1.0", q.digests["spaced"], 0))
	q.importTag("spaced/app:v1.0")
	q.image("bare", "spaced/app:bare")
	q.importTag("spaced/app:bare")
	// An index is signed, and its platforms are not.
	q.image("amd64", "multi/app:amd64")
	q.importTag("multi/app:amd64")
	child := q.get(q.digests["amd64"])
	index := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":%d,"platform":{"os":"linux","architecture":"amd64"}}]}`,
		child.Name, len(child.DockerImageManifest))
	q.digests["index"] = manifest.Digest([]byte(index))
	q.registry.PushManifest("multi/app:v1.0", "application/vnd.oci.image.index.v1+json", q.digests["index"], []byte(index))
	q.bring("multi/app", q.digests["index"], q.sign(ours, "multi/app:v1.0", q.digests["index"], 0))
	q.importTag("multi/app:v1.0")
	// Exceptions let one through by its tag, and another by its digest.
	q.image("let", "excepted/app:let")
	q.bring("excepted/app", q.digests["let"], q.sign(theirs, "excepted/app:let", q.digests["let"], 0))
	q.importTag("excepted/app:let")
	q.copies("let", "excepted/app:again")
	q.importTag("excepted/app:through")
	// Another is signed by nobody.
	q.image("s390x", "multi/app:s390x")
	q.importTag("multi/app:s390x")
	bareIndex := strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(index, child.Name, q.digests["s390x"]), "amd64", "s390x"), fmt.Sprint(len(child.DockerImageManifest)), fmt.Sprint(len(q.get(q.digests["s390x"]).DockerImageManifest)))
	q.digests["bare index"] = manifest.Digest([]byte(bareIndex))
	q.registry.PushManifest("multi/app:bare", "application/vnd.oci.image.index.v1+json", q.digests["bare index"], []byte(bareIndex))
	q.importTag("multi/app:bare")
	// A policy that does not look at tags does not mind that another tag leads to what is signed.
	q.copies("whole", "both/app:again")
	// It was promoted to where somebody asks, and signed there.
	q.image("promoted", "free/staging:v1.0")
	q.importTag("free/staging:v1.0")
	q.copies("promoted", "prod/app:v4.0", q.sign(ours, "prod/app:v4.0", q.digests["promoted"], 0))
	// Somebody has pushed since, and nobody has told.
	q.image("known", "prod/app:stale")
	q.bring("prod/app", q.digests["known"], q.sign(ours, "prod/app:stale", q.digests["known"], 0))
	q.importTag("prod/app:stale")
	q.image("untold", "prod/app:stale")
	// The registry has this tag no longer.
	q.image("deleted", "prod/app:gone")
	q.importTag("prod/app:gone")
	q.registry.Inject("prod/app/manifests/gone", 0, registrytest.Status(http.StatusNotFound, "MANIFEST_UNKNOWN"))
	q.tryTag("prod/app:gone", pull.Limits{})
	// One is trusted in one repository and not signed in the other, and no tag leads to it in
	// either.
	q.image("twice", "prod/twice:v1.0")
	q.bring("prod/twice", q.digests["twice"], q.sign(ours, "prod/twice:v1.0", q.digests["twice"], 0))
	q.importTag("prod/twice:v1.0")
	q.copies("twice", "strict/twice:v1.0")
	q.registry.Inject("/twice/manifests/v1.0", 0, registrytest.Status(http.StatusNotFound, "MANIFEST_UNKNOWN"))
	q.tryTag("prod/twice:v1.0", pull.Limits{})
	q.tryTag("strict/twice:v1.0", pull.Limits{})
	// A policy's scope is the name of a mirror, and none covers its source.
	q.image("mirrored", "mirrored/app:v1.0")
	q.bring("mirrored/app", q.digests["mirrored"], q.sign(ours, "mirrored/app:v1.0", q.digests["mirrored"], 0))
	q.importTag("mirrored/app:v1.0")
	q.image("unmirrored", "mirrored/app:bare")
	q.importTag("mirrored/app:bare")
	q.copies("unmirrored", "shadow/app:bare")
	// Two policies are alternatives, and one of them is for the tag that is signed.
	q.image("by old", "either/app:v1.0")
	q.bring("either/app", q.digests["by old"], q.sign(ours, "either/app:v1.0", q.digests["by old"], 0))
	q.importTag("either/app:v1.0")
	q.copies("by old", "either/app:v1.1")
	q.image("by new", "either/app:v2.0")
	q.bring("either/app", q.digests["by new"], q.sign(theirs, "either/app:v2.0", q.digests["by new"], 0))
	q.importTag("either/app:v2.0")
	q.copies("by new", "either/app:v2.1")
	q.image("by neither", "either/app:v3.0")
	q.importTag("either/app:v3.0")
	// It does not answer for these.
	for called, fault := range unanswered {
		q.image(called, "strict/app:"+called)
		q.bring("strict/app", q.digests[called], q.sign(theirs, "strict/app:"+called, q.digests[called], 0))
		q.importTag("strict/app:" + called)
		q.registry.Inject("strict/app/manifests/"+called, 0, fault)
		q.tryTag("strict/app:"+called, pull.Limits{Attempts: 1, Stall: time.Second})
	}
	return q
}

// letUntil is when the exceptions of the policies end.
const letUntil = "2099-12-31T00:00:00Z"

// cellOf is how tables show a verdict.
func cellOf(verified string) string {
	if verified == "Excepted" {
		return "Excepted:2099-12-31"
	}
	return verified
}

// unanswered are tags, and how their registry does not answer for them: it refuses, hangs, is
// broken, asks for a token that it does not take again.
var unanswered = map[string]registrytest.Fault{
	"away": registrytest.Status(http.StatusForbidden, "DENIED"), "hangs": registrytest.StallHeaders(), "broken": registrytest.Status(http.StatusInternalServerError, "UNKNOWN"),
	"expired": registrytest.Status(http.StatusUnauthorized, "UNAUTHORIZED", "WWW-Authenticate", `Bearer error="invalid_token"`),
}

// question is one thing with several names, and its answer.
type question struct {
	repository, tag string // tag is empty where a digest is asked for
	called          string // the image
	namespace       string
	verified        string
	admitted        bool
	outdated        int32
	state           answers.State // Found if it is empty
	unknown         string        // a part of the answer that is not known as of now
}

// spelling is a name by which a question is asked, and how it is written.
type spelling struct{ form, text string }

// asked are the names by which a question is asked.
func (q *questions) asked(one question) []spelling {
	host, digest := q.registry.Host, q.digests[one.called]
	hex := strings.TrimPrefix(digest, "sha256:")
	repository := host + "/" + one.repository
	if one.tag != "" {
		all := []spelling{{"tag", repository + ":" + one.tag}, {"tag and spaces", " " + repository + ":" + one.tag + "\n"}}
		if one.repository != "strict/app" || one.tag != "v1.0" { // several have that tag
			all = append(all, spelling{"tag without a registry", one.repository + ":" + one.tag})
		}
		if below, ok := strings.CutPrefix(one.repository, "prod/"); ok {
			all = append(all, spelling{"mirror's tag", "mirror.example.com/copy/" + below + ":" + one.tag},
				spelling{"tag at a port", "MIRROR.example.com:443/copy/" + below + ":" + one.tag})
		}
		return all
	}
	all := []spelling{
		{"digest", repository + "@" + digest}, {"hex", repository + "@" + hex}, {"short hex", repository + "@" + hex[:12]}, {"short digest", repository + "@sha256:" + hex[:20]},
		{"tag and digest", repository + ":other@" + digest}, {"digest without a registry", one.repository + "@" + digest},
	}
	if below, ok := strings.CutPrefix(one.repository, "prod/"); ok {
		all = append(all, spelling{"mirror's digest", "mirror.example.com/copy/" + below + "@" + digest}, spelling{"mirror's short digest", "mirror.example.com/copy/" + below + "@" + hex[:12]})
	}
	return all
}

// One question has one answer, whichever door it is asked at and by whatever name. A review answers
// every question by every name. At the other doors, each question is asked by one name, and by each
// form of a name one question: with -exhaustive, every question by every name.
func TestOneQuestionHasOneAnswer(t *testing.T) {
	t.Parallel()
	oneCaller(t)
	q := newQuestions(t)
	tag := func(repository, tag, called, verified string, admitted bool) question {
		return question{repository: repository, tag: tag, called: called, verified: verified, admitted: admitted}
	}
	digest := func(repository, called, verified string, admitted bool) question {
		return question{repository: repository, called: called, verified: verified, admitted: admitted}
	}
	in := func(namespace string, one question) question { one.namespace = namespace; return one }
	outdated := func(n int32, one question) question { one.outdated = n; return one }
	gone := func(one question) question { one.state = answers.Gone; return one }
	unsure := func(part string, one question) question { one.unknown = part; return one }
	all := []question{
		tag("prod/app", "v1.0", "one", "True", true),
		tag("prod/app", "v2.0", "one", "False", false), // rolled back
		digest("prod/app", "one", "True", true),
		tag("prod/app", "v3.0", "three", "Unsigned", false),
		outdated(1, tag("prod/app", "moved", "three", "Unsigned", false)),
		digest("prod/app", "three", "Unsigned", false),
		tag("strict/app", "v1.0", "one", "Unsigned", false), // promoted without a signature
		digest("strict/app", "one", "Unsigned", false),
		tag("strict/app", "v2.0", "theirs", "True", true),
		digest("strict/app", "theirs", "True", true),
		tag("strict/app", "wrong", "wrong", "False", false),
		digest("strict/app", "wrong", "False", false),
		tag("free/copy", "v1.0", "one", "NoPolicy", true), // copied to where nobody asks
		digest("free/copy", "one", "NoPolicy", true),
		tag("free/signed", "v1.0", "free", "NoPolicy", true),
		digest("free/signed", "free", "NoPolicy", true),
		tag("free/plain", "v1.0", "plain", "NoPolicy", true),
		digest("free/plain", "plain", "NoPolicy", true),
		tag("both/app", "half", "half", "False", false),
		digest("both/app", "half", "False", false),
		tag("both/app", "whole", "whole", "True", true),
		digest("both/app", "whole", "True", true),
		tag("spaced/app", "v1.0", "spaced", "NoPolicy", true),
		in("team", tag("spaced/app", "v1.0", "spaced", "True", true)),
		in("other", tag("spaced/app", "v1.0", "spaced", "NoPolicy", true)),
		tag("spaced/app", "bare", "bare", "NoPolicy", true),
		in("team", tag("spaced/app", "bare", "bare", "Unsigned", false)),
		in("team", digest("spaced/app", "spaced", "True", true)),
		in("team", digest("spaced/app", "bare", "Unsigned", false)),
		// the cluster's policy covers it
		in("team", tag("prod/app", "v2.0", "one", "False", false)),
		tag("multi/app", "v1.0", "index", "True", true),
		digest("multi/app", "index", "True", true),
		digest("multi/app", "amd64", "ByIndex", true),
		tag("multi/app", "bare", "bare index", "Unsigned", false),
		digest("multi/app", "bare index", "Unsigned", false),
		digest("multi/app", "s390x", "Unsigned", false),
		tag("both/app", "again", "whole", "True", true),
		tag("free/staging", "v1.0", "promoted", "NoPolicy", true),
		digest("free/staging", "promoted", "NoPolicy", true),
		tag("prod/app", "v4.0", "promoted", "True", true),
		digest("prod/app", "promoted", "True", true),
		tag("excepted/app", "let", "let", "Excepted", true),
		tag("excepted/app", "again", "let", "False", false),
		digest("excepted/app", "let", "False", false),
		tag("excepted/app", "through", "through", "Excepted", true),
		digest("excepted/app", "through", "Excepted", true),
		tag("prod/app", "stale", "known", "True", true),
		digest("prod/app", "known", "True", true),
		tag("mirrored/app", "v1.0", "mirrored", "True", true),
		digest("mirrored/app", "mirrored", "True", true),
		tag("mirrored/app", "bare", "unmirrored", "Unsigned", false),
		digest("mirrored/app", "unmirrored", "Unsigned", false),
		tag("shadow/app", "bare", "unmirrored", "NoPolicy", true),
		gone(tag("prod/app", "gone", "deleted", "", false)),
		digest("prod/app", "deleted", "Unsigned", false),
		tag("either/app", "v1.0", "by old", "True", true),
		tag("either/app", "v1.1", "by old", "True", true),
		digest("either/app", "by old", "True", true),
		tag("either/app", "v2.0", "by new", "True", true),
		tag("either/app", "v2.1", "by new", "False", false),
		digest("either/app", "by new", "True", true),
		tag("either/app", "v3.0", "by neither", "Unsigned", false),
		digest("either/app", "by neither", "Unsigned", false),
	}
	for called := range unanswered {
		all = append(all, unsure("checked", tag("strict/app", called, called, "True", true)), digest("strict/app", called, "True", true))
	}
	// A pod for each name that pods can have.
	pods := map[string]string{}
	for i, one := range all {
		if one.namespace != "team" && one.namespace != "" || one.called == "deleted" {
			continue
		}
		name := fmt.Sprintf("pod-%d", i)
		reference := q.registry.Host + "/" + one.repository
		if one.tag != "" {
			reference += ":" + one.tag
		} else {
			reference += "@" + q.digests[one.called]
		}
		pods[fmt.Sprint(i)] = "prod:team:" + name
		q.runs(name, reference, q.digests[one.called])
	}
	soon(t, "the cluster's pods are known", func() bool {
		raw, err := q.review.client.Get().AbsPath(clusterPodsPath).DoRaw(t.Context())
		var list clusters.ClusterPodList
		return err == nil && json.Unmarshal(raw, &list) == nil && len(list.Items) == len(pods)+1
	})
	q.pruned = q.prune()
	t.Run("prune", func(t *testing.T) { prunesByEachVerdict(t, q) })
	n := 0
	for i, one := range all {
		names := q.asked(one)
		var asked []answers.Question
		for _, name := range names {
			asked = append(asked, answers.Question{Reference: name.text, Namespace: one.namespace})
		}
		got := q.review.ask(asked...)
		for j := range names {
			n++
			j = (i + j) % len(names) // the other doors take another one first of each question
			q.ask(one, i, names[j], &got[j])
		}
		if pod, ok := pods[fmt.Sprint(i)]; ok {
			q.askPod(one, pod)
		}
	}
	t.Logf("%d questions, by door: %v", n, q.doors)
	if n < 200 {
		t.Errorf("only %d questions", n)
	}
	t.Run("alternatives", func(t *testing.T) { sparedAreSaid(t, q) })
	t.Run("platform", func(t *testing.T) { platformIsChosen(t, q) })
	t.Run("each", func(t *testing.T) { eachIsShown(t, q) })
	t.Run("short", func(t *testing.T) { shortNamesAreSaid(t, q) })
	t.Run("pods", func(t *testing.T) { podsAreFound(t, q) })
	t.Run("mirror", func(t *testing.T) { mirrorsArePoliced(t, q) })
}

// ask compares the answer of a review with what is right, and has other doors answer the same
// question, which has a number.
func (q *questions) ask(one question, number int, name spelling, answer *answers.Answer) {
	q.t.Helper()
	text, digest := name.text, q.digests[one.called]
	wrong := func(door string, got any) {
		q.t.Helper()
		q.t.Errorf("%s of %q for %q says %v, want %s %s", door, text, one.namespace, got, one.called, one.verified)
	}
	// opens reports whether a door is asked: by this name, it is new to the question or to the form.
	opens := func(door string) bool {
		if !q.covered.isNew(fmt.Sprint(door, " of ", number), door+" by "+name.form) {
			return false
		}
		q.doors[door]++
		return true
	}

	q.doors["review"]++
	if one.state != "" {
		q.askLost(one, text, answer)
		return
	}
	switch {
	case one.unknown != "" && !slices.ContainsFunc(answer.Unknowns, func(u answers.UnknownPart) bool { return u.Part == one.unknown }):
		wrong("the review", fmt.Sprintf("%+v", answer.Unknowns))
	case answer.State != answers.Found || answer.Verdict == nil || answer.Meaning.Digest != digest:
		wrong("the review", fmt.Sprintf("%+v", answer))
		return
	case answer.Verdict.Verified != one.verified || answer.Running == nil || answer.Running.Outdated != one.outdated || answer.Meaning.Repository != q.registry.Host+"/"+one.repository || answer.Meaning.Tag != one.tag:
		wrong("the review", fmt.Sprintf("%+v %+v %+v", answer.Meaning, answer.Verdict, answer.Running))
	case (len(answer.Verdict.Missing) == 0) != (one.admitted && one.verified != "Excepted") && answer.Verdict.Policies != nil:
		wrong("the review", fmt.Sprintf("that %v are missing", answer.Verdict.Missing))
	}

	if isPullable(text) && opens("admission") {
		body := strings.Replace(string(review(strings.TrimSpace(text))), `"namespace":"team"`, fmt.Sprintf(`"namespace":%q`, cmpOr(one.namespace, "default")), 1)
		if got := askAdmission(q.t, q.http, q.Config.Host+admission.Path+"/prod?timeout=5s", []byte(body)); got.Allowed != one.admitted {
			wrong("admission", got)
		}
	}
	if one.namespace != "" {
		return // the verbs, the table and selectors ask for nobody's namespace
	}
	if isPullable(text) && opens("lists by reference") {
		q.askListsByReference(one, strings.TrimSpace(text), answer)
	}
	if opens("lists") {
		q.askLists(one, text, answer)
	}
	if opens("get") {
		code, stdout, stderr := tidewaiter(q.t, "get", text, "--kubeconfig", q.kubeconfig)
		cell := cellOf(one.verified)
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		if code != 0 || len(lines) != 2 || !strings.Contains(lines[1], " "+cell+" ") || !strings.HasPrefix(lines[1], strings.TrimPrefix(digest, "sha256:")[:12]) || one.tag != "" && !strings.Contains(lines[1], " "+one.tag+" ") {
			wrong("get", stdout+stderr)
		}
	}
	if opens("describe") {
		_, stdout, stderr := tidewaiter(q.t, "describe", "-o", "json", text, "--kubeconfig", q.kubeconfig)
		var report imageReport
		if err := json.Unmarshal([]byte(stdout), &report); err != nil || report.Digest != digest || report.Verified != one.verified || report.Running.Outdated != one.outdated {
			wrong("describe", stdout+stderr)
		}
	}
	if one.tag != "" && opens("history") {
		if _, stdout, stderr := tidewaiter(q.t, "history", "-o", "json", text, "--kubeconfig", q.kubeconfig); !strings.Contains(stdout, digest) {
			wrong("history", stdout+stderr)
		}
	}
	if opens("verify") {
		code, stdout, stderr := tidewaiter(q.t, "verify", "-o", "json", text, "--kubeconfig", q.kubeconfig)
		var verdict verdictReport
		want := map[string]int{"True": 0, "ByIndex": 0, "False": 1, "Unsigned": 1, "Excepted": 3}
		if _, ok := want[one.verified]; !ok {
			want[one.verified] = 2
		}
		if err := json.Unmarshal([]byte(stdout), &verdict); err != nil || verdict.Digest != digest || verdict.Verified != one.verified || code != want[one.verified] {
			wrong("verify", fmt.Sprint(code, stdout, stderr))
		}
	}
	if opens("pods") {
		code, stdout, stderr := tidewaiter(q.t, "pods", text, "--kubeconfig", q.kubeconfig)
		if runs := answer.Running.Pods > 0; code != 0 || runs != strings.Contains(stdout, digest[len("sha256:"):][:12]) || runs == strings.Contains(stderr, "No resources found") {
			wrong("pods", stdout+stderr)
		}
	}
}

// words are the verdicts by which a selector is tried on an image: its own verdict, and once for
// each verdict of an image every other.
func (q *questions) words(selector, verified string) (words []string) {
	for _, word := range allVerdicts {
		if q.covered.isNew(selector+word+" for "+verified) || word == verified {
			words = append(words, word)
		}
	}
	return words
}

// askPod asks about a pod that names what is asked about.
func (q *questions) askPod(one question, pod string) {
	q.t.Helper()
	q.doors["clusterpods"]++
	raw, err := q.review.client.Get().AbsPath(clusterPodsPath, url.PathEscape(pod)).DoRaw(q.t.Context())
	var got clusters.ClusterPod
	if err == nil {
		err = json.Unmarshal(raw, &got)
	}
	if err != nil {
		q.t.Fatal(err)
	}
	// Every pod is of the namespace team.
	if one.namespace == "" && strings.HasPrefix(one.repository, "spaced/") {
		return
	}
	if c := got.Spec.Containers[0]; c.Verified != one.verified || c.Digest != q.digests[one.called] || c.Outdated != "" {
		q.t.Errorf("the pod that names %s is %+v, want %s", c.Image, c, one.verified)
	}
	for _, verified := range q.words("verified=", one.verified) {
		var list clusters.ClusterPodList
		raw, err := q.review.client.Get().AbsPath(clusterPodsPath).Param("fieldSelector", "metadata.name="+pod+",verified="+verified).DoRaw(q.t.Context())
		if err == nil {
			err = json.Unmarshal(raw, &list)
		}
		if err != nil || (len(list.Items) == 1) != (verified == one.verified) {
			q.t.Errorf("%d pods that name %s are %s, it is %s: %v", len(list.Items), got.Spec.Containers[0].Image, verified, one.verified, err)
		}
	}
}

// Wherever a verdict is shown, it says which alternative an image does not meet, and need not.
func sparedAreSaid(t *testing.T, q *questions) {
	for called, spared := range map[string]string{"by old": "new", "by new": "old"} {
		name, met := q.registry.Host+"/either/app@"+q.digests[called], map[string]string{"new": "old", "old": "new"}[spared]
		if v := q.review.ask(answers.Question{Reference: name})[0].Verdict; !slices.Equal(v.Spared, []string{spared}) || len(v.Missing) > 0 || !slices.Equal(v.Policies, []string{"new", "old"}) {
			t.Errorf("a review of %s says %+v", name, v)
		}
		_, stdout, stderr := tidewaiter(t, "verify", name, "--kubeconfig", q.kubeconfig)
		if !strings.Contains(stdout, "verified: True (by policy "+met+" (not "+spared+"))") {
			t.Errorf("verify %s says %s%s", name, stdout, stderr)
		}
		_, stdout, stderr = tidewaiter(t, "describe", name, "--kubeconfig", q.kubeconfig)
		if !strings.Contains(stdout, met+" (not "+spared+")") {
			t.Errorf("describe %s says %s%s", name, stdout, stderr)
		}
		for selector, n := range map[string]int{"signatures.signer=" + met: 1, "signatures.signer=" + spared: 0} {
			if rows := q.table("images", "metadata.name="+q.digests[called]+","+selector); len(rows) != n {
				t.Errorf("%d images %s are found by %s", len(rows), called, selector)
			}
		}
	}
	for _, policy := range []string{"old", "new"} {
		_, stdout, stderr := tidewaiter(t, "impact", "--remove-policy", policy, "--kubeconfig", q.kubeconfig)
		if !strings.Contains(stdout, q.registry.Host+"/either/app") {
			t.Errorf("without %s an image is no longer trusted, and impact says %s%s", policy, stdout, stderr)
		}
	}
}

// isPullable reports whether a pod can have a text as its image.
func isPullable(text string) bool {
	_, digest, ok := strings.Cut(text, "@")
	return reference.NamesRegistry(strings.TrimSpace(text)) && (!ok || len(digest) == len("sha256:")+64)
}

func cmpOr(a, b string) string {
	if a == "" {
		return b
	}
	return a
}

// Pods are found by every name of what they run, what is outdated is said, and none is not the same
// as unknown.
func podsAreFound(t *testing.T, q *questions) {
	host := q.registry.Host
	for _, tt := range []struct {
		args []string
		code int
		says []string
		not  string
	}{
		{[]string{host + "/prod/app:moved"}, 0, []string{"prod:team:stays", q.digests["one"][7:19], q.digests["three"][7:19]}, ""},
		{[]string{"--outdated", host + "/prod/app:moved"}, 0, []string{"prod:team:stays"}, "pod-"},
		{[]string{"--outdated"}, 0, []string{"prod:team:stays"}, "pod-"},
		{[]string{"--outdated", host + "/prod/app"}, 0, []string{"prod:team:stays"}, "pod-"},
		{[]string{"--outdated", host + "/prod/app:v1.0"}, 0, []string{"No resources found"}, ""},
		{[]string{"app:moved"}, 0, []string{"prod:team:stays"}, ""},
		{[]string{host + "/prod/app"}, 0, []string{"prod:team:stays", "pod-0 "}, "strict"},
		{[]string{strings.TrimPrefix(q.digests["one"], "sha256:")[:12]}, 0, []string{"prod:team:stays", "pod-0 ", "pod-12 "}, "pod-3 "},
		// by its index, too
		{[]string{q.digests["amd64"][:20]}, 0, []string{"pod-30 ", "pod-31 ", "pod-32 "}, ""},
		{[]string{host + "/multi/app:v1.0"}, 0, []string{"pod-30 ", "pod-32 "}, ""},
		{[]string{"mirror.example.com/copy/app:moved"}, 0, []string{"prod:team:stays"}, ""},
		{[]string{host + "/prod/app:none"}, 1, []string{"nothing is known about " + host + "/prod/app:none"}, ""},
		{[]string{"sha256:0000"}, 1, []string{"begins with sha256:0000"}, ""},
		{nil, 0, []string{"prod:team:stays", "pod-0 ", "strict"}, ""},
		{[]string{"-A", "--cluster", "prod"}, 0, []string{"prod:team:stays", "pod-0 "}, ""},
		{[]string{"--cluster", "nosuch"}, 2, []string{"does not follow a cluster nosuch"}, ""},
	} {
		code, stdout, stderr := tidewaiter(t, append(append([]string{"pods"}, tt.args...), "--kubeconfig", q.kubeconfig)...)
		for _, part := range tt.says {
			if code != tt.code || !strings.Contains(stdout+stderr, part) || tt.not != "" && strings.Contains(stdout, tt.not) {
				t.Errorf("pods %v: exit code %d, want %d with %q and without %q:\n%s%s", tt.args, code, tt.code, part, tt.not, stdout, stderr)
			}
		}
	}

	// A cluster that is away is said to be, whoever asks.
	q.cluster.Hang(true)
	t.Cleanup(func() { q.cluster.Hang(false) })
	soon(t, "the cluster counts as away", func() bool {
		_, _, stderr := tidewaiter(t, "pods", host+"/prod/app:moved", "--kubeconfig", q.kubeconfig)
		return strings.Contains(stderr, "Warning: ") && strings.Contains(stderr, "prod")
	})
	if _, warnings := q.tableWarned("images", "references="+host+"/prod/app:moved"); len(warnings) == 0 || !strings.Contains(warnings[0], "prod") {
		t.Errorf("the table does not say that the cluster is away: %q", warnings)
	}
	answer := q.review.ask(answers.Question{Reference: host + "/prod/app:moved"})[0]
	if len(answer.Unknowns) == 0 || answer.Unknowns[0].Part != "running" {
		t.Errorf("a review does not say that the cluster is away: %+v", answer.Unknowns)
	}
	_, _, stderr := tidewaiter(t, "get", host+"/prod/app:moved", "--kubeconfig", q.kubeconfig)
	if !strings.Contains(stderr, "Warning: ") {
		t.Errorf("get does not say that the cluster is away: %s", stderr)
	}
}

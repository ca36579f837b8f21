package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/controllers/reverify"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
	"github.com/tidewaiter/tidewaiter/web/admin"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// rule is a policy of a world, as it may be changed.
type rule struct {
	name, namespace string
	scope, mode     string
	identity        string
	keys            []int // of world.keys; the last one is an OpenPGP key that expires
}

// world is a server with random images, tags, policies and pods.
type world struct {
	*harbour
	rand    *rand.Rand
	clock   *ahead
	cluster *clustertest.Cluster
	client  *dynamic.DynamicClient
	http    *http.Client
	review  reviewer
	keys    []*signaturestest.Key
	gpg     *signaturestest.GPG
	nobody  *signaturestest.Key // signs nothing
	rules   map[string]rule     // by namespace and name
	tags    []string            // without the host
	digests []string
	bare    []string // repository@digest
	pods    int
	deleted bool       // an Image has been
	builds  *rand.Rand // of packages
	// by digest, the minor versions of the packages that are known of an image
	lists map[string]map[string]int
}

// worldNamespaces are those whose pods ask; the first is of pods that no ImagePolicy is for.
var worldNamespaces = []string{"", "team"}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{
		harbour: &harbour{t: t, registry: registrytest.New(t), found: &brought{signatures: map[string][]imagev1.ImageSignature{}, annotations: map[string]map[string]string{}, fail: map[string]error{}}},
		rand:    rand.New(rand.NewPCG(seed, 0)), builds: rand.New(rand.NewPCG(seed, 1)), lists: map[string]map[string]int{}, clock: &ahead{}, cluster: clustertest.New(t), rules: map[string]rule{},
		gpg: signaturestest.NewGPG(t, "release", time.Now().Add(-time.Hour), 25*time.Hour), nobody: signaturestest.NewKey(t, signaturestest.P256),
	}
	for range 3 {
		w.keys = append(w.keys, signaturestest.NewKey(t, signaturestest.P256))
	}
	dir := t.TempDir()
	for file, text := range map[string]string{"prod.kubeconfig": string(w.cluster.Kubeconfig()), "config.yaml": "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.Config = serveWith(t, server.Options{DataDir: filepath.Join(dir, "data"), ConfigFile: filepath.Join(dir, "config.yaml"), Isolated: true, Clock: w.clock}, listen(t))
	w.Config.QPS = -1
	w.review = newReviewer(t, w.Config)
	var err error
	if w.images, err = imageclient.New(w.Config); err != nil {
		t.Fatal(err)
	}
	if w.client, err = dynamic.NewForConfig(w.Config); err != nil {
		t.Fatal(err)
	}
	if w.http, err = restclient.HTTPClientFor(w.Config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.http.CloseIdleConnections)
	if _, err := newClientset(t, w.Config).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.populate()
	return w
}

// pick picks one of several.
func pick[T any](w *world, all ...T) T { return all[w.rand.IntN(len(all))] }

var worldRepositories = []string{"a/one", "a/two", "b/one", "c/free"}

// signed are signatures of an image in a repository by random keys.
func (w *world) signed(tag, digest string) (all []imagev1.ImageSignature) {
	repository, _, _ := strings.Cut(tag, ":")
	for i, key := range w.keys {
		if w.rand.IntN(3) == 0 {
			all = append(all, w.sign(key, pick(w, repository, tag, w.tagOf(repository, i)), digest, 0))
		}
	}
	if w.rand.IntN(3) == 0 {
		content := w.gpg.SimpleSigning(w.t, digest, w.registry.Host+"/"+tag, time.Now().Add(-time.Minute))
		all = append(all, imagev1.ImageSignature{ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(digest, content)}, Type: signatures.TypeAtomic, Content: content})
	}
	return all
}

func (w *world) tagOf(repository string, i int) string { return fmt.Sprintf("%s:t%d", repository, i) }

// brings adds what a repository brings to a digest, unless it does already.
func (w *world) brings(tag, digest string) {
	repository, _, _ := strings.Cut(tag, ":")
	if bare := repository + "@" + digest; !slices.Contains(w.bare, bare) {
		w.bare = append(w.bare, bare)
		w.bring(repository, digest, w.signed(tag, digest)...)
	}
	if !slices.Contains(w.tags, tag) {
		w.tags = append(w.tags, tag)
	}
	w.importTag(tag)
}

// populate fills the world.
func (w *world) populate() {
	var children []string
	for i := range 9 {
		tag := w.tagOf(pick(w, worldRepositories...), w.rand.IntN(4))
		digest := pushed(w.t, w.registry, tag, fmt.Sprintf(`{"os":"linux","architecture":"amd64","config":{"Labels":{"n":"%d","maintainer":"team %d"}}}`, i, i), nil)
		w.digests = append(w.digests, digest)
		w.brings(tag, digest)
		if w.rand.IntN(2) == 0 { // promoted
			stored := w.get(digest)
			to := w.tagOf(pick(w, worldRepositories...), w.rand.IntN(4))
			w.registry.PushManifest(to, stored.DockerImageManifestMediaType, stored.Name, []byte(stored.DockerImageManifest))
			w.brings(to, digest)
		}
		repository, _, _ := strings.Cut(tag, ":")
		if repository == "a/one" {
			children = append(children, digest)
		}
	}
	for i, child := range children[:min(len(children), 2)] {
		// indexes that list one image each, in its repository
		stored := w.get(child)
		index := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":%d,"platform":{"os":"linux","architecture":"amd64"}}]}`, child, len(stored.DockerImageManifest))
		digest, tag := manifest.Digest([]byte(index)), fmt.Sprintf("a/one:multi%d", i)
		w.registry.PushManifest(tag, "application/vnd.oci.image.index.v1+json", digest, []byte(index))
		w.digests = append(w.digests, digest)
		w.bare = append(w.bare, "a/one@"+digest)
		w.bring("a/one", digest, w.sign(w.keys[i], "a/one", digest, 0))
		w.tags = append(w.tags, tag)
		w.importTag(tag)
	}
	for range 3 {
		w.put(w.newRule())
	}
	for i := range 8 {
		tag := pick(w, w.tags...)
		digest := pick(w, w.digests...) // often it is not what the tag leads to
		name := w.registry.Host + "/" + tag
		if answer := w.review.ask(answers.Question{Reference: name})[0]; w.rand.IntN(3) > 0 && answer.Meaning.Digest != "" {
			digest = answer.Meaning.Digest
		}
		if i == 7 { // it is not imported
			digest = manifest.Digest([]byte("unknown here"))
		}
		repository, _, _ := strings.Cut(tag, ":")
		if i%4 == 3 {
			name = w.registry.Host + "/" + repository + "@" + digest
		}
		w.cluster.Set(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: pick(w, "team", "other"), Name: fmt.Sprintf("pod-%d", i), CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: name}}},
			Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "main", ImageID: w.registry.Host + "/" + repository + "@" + digest}}},
		})
		w.pods++
	}
	soon(w.t, "the pods are known", func() bool { return len(w.verdictsOfPods()) == w.pods })
	for _, r := range w.rules { // an earlier sweep would judge by fewer of them
		soon(w.t, "the policies are in force", func() bool { return w.applied(r) })
	}
	w.review.swept()
}

// applied reports whether the server has read a policy as it is now.
func (w *world) applied(r rule) bool {
	w.t.Helper()
	o, err := w.policiesIn(r.namespace).Get(w.t.Context(), r.name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	if err != nil {
		w.t.Fatal(err)
	}
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, _ := c.(map[string]any)
		return condition["type"] == policyapi.ConditionApplied && condition["observedGeneration"] == o.GetGeneration()
	})
}

func (w *world) newRule() rule {
	r := rule{name: pick(w, "p0", "p1", "p2", "p3"), scope: pick(w, "a", "a/one", "b", "a/one:t1", ""), mode: pick(w, "", "enforce", "warn", "audit"), identity: pick(w, "", "{matchPolicy: MatchRepository}", "{matchPolicy: DigestOnly}")}
	if w.rand.IntN(3) == 0 {
		r.namespace = "team"
	}
	r.keys = []int{w.rand.IntN(4)}
	if more := w.rand.IntN(3); r.keys[0] != 3 && r.keys[0] != more && w.rand.IntN(2) == 0 {
		r.keys = append(r.keys, more)
	}
	return r
}

// document is a rule as YAML.
func (w *world) document(r rule) string {
	scope := strings.TrimSuffix(w.registry.Host+"/"+r.scope, "/")
	root := ""
	switch {
	case slices.Contains(r.keys, 3):
		root = signaturestest.TrustGPG(w.gpg.Public(w.t))
	case len(r.keys) == 0:
		root = signaturestest.TrustKey(w.nobody, nil)
	default:
		var pems []byte
		for _, key := range r.keys {
			pems = append(pems, w.keys[key].PEM...)
		}
		root = "{policyType: PublicKey, publicKey: {keyData: " + signaturestest.B64(pems) + "}}"
	}
	text := signaturestest.Document(r.name, `["`+scope+`"]`, root, r.identity)
	metadata := "metadata: {name: " + r.name
	if r.namespace != "" {
		text = strings.Replace(text, "kind: ClusterImagePolicy", "kind: ImagePolicy", 1)
		metadata += ", namespace: " + r.namespace
	}
	if r.mode != "" {
		metadata += `, annotations: {tidewaiter.dev/admission: ` + r.mode + `}`
	}
	return strings.Replace(text, "metadata: {name: "+r.name, metadata, 1)
}

func (w *world) policiesIn(namespace string) policies {
	if namespace == "" {
		return policies{w.client.Resource(policyapi.GroupVersion.WithResource("clusterimagepolicies")), w.t}
	}
	return policies{w.client.Resource(policyapi.GroupVersion.WithResource("imagepolicies")).Namespace(namespace), w.t}
}

// put creates or replaces a policy.
func (w *world) put(r rule) {
	w.t.Helper()
	in, o := w.policiesIn(r.namespace), object(w.t, w.document(r))
	_, err := in.Create(w.t.Context(), o, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // the server writes its status meanwhile
		err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
			old, err := in.Get(w.t.Context(), r.name, metav1.GetOptions{})
			if err == nil {
				o.SetResourceVersion(old.GetResourceVersion())
				_, err = in.Update(w.t.Context(), o, metav1.UpdateOptions{})
			}
			return err
		})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.rules[r.namespace+"/"+r.name] = r
}

// verdictsOfPods are the verdicts of the pods, by their names.
func (w *world) verdictsOfPods() map[string]string {
	w.t.Helper()
	raw, err := w.review.client.Get().AbsPath(clusterPodsPath).DoRaw(w.t.Context())
	var list clusters.ClusterPodList
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	all := map[string]string{}
	for i := range list.Items {
		all[list.Items[i].Name] = list.Items[i].Spec.Containers[0].Verified
	}
	return all
}

// asker is a reference, and the namespace whose pods ask for it.
type asker struct{ reference, namespace string }

// known is what is known of a reference.
type known struct {
	state    answers.State
	verified string
	denied   bool
	own      bool // policies of the namespace judge
}

// look asks about every reference, for the pods of every namespace.
func (w *world) look() map[asker]known {
	w.t.Helper()
	all := map[asker]known{}
	var questions []answers.Question
	for _, ref := range slices.Concat(w.tags, w.bare) {
		for _, namespace := range worldNamespaces {
			questions = append(questions, answers.Question{Reference: w.registry.Host + "/" + ref, Namespace: namespace})
		}
	}
	for i, answer := range w.review.ask(questions...) {
		a := asker{questions[i].Reference, questions[i].Namespace}
		k := known{state: answer.State}
		if v := answer.Verdict; v != nil {
			k.verified = v.Verified
			k.own = slices.ContainsFunc(v.Policies, func(p string) bool { return strings.HasPrefix(p, "team/") })
			in := cmp.Or(a.namespace, "other")
			body := bytes.Replace(review(a.reference), []byte(`"namespace":"team"`), []byte(`"namespace":"`+in+`"`), 1)
			k.denied = !askAdmission(w.t, w.http, w.Config.Host+admission.Path+"/prod?timeout=5s", body).Allowed
		}
		all[a] = k
	}
	return all
}

// swept has the server judge all images again, and returns once it has, with what follows from
// that.
func (r reviewer) swept() {
	r.t.Helper()
	ask := func(verb string) (p reverify.Progress) {
		raw, err := r.client.Verb(verb).AbsPath(admin.VerificationPath).DoRaw(r.t.Context())
		if err == nil {
			err = json.Unmarshal(raw, &p)
		}
		if err != nil {
			r.t.Fatal(err)
		}
		return p
	}
	asked := ask("POST").Sweep
	soon(r.t, "the sweep has ended", func() bool {
		p := ask("GET")
		return p.Sweep >= asked && !p.Running
	})
}

// built has an SBOM list other packages of a random image.
func (w *world) built() {
	w.t.Helper()
	digest := w.digests[w.builds.IntN(len(w.digests))]
	list := &packages.ImagePackages{ObjectMeta: metav1.ObjectMeta{Name: digest}, Sources: []packages.Source{{
		Repository: w.registry.Host + "/a/one", Manifest: digest, Blob: digest, Format: packages.FormatSPDX,
	}}}
	_, again := w.lists[digest]
	is := map[string]int{}
	for _, name := range []string{"zlib", "lodash"} {
		if w.builds.IntN(2) == 0 {
			is[name] = w.builds.IntN(4)
			version := fmt.Sprintf("1.%d.0", is[name])
			list.Sources[0].Packages = append(list.Sources[0].Packages, packages.Package{Name: name, Version: version, PURL: "pkg:npm/" + name + "@" + version})
		}
	}
	var err error
	if again {
		var old *packages.ImagePackages
		if old, err = w.images.GetPackages(w.t.Context(), digest, metav1.GetOptions{}); err == nil {
			list.ResourceVersion = old.ResourceVersion
			_, err = w.images.UpdatePackages(w.t.Context(), list, metav1.UpdateOptions{})
		}
	} else {
		_, err = w.images.CreatePackages(w.t.Context(), list, metav1.CreateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.lists[digest] = is
}

// comparePackages checks that a review of a package names the images that contain it, and returns
// what is wrong.
func (w *world) comparePackages() (wrong []string) {
	w.t.Helper()
	name, below := []string{"zlib", "lodash"}[w.builds.IntN(2)], w.builds.IntN(5)
	asked, want, named := fmt.Sprintf("%s@<1.%d.0", name, below), []string{}, []string{}
	if below == 4 {
		asked = "pkg:npm/" + name // every version
	}
	for _, digest := range w.digests {
		if minor, has := w.lists[digest][name]; has && minor < below {
			want = append(want, digest)
		}
	}
	for _, row := range w.foresee(answers.ImpactReviewSpec{Package: asked}).Rows {
		if named = append(named, row.Image); row.Effect != answers.Contains || row.Packages[0].Name != name {
			wrong = append(wrong, fmt.Sprintf("%s: %+v", asked, row))
		}
	}
	slices.Sort(want)
	slices.Sort(named)
	if named = slices.Compact(named); !slices.Equal(named, want) {
		wrong = append(wrong, fmt.Sprintf("%s is said to be in %v, and is in %v", asked, named, want))
	}
	return wrong
}

// foresee asks what an act would change.
func (w *world) foresee(spec answers.ImpactReviewSpec) *answers.ImpactReviewStatus {
	w.t.Helper()
	review, err := w.review.impact(spec)
	if err != nil {
		w.t.Fatalf("%+v: %v", spec, err)
	}
	return &review.Status
}

// impact sends a review of an act.
func (r reviewer) impact(spec answers.ImpactReviewSpec) (*answers.ImpactReview, error) {
	r.t.Helper()
	body, err := json.Marshal(answers.ImpactReview{TypeMeta: metav1.TypeMeta{APIVersion: answers.GroupVersion.String(), Kind: answers.ImpactKind}, Spec: spec})
	if err != nil {
		r.t.Fatal(err)
	}
	raw, err := r.client.Post().AbsPath(impactsPath).Body(body).SetHeader("Content-Type", "application/json").DoRaw(r.t.Context())
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, raw)
	}
	var got answers.ImpactReview
	return &got, json.Unmarshal(raw, &got)
}

// act chooses a random act. do does it.
func (w *world) act() (what string, spec answers.ImpactReviewSpec, do func()) {
	rules := slices.Sorted(maps.Keys(w.rules))
	switch n := w.rand.IntN(12); {
	case n < 4 || len(rules) == 0 && n < 8:
		r := w.newRule()
		raw, err := object(w.t, w.document(r)).MarshalJSON()
		if err != nil {
			w.t.Fatal(err)
		}
		return fmt.Sprintf("apply %+v", r), answers.ImpactReviewSpec{ApplyPolicies: []runtime.RawExtension{{Raw: raw}}}, func() { w.put(r) }
	case n < 6:
		key := pick(w, rules...)
		r := w.rules[key]
		return "remove " + key, answers.ImpactReviewSpec{RemovePolicy: strings.TrimPrefix(key, "/")}, func() {
			if err := w.policiesIn(r.namespace).Delete(w.t.Context(), r.name, metav1.DeleteOptions{}); err != nil {
				w.t.Fatal(err)
			}
			delete(w.rules, key)
		}
	case n < 8:
		revoked := w.rand.IntN(4)
		signer := "" // in each form
		if revoked == 3 {
			signer = pick(w, fmt.Sprintf("%X", w.gpg.Entity.PrimaryKey.Fingerprint), "release <release@example.com>")
		} else {
			signer = pick(w, string(w.keys[revoked].PEM), w.keys[revoked].ID(w.t))
		}
		return fmt.Sprintf("revoke key %d", revoked), answers.ImpactReviewSpec{RevokeSigner: signer}, func() {
			for _, key := range rules {
				if r := w.rules[key]; slices.Contains(r.keys, revoked) {
					r.keys = slices.DeleteFunc(slices.Clone(r.keys), func(k int) bool { return k == revoked })
					w.put(r)
				}
			}
		}
	case n < 10:
		digest := pick(w, w.digests...)
		return "delete " + digest, answers.ImpactReviewSpec{Delete: digest}, func() {
			image := w.get(digest)
			image.Annotations[annotation.AllowDelete] = strings.Join([]string{annotation.TaggedReason, annotation.UsedReason, annotation.NeededReason, annotation.UnknownReason, annotation.WorkloadsReason}, ",")
			if _, err := w.images.Update(w.t.Context(), image, metav1.UpdateOptions{}); err != nil {
				w.t.Fatal(err)
			}
			if err := w.images.Delete(w.t.Context(), digest, metav1.DeleteOptions{}); err != nil {
				w.t.Fatal(err)
			}
			w.digests = slices.DeleteFunc(w.digests, func(d string) bool { return d == digest })
		}
	case n < 11:
		tag := pick(w, w.tags...)
		repository, name, _ := strings.Cut(tag, ":")
		return "untag " + tag, answers.ImpactReviewSpec{Delete: w.registry.Host + "/" + tag}, func() {
			w.registry.Inject(repository+"/manifests/"+name, 0, registrytest.Status(http.StatusNotFound, "MANIFEST_UNKNOWN"))
			w.tryTag(tag, pull.Limits{})
		}
	}
	at := w.clock.Now().Add(pick(w, time.Hour, 13*time.Hour))
	return "wait until " + at.String(), answers.ImpactReviewSpec{At: &metav1.Time{Time: at}}, func() { w.clock.by.Add(int64(at.Sub(w.clock.Now()))) }
}

// What a review foretells is what happens: in random worlds, each act is reviewed, done, and
// everything is asked again.
func TestImpactIsWhatHappens(t *testing.T) {
	t.Parallel()
	seeds, acts := []uint64{0, 6, 13, 18, 23}, 12
	if testing.Short() {
		seeds, acts = seeds[:1], 4 // the race detector takes several times as long
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, seed)
			touched := 0
			for range acts {
				what, spec, do := w.act()
				before, pods := w.look(), w.verdictsOfPods()
				if spec.Delete != "" && before[asker{spec.Delete, ""}].state == answers.Gone {
					continue
				}
				got := w.foresee(spec)
				if spec.Delete == "" && !slices.ContainsFunc(got.Unknowns, func(u answers.UnknownPart) bool { return strings.Contains(u.Reason, "not imported: ") }) {
					t.Errorf("%s: it is not said that an image which runs is not imported: %v", what, got.Unknowns)
				}
				do()
				w.deleted = w.deleted || spec.Delete != ""
				// The server learns of an act from a watch, so a sweep may have begun before that.
				var wrong []string
				for sweeps := 0; sweeps == 0 || len(wrong) > 0 && sweeps < 100; sweeps++ {
					w.review.swept()
					wrong = append(w.compare(got, before, w.look()), w.comparePods(spec, got, pods)...)
				}
				w.built()
				if wrong = append(wrong, w.comparePackages()...); len(wrong) > 0 {
					t.Fatalf("%s:\n%s", what, strings.Join(wrong, "\n"))
				}
				touched += len(got.Rows)
			}
			t.Logf("%d rows", touched)
			if touched == 0 {
				t.Error("no act has touched anything")
			}
		})
	}
}

// compare compares what was foretold with what is so after an act, and returns what is wrong.
func (w *world) compare(got *answers.ImpactReviewStatus, before, after map[asker]known) (wrong []string) {
	rows := map[asker]answers.ImpactRow{}
	for _, row := range got.Rows {
		if row.Before.State == answers.Found || row.Effect == answers.Deleted && row.Before.State != answers.Moved {
			// only pods are judged by what leads nowhere
			rows[asker{row.Reference, row.Namespace}] = row
		}
	}
	side := func(s answers.ImpactSide) known {
		k := known{state: s.State, denied: s.Admission == "denied"}
		if s.Verdict != nil {
			k.verified = s.Verdict.Verified
		}
		return k
	}
	for a, was := range before {
		is, own := after[a], was.own || after[a].own
		was.own, is.own = false, false
		want := was
		row, ok := rows[a]
		if everybody, has := rows[asker{a.reference, ""}]; !ok && has && (everybody.Effect == answers.Deleted || !own) {
			row, ok = everybody, true
		}
		if ok {
			want = side(row.After)
			if from := side(row.Before); row.Namespace == a.namespace && from != was {
				wrong = append(wrong, fmt.Sprintf("%v is %+v before, and the review says %+v", a, was, from))
			}
		}
		if is != want {
			wrong = append(wrong, fmt.Sprintf("%v was %+v and is %+v; the review foretold %+v (a row: %v)", a, was, is, want, ok))
		}
	}
	return wrong
}

// comparePods checks that the pods whose verdicts change are those that were counted.
func (w *world) comparePods(spec answers.ImpactReviewSpec, got *answers.ImpactReviewStatus, before map[string]string) (wrong []string) {
	if spec.Delete != "" {
		return nil // a pod keeps running what is deleted
	}
	var changed []string
	after := w.verdictsOfPods()
	for pod, was := range before {
		if after[pod] != was {
			changed = append(changed, fmt.Sprintf("%s (%s, %s)", pod, was, after[pod]))
		}
	}
	n := int(got.Summary.Pods)
	onlyVerdicts := !slices.ContainsFunc(got.Rows, func(r answers.ImpactRow) bool { return r.Before.Verdict.Verified == r.After.Verdict.Verified })
	// A pod whose digest no image has any more may run what the tag that it names has led to.
	doubt := slices.ContainsFunc(got.Unknowns, func(u answers.UnknownPart) bool {
		return u.Part == "act" || u.Part == "running" && w.deleted
	})
	if got.Summary.PodsComplete == doubt || n < len(changed) || onlyVerdicts && n != len(changed) {
		wrong = append(wrong, fmt.Sprintf("%d pods were foretold, complete %v, and the verdicts of %v have changed: %+v, %v", n, got.Summary.PodsComplete, changed, got.Summary, got.Unknowns))
	}
	return wrong
}

// A review says what is wrong with an act, and which right its caller lacks; what a caller may not
// see is unknown.
func TestImpactReviews(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	config, err := kubeconfigConfig(l.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	r := newReviewer(t, config)
	for body, want := range map[string]string{
		`{}`: "needs exactly one act",
		`{"layer":"sha256:00","at":"2100-01-01T00:00:00Z"}`:        "needs exactly one act",
		`{"layer":"sha256:00"}`:                                    "is not a digest",
		`{"loseRegistry":"/"}`:                                     "spec.loseRegistry",
		`{"delete":"` + strings.Repeat("a", 1025) + `"}`:           "Too long",
		`{"removePolicy":"none"}`:                                  "no policy has the name",
		`{"revokeSigner":"-----BEGIN PUBLIC KEY-----"}`:            "spec.revokeSigner",
		`{"at":"2000-01-01T00:00:00Z"}`:                            "has passed",
		`{"layer":"` + l.digests["new"] + `","maxRows":5001}`:      "is from 1 to 5000",
		`{"applyPolicies":[{"kind":"Pod","apiVersion":"v1"}]}`:     "spec.applyPolicies[0]",
		`{"applyPolicies":[` + strings.Repeat("{},", 100) + `{}]}`: "must have at most 100 items",
		`{"applyPolicies":[{"apiVersion":"config.openshift.io/v1","kind":"ClusterImagePolicy","metadata":{"name":"a"},"spec":{"scopes":["a.example.com"],"policy":{"rootOfTrust":{"policyType":"PublicKey","publicKey":{"keyPath":"/etc/passwd"}}}}}]}`: "only for documents in files",
	} {
		raw, err := r.client.Post().AbsPath(impactsPath).Body([]byte(`{"apiVersion":"tidewaiter.dev/v1","kind":"ImpactReview","spec":`+body+`}`)).SetHeader("Content-Type", "application/json").DoRaw(t.Context())
		if err == nil || !strings.Contains(string(raw), want) {
			t.Errorf("%.80s is answered %s, want %q", body, raw, want)
		}
	}
	layer := answers.ImpactReviewSpec{Layer: manifest.Digest([]byte("base"))}
	admin := newClientset(t, config)
	bind(t, admin, "viewer", "tidewaiter:image-viewer", "")
	got, err := newReviewer(t, as(config, "viewer")).impact(layer)
	if err != nil || !got.Status.Summary.PodsComplete || got.Status.Summary.References == 0 || !slices.ContainsFunc(got.Status.Unknowns, func(u answers.UnknownPart) bool {
		return u.Part == "running" && strings.Contains(u.Reason, `cannot list resource "clusterpods"`)
	}) {
		t.Errorf("who may not list pods is answered %+v, %v", got, err)
	}
	if _, err := newReviewer(t, as(config, "nobody")).impact(layer); err == nil || !strings.Contains(err.Error(), "cannot create resource") {
		t.Errorf("who may not ask is answered %v", err)
	}
	if list, err := l.images.List(t.Context(), metav1.ListOptions{FieldSelector: "layer=" + layer.Layer}); err != nil || len(list.Items) != 2 {
		t.Errorf("the layer selects %d images, %v", len(list.Items), err)
	}
	// the index has the same for both
	other := layer.Layer[:len("sha256:")+16] + strings.Repeat("0", 48)
	if list, err := l.images.List(t.Context(), metav1.ListOptions{FieldSelector: "layer=" + other}); err != nil || len(list.Items) != 0 {
		t.Errorf("a layer whose digest begins alike selects %d images, %v", len(list.Items), err)
	}
	if _, err := l.images.List(t.Context(), metav1.ListOptions{FieldSelector: "layer=sha256:00"}); !apierrors.IsBadRequest(err) {
		t.Errorf("the beginning of a layer's digest selects: %v", err)
	}
	layer.MaxRows = 1
	if got, err := r.impact(layer); err != nil || len(got.Status.Rows) != 1 || int(got.Status.OmittedRows) != int(got.Status.Summary.References)-1 {
		t.Errorf("one row: %+v, %v", got, err)
	}
}

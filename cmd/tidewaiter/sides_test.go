package main

import (
	"cmp"
	"encoding/base64"
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

	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// place is a repository.
type place struct {
	at         *harbour
	repository string // without the host
	mirror     string // another name of the repository
}

func (p *place) name() string { return p.at.registry.Host + "/" + p.repository }

// sideRule is a policy.
type sideRule struct {
	name, namespace string // whose pods it is for; "" for all
	scope           string
	signer          string // whose signature it demands
	lax             bool   // a signature of the repository will do, for whichever tag
	excepted        string // a reference that an exception lets through
	group           string // of the policies of a group for one scope, one must be met; "" for none
}

// document is the policy for the server.
func (r *sideRule) document(keys map[string]*signaturestest.Key) string {
	identity := ""
	if r.lax {
		identity = "{matchPolicy: MatchRepository}"
	}
	text := signaturestest.Document(r.name, `["`+r.scope+`"]`, signaturestest.TrustKey(keys[r.signer], nil), identity)
	if r.excepted != "" {
		text += "  exceptions:\n  - {images: [" + r.excepted + "], until: \"" + letUntil + "\", by: ann@example.com, reason: it is rebuilt tomorrow}\n"
	}
	if r.group != "" {
		text = strings.Replace(text, "spec:\n", "spec:\n  alternatives: "+r.group+"\n", 1)
	}
	if r.namespace != "" {
		text = strings.NewReplacer("kind: ClusterImagePolicy", "kind: ImagePolicy", "{name: "+r.name+"}", "{name: "+r.name+", namespace: "+r.namespace+"}").Replace(text)
	}
	return text
}

// rule is the policy for a place and the pods of a namespace: the cluster's, else the namespace's
// own, and of several the one with the longest scope. It is nil if none covers the place.
func (s *sides) rule(p *place, namespace string) (by *sideRule) {
	for _, of := range []string{"", namespace} {
		for _, r := range s.rules {
			if r.namespace == of && (p.name() == r.scope || strings.HasPrefix(p.name(), r.scope+"/")) && (by == nil || len(r.scope) > len(by.scope)) {
				by = r
			}
		}
		if by != nil {
			return by
		}
	}
	return nil
}

// alternatives are rule and the others of its group for the same scope.
func (s *sides) alternatives(p *place, namespace string) (all []*sideRule) {
	by := s.rule(p, namespace)
	for _, r := range s.rules {
		if by != nil && (r == by || r.group != "" && r.group == by.group && r.namespace == by.namespace && r.scope == by.scope) {
			all = append(all, r)
		}
	}
	return all
}

// signing is a signature of an image: whose, and for which tag of its repository.
type signing struct{ signer, tag string }

// tagOf is a tag of a place.
type tagOf struct {
	*place
	tag string
}

func (t tagOf) String() string { return t.name() + ":" + t.tag }

// lose has the registry have the tag no longer.
func (t tagOf) lose() {
	t.at.registry.Inject(t.repository+"/manifests/"+t.tag+"$", 0, registrytest.Status(http.StatusNotFound, "MANIFEST_UNKNOWN"))
}

// sidePod is a pod.
type sidePod struct {
	cluster, namespace, name string
	containers               []sideContainer
}

func (p *sidePod) String() string { return p.cluster + ":" + p.namespace + ":" + p.name }

// sideContainer is a container: what it names, and what runs.
type sideContainer struct {
	image   string // as the pod names it
	of      *place
	tag     string // "" if a digest is named
	imageID string // as the node tells it
	digest  string // what the image ID means, "" of a container that has not started
}

// sides is a server, and beside it what is so, as a plain model that is asked by rules of its own:
// two registries and the name of a mirror, tags that moved or are gone, copies, signatures for
// other tags, policies of all and of a namespace, and an exception. Pods of two clusters and of the
// server run what their tag leads to, or led to, have not started, tell the digest of a config, or
// run what is not imported.
type sides struct {
	*questions
	rand     *rand.Rand
	core     kubernetes.Interface
	clusters map[string]*clustertest.Cluster
	data     string
	away     bool // a cluster does not answer

	keys   map[string]*signaturestest.Key
	rules  []*sideRule
	ear    *ear // is told what happens
	places []*place
	leads  map[tagOf]string // digests; "" of a tag that is gone
	led    map[tagOf][]string
	began  map[tagOf]int        // how many of these there were when the pods were created
	in     map[string][]*place  // where an image is, by digest
	signed map[string][]signing // by place and digest
	pods   []*sidePod
	// manifests are what was pushed, by digest
	manifests map[string]string
	done      map[string]int // acts, by what they change
	turns     map[string]int // how often each door was asked
}

// sideNamespaces are those of pods. A policy is for the first alone.
var sideNamespaces = []string{"team", "other"}

// excepted is the tag that an exception lets through where a signature of the repository will do.
const excepted = "t0"

// verdict is what is right about an image in a place under a tag, or by its digest, for the pods of
// a namespace.
func (s *sides) verdict(p *place, tag, digest, namespace string) string {
	by := s.alternatives(p, namespace)
	if len(by) == 0 {
		return "NoPolicy"
	}
	signatures := s.signed[p.name()+"@"+digest]
	for _, one := range signatures {
		if slices.ContainsFunc(by, func(r *sideRule) bool {
			return one.signer == r.signer && (r.lax || tag == "" || tag == one.tag)
		}) {
			return "True"
		}
	}
	switch {
	case tag != "" && slices.ContainsFunc(by, func(r *sideRule) bool { return r.excepted == p.name()+":"+tag }):
		return "Excepted"
	case len(signatures) == 0:
		return "Unsigned"
	}
	return "False"
}

// runs is the digest of what a container runs, or will.
func (s *sides) runs(c *sideContainer) string {
	if c.digest == "" && c.tag != "" {
		return s.leads[tagOf{c.of, c.tag}]
	}
	return c.digest
}

// isStored reports whether an image is imported.
func (s *sides) isStored(digest string) bool { return len(s.in[digest]) > 0 }

// judged is the verdict for what a container names.
func (s *sides) judged(p *sidePod, c *sideContainer) string {
	digest := s.runs(c)
	if !s.isStored(digest) || !slices.Contains(s.in[digest], c.of) {
		return "Unknown"
	}
	return s.verdict(c.of, c.tag, digest, p.namespace)
}

// reason is why a container has its verdict.
func (s *sides) reason(p *sidePod, c *sideContainer) string {
	verified := s.judged(p, c)
	if verified != "False" {
		return map[string]string{"True": "SignatureVerified", "NoPolicy": "NoMatchingPolicy", "Excepted": "Excepted", "Unknown": "NotImported"}[verified]
	}
	for _, one := range s.signed[c.of.name()+"@"+s.runs(c)] {
		if slices.ContainsFunc(s.alternatives(c.of, p.namespace), func(r *sideRule) bool { return r.signer == one.signer }) {
			return "SignedIdentityMismatch" // it is for another tag
		}
	}
	return "NoMatchingKey"
}

// outdated is what the tag of a container leads to now, if it runs something else.
func (s *sides) outdated(c *sideContainer) string {
	if s.drift(c) == "true" {
		return s.leads[tagOf{c.of, c.tag}]
	}
	return ""
}

// drifts are the values of whether something is outdated, that which decides for a pod first.
var drifts = []string{"true", "unknown", "false"}

// drift is whether a container is outdated: unknown if it does not tell what it runs, if its tag is
// gone or was never imported, and if that leads to what is not stored: it may list what runs.
func (s *sides) drift(c *sideContainer) string {
	switch now := s.leads[tagOf{c.of, c.tag}]; {
	case c.tag == "":
		return "false"
	case now == "" || c.digest == "" || now != c.digest && !s.isStored(now):
		return "unknown"
	case now != c.digest:
		return "true"
	}
	return "false"
}

// driftOf is whether one of some containers is outdated.
func (s *sides) driftOf(all []sideContainer) string {
	for _, value := range drifts[:2] {
		if slices.ContainsFunc(all, func(c sideContainer) bool { return s.drift(&c) == value }) {
			return value
		}
	}
	return "false"
}

// podsSo are the pods of which that is so.
func (s *sides) podsSo(value string) (names []string) {
	for _, p := range s.pods {
		if s.driftOf(p.containers) == value {
			names = append(names, p.String())
		}
	}
	slices.Sort(names)
	return names
}

// mayRun are the digests that a container may run beside the one for which it counts: the pod has
// not started, or tells a digest that no image has, and its tag has led to them since the pod was
// created.
func (s *sides) mayRun(p *sidePod, c *sideContainer) (digests []string) {
	if c.tag == "" || s.isStored(c.digest) {
		return nil
	}
	tag := tagOf{c.of, c.tag}
	led := slices.Clone(s.led[tag])
	if c.digest != "" && (c.digest == s.leads[tag] || slices.Contains(led, c.digest)) {
		return nil // it is a manifest of the tag
	}
	if p.cluster == "local" { // it was created when the world began
		led = led[s.began[tag]:]
	}
	led = append(led, s.leads[tag])
	return slices.DeleteFunc(led, func(digest string) bool { return digest == "" || digest == s.runs(c) })
}

// unsure reports whether a pod may run an image that its tag led to.
func (s *sides) unsure(digest string) bool {
	return len(s.podsWith(func(p *sidePod, c *sideContainer) bool { return slices.Contains(s.mayRun(p, c), digest) })) > 0
}

// podsWith are the pods of which is says so of a container.
func (s *sides) podsWith(is func(*sidePod, *sideContainer) bool) (names []string) {
	for _, p := range s.pods {
		if slices.ContainsFunc(p.containers, func(c sideContainer) bool { return is(p, &c) }) {
			names = append(names, p.String())
		}
	}
	slices.Sort(names)
	return names
}

// podsJudged are the pods with a container that has a verdict.
func (s *sides) podsJudged(verified string) []string {
	return s.podsWith(func(p *sidePod, c *sideContainer) bool { return s.judged(p, c) == verified })
}

// podsOf are the pods that run an image.
func (s *sides) podsOf(digest string) []string {
	return s.podsWith(func(_ *sidePod, c *sideContainer) bool { return s.runs(c) == digest })
}

// ofSide picks one of several.
func ofSide[T any](s *sides, all ...T) T { return all[s.rand.IntN(len(all))] }

// newSides makes a world from a seed.
func newSides(t *testing.T, seed uint64) *sides {
	t.Helper()
	found := &brought{signatures: map[string][]imagev1.ImageSignature{}, annotations: map[string]map[string]string{}, fail: map[string]error{}}
	a, b := &harbour{t: t, registry: registrytest.New(t), found: found}, &harbour{t: t, registry: registrytest.New(t), found: found}
	s := &sides{
		questions: &questions{harbour: a, digests: map[string]string{}, doors: map[string]int{}, covered: covering{}}, rand: rand.New(rand.NewPCG(seed, 0)),
		clusters: map[string]*clustertest.Cluster{"east": clustertest.New(t), "west": clustertest.New(t)},
		leads:    map[tagOf]string{}, led: map[tagOf][]string{}, began: map[tagOf]int{}, in: map[string][]*place{}, signed: map[string][]signing{}, manifests: map[string]string{}, done: map[string]int{}, turns: map[string]int{},
		places: []*place{
			{at: a, repository: "prod/app", mirror: "mirror.example.com/copy/app"}, {at: a, repository: "prod/db", mirror: "mirror.example.com/copy/db"},
			{at: a, repository: "lax/app"}, {at: a, repository: "team/app"}, {at: a, repository: "free/app"}, {at: b, repository: "strict/app"}, {at: b, repository: "copies/app"},
		},
		keys: map[string]*signaturestest.Key{}, ear: newEar(t),
	}
	for _, signer := range []string{"ours", "theirs", "nobody"} {
		s.keys[signer] = signaturestest.NewKey(t, signaturestest.P256)
	}
	dir, host := t.TempDir(), a.registry.Host
	s.rules = []*sideRule{
		{name: "prod", scope: host + "/prod", signer: "ours"}, {name: "strict", scope: b.registry.Host + "/strict", signer: "theirs", lax: true, group: "release"},
		// One of the two will do: for the other, a signature is for its tag alone.
		{name: "strict-too", scope: b.registry.Host + "/strict", signer: "ours", group: "release"},
		{name: "lax", scope: host + "/lax", signer: "ours", lax: true, excepted: host + "/lax/app:" + excepted},
		// What a policy of the cluster covers is not for the namespace's to judge.
		{name: "ours", namespace: "team", scope: host + "/team", signer: "ours", lax: true}, {name: "idle", namespace: "team", scope: host + "/prod", signer: "ours", lax: true},
	}
	for file, text := range map[string]string{
		"secret":          "whsec_" + base64.StdEncoding.EncodeToString([]byte(s.ear.secret)),
		"east.kubeconfig": string(s.clusters["east"].Kubeconfig()), "west.kubeconfig": string(s.clusters["west"].Kubeconfig()),
		"config.yaml": "clusters:\n- {name: east, kubeconfig: east.kubeconfig, importRunning: false}\n- {name: west, kubeconfig: west.kubeconfig, importRunning: false}\nimportRunning: false\n" +
			"notify:\n- {name: ci, url: \"" + s.ear.URL + "\", insecure: true, secretFile: secret}\n" +
			"imageTagMirrors:\n- {source: " + host + "/prod, mirrors: [mirror.example.com/copy]}\n" +
			"imageDigestMirrors:\n- {source: " + host + "/prod, mirrors: [mirror.example.com/copy]}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.data = filepath.Join(dir, "data")
	// Metrics are of a process.
	a.Config = runProcess(t, s.data, "--config", filepath.Join(dir, "config.yaml")).Config
	a.Config.QPS = -1
	s.kubeconfig, s.review, b.Config = server.KubeconfigPath(s.data), newReviewer(t, a.Config), a.Config
	var err error
	if a.images, err = imageclient.New(a.Config); err != nil {
		t.Fatal(err)
	}
	b.images = a.images
	if s.http, err = restclient.HTTPClientFor(a.Config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.http.CloseIdleConnections)
	s.core = kubernetes.NewForConfigOrDie(newAPITarget(a.Config).Config)
	for _, namespace := range sideNamespaces {
		if _, err := s.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range s.rules {
		s.apply(r)
	}
	s.fill()
	s.start()
	return s
}

// apply has a policy in force.
func (s *sides) apply(r *sideRule) {
	s.t.Helper()
	if _, err := s.policiesIn(r.namespace).apply(r.document(s.keys)); err != nil {
		s.t.Fatal(err)
	}
}

// policiesIn are the policies of a namespace; "" is the cluster.
func (s *sides) policiesIn(namespace string) policies {
	s.t.Helper()
	if namespace == "" {
		return policiesOf(s.t, s.Config)
	}
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		s.t.Fatal(err)
	}
	return policies{client.Resource(policyapi.GroupVersion.WithResource("imagepolicies")).Namespace(namespace), s.t}
}

// sideLayers are how many layers there are. An image has one of them.
const sideLayers = 4

// put has a tag lead to an image, which is imported by it.
func (s *sides) put(tag tagOf, digest, raw string) {
	for i := range sideLayers {
		tag.at.registry.PushLayer(tag.repository, static.NewLayer(fmt.Append(nil, "layer ", i), types.OCILayer))
	}
	tag.at.registry.PushManifest(tag.repository+":"+tag.tag, "application/vnd.oci.image.manifest.v1+json", digest, []byte(raw))
	if !slices.Contains(s.in[digest], tag.place) {
		s.in[digest] = append(s.in[digest], tag.place)
		var all []imagev1.ImageSignature
		for _, one := range ofSide(s, nil, []signing{{"ours", tag.tag}}, []signing{{"ours", tag.tag}}, []signing{{"ours", "t9"}}, []signing{{"theirs", tag.tag}}, []signing{{"ours", tag.tag}, {"theirs", tag.tag}}) {
			s.signed[tag.name()+"@"+digest] = append(s.signed[tag.name()+"@"+digest], one)
			all = append(all, tag.at.sign(s.keys[one.signer], tag.repository+":"+one.tag, digest, 0))
		}
		tag.at.bring(tag.repository, digest, all...)
	}
	tag.at.importTag(tag.repository + ":" + tag.tag)
	if before := s.leads[tag]; before != digest {
		s.led[tag] = append(s.led[tag], before)
		s.leads[tag] = digest
	}
}

// tag is a random tag of a random place.
func (s *sides) tag() tagOf { return tagOf{ofSide(s, s.places...), fmt.Sprint("t", s.rand.IntN(3))} }

// fill pushes and imports images, moves tags to others, and deletes some.
func (s *sides) fill() {
	for i := range 18 {
		tag := s.tag()
		raw := ""
		digest := pushed(s.t, tag.at.registry, tag.repository+":"+tag.tag, fmt.Sprintf(`{"os":"linux","architecture":"amd64","config":{"Labels":{"n":"%d"}}}`, i), func(text string) string {
			raw = strings.Replace(text, manifest.Digest([]byte("a layer")), manifest.Digest(fmt.Append(nil, "layer ", i%sideLayers)), 1)
			return raw
		})
		s.manifests[digest] = raw
		s.put(tag, digest, raw)
		for range s.rand.IntN(3) { // a copy needs the image's config
			to := s.tag()
			if config := fmt.Sprintf(`{"os":"linux","architecture":"amd64","config":{"Labels":{"n":"%d"}}}`, i); to.name() != tag.name() {
				pushed(s.t, to.at.registry, to.repository+":"+to.tag, config, func(string) string { return raw })
			}
			s.put(to, digest, raw)
		}
	}
	tags := s.tags()
	for _, tag := range []tagOf{tags[0], ofSide(s, tags[1:]...)} {
		tag.lose()
		tag.at.tryTag(tag.repository+":"+tag.tag, pull.Limits{})
		s.led[tag] = append(s.led[tag], s.leads[tag])
		s.leads[tag] = ""
	}
}

// tags are the tags in an order.
func (s *sides) tags() []tagOf {
	return slices.SortedFunc(maps.Keys(s.leads), func(a, b tagOf) int {
		i, j := slices.Index(s.places, a.place), slices.Index(s.places, b.place)
		return 10*(i-j) + strings.Compare(a.tag, b.tag)
	})
}

// stored are the images in an order.
func (s *sides) stored() []string { return slices.Sorted(maps.Keys(s.in)) }

// configOf is the digest of the config of an image.
func (s *sides) configOf(digest string) string {
	metadata, err := manifest.Metadata(s.get(digest))
	if err != nil {
		s.t.Fatal(err)
	}
	return metadata.ID
}

// container is a container of a kind.
func (s *sides) container(kind int) sideContainer {
	var lead, left []tagOf
	for _, tag := range s.tags() {
		if s.leads[tag] == "" {
			left = append(left, tag)
		} else if lead = append(lead, tag); len(s.led[tag]) > 1 {
			left = append(left, tag)
		}
	}
	tag := ofSide(s, lead...)
	now := s.leads[tag]
	c := sideContainer{image: tag.String(), of: tag.place, tag: tag.tag, digest: now, imageID: tag.name() + "@" + now}
	switch kind {
	case 0: // it runs what its tag led to
		tag = ofSide(s, left...)
		was := s.led[tag][len(s.led[tag])-1]
		c = sideContainer{image: tag.String(), of: tag.place, tag: tag.tag, digest: was, imageID: tag.name() + "@" + was}
	case 1: // it names a digest
		c.image, c.tag = tag.name()+"@"+now, ""
	case 2: // it has not started
		c.imageID, c.digest = "", ""
	case 3: // the digest of the config
		c.imageID = "docker://" + s.configOf(now)
	case 4: // another name, also of a tag that has moved or is gone
		tag = ofSide(s, slices.DeleteFunc(append(lead, left...), func(tag tagOf) bool { return tag.mirror == "" })...)
		if now = s.leads[tag]; now == "" || s.rand.IntN(2) == 0 {
			now = cmp.Or(s.led[tag][len(s.led[tag])-1], now)
		}
		c = sideContainer{image: tag.mirror + ":" + tag.tag, of: tag.place, tag: tag.tag, digest: now, imageID: tag.mirror + "@" + now}
	case 5: // it is not imported
		c.digest = manifest.Digest(fmt.Append(nil, "ghost ", s.rand.IntN(3)))
		c.image, c.tag, c.imageID = tag.name()+"@"+c.digest, "", tag.name()+"@"+c.digest
	case 6: // nobody has imported its tag
		c.image, c.tag = tag.name()+":t9", "t9"
	case 7: // it is not known to be there
		for slices.Contains(s.in[now], c.of) {
			c.of = ofSide(s, s.places...)
		}
		c.image, c.tag, c.imageID = c.of.name()+":t9", "t9", c.of.name()+"@"+now
	}
	return c
}

// outdatedContainer is a container that is known to run something else than its tag leads to.
func (s *sides) outdatedContainer() sideContainer {
	for range 1000 {
		if c := s.container(0); s.drift(&c) == "true" {
			return c
		}
	}
	s.t.Fatal("no tag of this world has moved")
	return sideContainer{}
}

// start starts pods of each kind, and waits until the server knows them. They are created in a
// later second than tags have moved: times have whole seconds, and within one of them it is not
// known what came first.
func (s *sides) start() {
	s.t.Helper()
	for tag, digests := range s.led {
		s.began[tag] = len(digests)
	}
	moved := time.Now().Unix()
	soon(s.t, "the second of the last move has ended", func() bool { return time.Now().Unix() > moved })
	for i := range 37 {
		p := &sidePod{cluster: ofSide(s, "east", "west", "local"), namespace: ofSide(s, sideNamespaces...), name: fmt.Sprint("pod-", i), containers: []sideContainer{s.container(i % 9)}}
		switch {
		case i == 36: // one container may be outdated, and the next one is
			p.containers = []sideContainer{s.container(6), s.outdatedContainer()}
		case s.rand.IntN(4) == 0:
			p.containers = append(p.containers, s.container(s.rand.IntN(9)))
		}
		s.pods = append(s.pods, p)
		pod := newPod(p.name)
		pod.Namespace, pod.Spec.Containers = p.namespace, nil
		for n, c := range p.containers {
			name := fmt.Sprint("c", n)
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: c.image})
			if c.imageID != "" {
				pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{Name: name, Image: c.image, ImageID: c.imageID})
			}
		}
		if cluster := s.clusters[p.cluster]; cluster != nil {
			pod.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
			cluster.Set(pod)
			continue
		}
		status := pod.Status
		created, err := s.core.CoreV1().Pods(p.namespace).Create(s.t.Context(), pod, metav1.CreateOptions{})
		if err != nil {
			s.t.Fatal(err)
		}
		created.Status = status
		if _, err := s.core.CoreV1().Pods(p.namespace).UpdateStatus(s.t.Context(), created, metav1.UpdateOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
}

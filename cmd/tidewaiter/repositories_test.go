package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// brought is a finder that finds what each repository is said to bring.
type brought struct {
	mu          sync.Mutex
	signatures  map[string][]imagev1.ImageSignature // by repository and digest, repo@sha256:…
	annotations map[string]map[string]string
	fail        map[string]error
}

func (b *brought) Forget(name.Repository)                      {}
func (b *brought) Listed(name.Repository, []string, time.Time) {}

func (b *brought) Find(_ context.Context, digest name.Digest, _ reference.Reference, _ http.RoundTripper, _ time.Time, _ bool) ([]imagev1.ImageSignature, map[string]string, []string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := digest.Context().RepositoryStr() + "@" + digest.DigestStr()
	return b.signatures[key], b.annotations[key], nil, b.fail[key]
}

// harbour is a server with policies, a registry, and what is found there.
type harbour struct {
	t        *testing.T
	Config   *restclient.Config
	images   *imageclient.Client
	registry *registrytest.Registry
	found    *brought
}

// newHarbour starts one: keys are by the repository that must be signed by them.
func newHarbour(t *testing.T, keys map[string]*signaturestest.Key) *harbour {
	t.Helper()
	h := &harbour{t: t, registry: registrytest.New(t), found: &brought{
		signatures: map[string][]imagev1.ImageSignature{}, annotations: map[string]map[string]string{}, fail: map[string]error{},
	}}
	var policies strings.Builder
	for repository, key := range keys {
		policies.WriteString(signaturestest.Document(repository, `["`+h.registry.Host+"/"+repository+`"]`, signaturestest.TrustKey(key, nil), "{matchPolicy: MatchRepository}"))
	}
	file := filepath.Join(t.TempDir(), "policies.yaml")
	if err := os.WriteFile(file, []byte(policies.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h.Config = serveWith(t, server.Options{DataDir: t.TempDir(), Policy: file}, listener)
	if h.images, err = imageclient.New(h.Config); err != nil {
		t.Fatal(err)
	}
	return h
}

// sign is a signature by key of what is in a repository. junk makes it that much longer.
func (h *harbour) sign(key *signaturestest.Key, repository, digest string, junk int) imagev1.ImageSignature {
	b := key.SimpleSigning(h.t, digest, h.registry.Host+"/"+repository)
	if junk > 0 {
		b.Annotations["junk"] = strings.Repeat("x", junk)
	}
	content := signaturestest.Marshal(h.t, b)
	return imagev1.ImageSignature{ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(digest, content)}, Type: signatures.TypeSimpleSigning, Content: content}
}

func (h *harbour) bring(repository, digest string, signatures ...imagev1.ImageSignature) {
	h.found.mu.Lock()
	defer h.found.mu.Unlock()
	h.found.signatures[repository+"@"+digest] = signatures
}

func (h *harbour) importTag(reference string) *importer.Result {
	h.t.Helper()
	return importInto(h.t, h.images, h.found, h.registry.Host+"/"+reference)
}

func (h *harbour) get(digest string) *imagev1.Image {
	h.t.Helper()
	image, err := h.images.Get(h.t.Context(), digest, metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	return image
}

// want checks an Image's own verdict and that in each repository, as they are stored and selected.
func (h *harbour) want(what, digest, own string, verdicts map[string]string) {
	h.t.Helper()
	check := func() string {
		if got, _, _ := signatures.Summary(h.get(digest)); got != own {
			return fmt.Sprintf("%s: the image is %s, want %s: %v", what, got, own, h.get(digest).Annotations)
		}
		selectors := []string{"signatures.verified=" + own}
		for repository, verdict := range verdicts {
			selectors = append(selectors, "verdicts="+verdict+"@"+h.registry.Host+"/"+repository)
		}
		for _, selector := range selectors {
			list, err := h.images.List(h.t.Context(), metav1.ListOptions{FieldSelector: selector})
			if err != nil {
				h.t.Fatal(err)
			}
			if !slices.ContainsFunc(list.Items, func(i imagev1.Image) bool { return i.Name == digest }) {
				return fmt.Sprintf("%s: %s does not select the image: %v", what, selector, h.get(digest).Annotations)
			}
		}
		return ""
	}
	var wrong string
	if !within(2*time.Minute, func() bool { // what follows, follows soon
		wrong = check()
		return wrong == ""
	}) {
		h.t.Error(wrong)
	}
}

// Signatures that are many or large keep no image from being stored, and no trusted signature from
// counting, in whatever order the registry lists them.
func TestAttackManySignatures(t *testing.T) {
	oneCaller(t)
	t.Parallel()
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	h := newHarbour(t, map[string]*signaturestest.Key{"team": key})
	for name, tt := range map[string]struct{ n, junk, trusted int }{
		"ten of 205 kB":      {10, 205_000, 0},
		"sixty of 1 kB":      {60, 0, 0},
		"thirty of 205 kB":   {30, 205_000, 0},
		"behind a large one": {20, 205_000, 900_000},
	} {
		t.Run(name, func(t *testing.T) {
			repository := "team/" + strings.ReplaceAll(strings.ToLower(name), " ", "-")
			image, err := sample.New(sample.Spec{Name: name})
			if err != nil {
				t.Fatal(err)
			}
			digest := h.registry.Push(repository+":v1", image)
			good := h.sign(key, repository, digest, tt.trusted)
			all := []imagev1.ImageSignature{good}
			for range tt.n {
				all = append(all, h.sign(other, repository, digest, tt.junk))
			}
			var held [][]string
			for round := range 2 {
				rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				h.bring(repository, digest, all...)
				result := h.importTag(repository + ":v1")
				h.want(name, digest, "True", map[string]string{repository: "True"})
				stored := h.get(digest)
				found := annotation.Found(stored.Annotations)[h.registry.Host+"/"+repository]
				if !slices.ContainsFunc(stored.Signatures, func(s imagev1.ImageSignature) bool {
					return s.Name == good.Name && bytes.Equal(s.Content, good.Content)
				}) {
					t.Errorf("round %d: the trusted signature is not held", round)
				}
				if n := len(stored.Signatures); n > signatures.MaxStored || n+len(found.LeftOut) != len(all) || len(found.LeftOut) == 0 {
					t.Errorf("round %d: %d are held and %d named as left out, of %d", round, n, len(found.LeftOut), len(all))
				}
				if round > 0 && result.Images[0].Action == importer.Updated {
					again := h.importTag(repository + ":v1")
					t.Errorf("what is known is written again: %s, then %s", result.Images[0].Action, again.Images[0].Action)
				}
				held = append(held, found.Signatures)
				deleteTagged(t, h.images, digest)
				if round == 0 { // the other order, on an image that is not known yet
					rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
					h.bring(repository, digest, all...)
					h.importTag(repository + ":v1")
				}
			}
			if !slices.Equal(held[0], held[1]) {
				t.Errorf("what is held depends on the order: %d and %d", len(held[0]), len(held[1]))
			}
		})
	}
}

// A signature that was left out as one of many before a namespace had a policy is offered again by
// the next import; until then nothing is said against the image.
func TestSurplusSignatureThatANamespaceTrusts(t *testing.T) {
	t.Parallel()
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	h := newHarbour(t, map[string]*signaturestest.Key{"other": other})
	image, err := sample.New(sample.Spec{Name: "surplus"})
	if err != nil {
		t.Fatal(err)
	}
	digest := h.registry.Push("team/app:v1", image)
	all := []imagev1.ImageSignature{h.sign(key, "team/app", digest, 10_000)}
	for range signatures.MaxStored + 3 {
		all = append(all, h.sign(other, "team/app", digest, 0))
	}
	h.bring("team/app", digest, all...)
	h.importTag("team/app:v1")
	client, err := dynamic.NewForConfig(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(t.Context(), object(t, "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	document := signaturestest.Document("own", `["`+h.registry.Host+`/team"]`, signaturestest.TrustKey(key, nil), "{matchPolicy: MatchRepository}")
	policies{client.Resource(policyapi.GroupVersion.WithResource("imagepolicies")).Namespace("shop"), t}.create(strings.Replace(document, "kind: ClusterImagePolicy", "kind: ImagePolicy", 1))
	h.want("left out", digest, "NoPolicy", map[string]string{"team/app#shop": "Unknown"})
	h.importTag("team/app:v1")
	h.want("imported again", digest, "NoPolicy", map[string]string{"team/app#shop": "True"})
}

// What other repositories bring is kept apart from an official image: its signatures, attestations
// and verdict.
func TestAttackJunkOfOtherRepositories(t *testing.T) {
	oneCaller(t)
	t.Parallel()
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	h := newHarbour(t, map[string]*signaturestest.Key{"official": key})
	image, err := sample.New(sample.Spec{Name: "official"})
	if err != nil {
		t.Fatal(err)
	}
	digest := h.registry.Push("official/app:v1", image)
	const attestation = `[{"type":"https://slsa.dev/provenance/v1","digest":"sha256:4f"}]`
	h.bring("official/app", digest, h.sign(key, "official/app", digest, 0))
	h.found.annotations["official/app@"+digest] = map[string]string{annotation.Attestations: attestation}
	h.importTag("official/app:v1")
	before := annotation.Found(h.get(digest).Annotations)[h.registry.Host+"/official/app"]
	for i := range 7 {
		repository := fmt.Sprintf("evil/app%d", i)
		h.registry.Push(repository+":v1", image)
		var junk []imagev1.ImageSignature
		for range 10 {
			junk = append(junk, h.sign(other, repository, digest, 50_000))
		}
		h.bring(repository, digest, junk...)
		h.found.annotations[repository+"@"+digest] = map[string]string{annotation.Attestations: `[{"type":"evil"}]`, annotation.Warnings: `["evil"]`}
		h.importTag(repository + ":v1")
	}
	h.want("among junk", digest, "True", map[string]string{"official/app": "True", "evil/app3": "NoPolicy"})
	stored := h.get(digest)
	after := annotation.Found(stored.Annotations)[h.registry.Host+"/official/app"]
	if !slices.Equal(before.Signatures, after.Signatures) || string(after.Attestations) != attestation || len(after.Warnings) > 0 {
		t.Errorf("of the official repository: %+v", after)
	}
	if n := len(stored.Signatures); n > 33 {
		t.Errorf("%d signatures are held", n)
	}
	h.importTag("official/app:v1")
	h.want("imported again", digest, "True", map[string]string{"official/app": "True"})
}

// A digest is judged in each repository that it is in, by what is found there.
func TestVerdictOfEachRepository(t *testing.T) {
	t.Parallel()
	dev, prod := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	h := newHarbour(t, map[string]*signaturestest.Key{"dev": dev, "prod": prod})
	image, err := sample.New(sample.Spec{Name: "promoted"})
	if err != nil {
		t.Fatal(err)
	}
	digest := h.registry.Push("lab/one:v1", image)
	h.registry.Push("dev/one:v1", image)
	h.registry.Push("prod/one:v1", image)

	// First seen where no policy applies.
	h.importTag("lab/one:v1")
	h.want("in the laboratory", digest, "NoPolicy", map[string]string{"lab/one": "NoPolicy"})
	bySigner := h.sign(dev, "dev/one", digest, 0)
	h.bring("dev/one", digest, bySigner)
	h.importTag("dev/one:v1")
	h.want("signed in dev", digest, "True", map[string]string{"dev/one": "True", "lab/one": "NoPolicy"})
	if c := h.get(digest).Signatures[0].Conditions[0]; !strings.Contains(c.Message, h.registry.Host+"/dev/one") {
		t.Errorf("the condition does not say where: %q", c.Message)
	}
	// Copied without signature.
	h.importTag("prod/one:v1")
	h.want("copied to prod", digest, "Unsigned", map[string]string{"dev/one": "True", "prod/one": "Unsigned"})
	// Copied with it.
	h.bring("prod/one", digest, bySigner)
	h.importTag("prod/one:v1")
	h.want("copied to prod with dev's signature", digest, "False", map[string]string{"dev/one": "True", "prod/one": "False"})
	// Promoted.
	h.bring("prod/one", digest, bySigner, h.sign(prod, "prod/one", digest, 0))
	h.importTag("prod/one:v1")
	h.want("promoted", digest, "True", map[string]string{"dev/one": "True", "prod/one": "True"})
	// Prod's signature is taken away: a search that succeeds replaces what an earlier one found.
	h.bring("prod/one", digest)
	h.importTag("prod/one:v1")
	h.want("prod's signatures are deleted", digest, "Unsigned", map[string]string{"dev/one": "True", "prod/one": "Unsigned"})
	if n := len(h.get(digest).Signatures); n != 1 {
		t.Errorf("%d signatures are held", n)
	}
	// And the repository: it does not count any more.
	gone := h.get(digest)
	gone.Annotations[annotation.Gone] = fmt.Sprintf(`{"%s/prod/one@%s":"2026-03-04T05:06:07Z"}`, h.registry.Host, digest)
	if _, err := h.images.Update(t.Context(), gone, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.want("gone from prod", digest, "True", map[string]string{"dev/one": "True"})
	h.importTag("prod/one:v1")
	h.want("back in prod", digest, "Unsigned", map[string]string{"dev/one": "True", "prod/one": "Unsigned"})
}

// What a client wrote stays when a search does not find it, also if another had.
func TestSignatureOfAClientStays(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	h := newHarbour(t, map[string]*signaturestest.Key{"team": key})
	image, err := sample.New(sample.Spec{Name: "client"})
	if err != nil {
		t.Fatal(err)
	}
	digest := h.registry.Push("team/app:v1", image)
	found, posted := h.sign(key, "team/app", digest, 0), h.sign(key, "team/app", digest, 1)
	h.bring("team/app", digest, found)
	h.importTag("team/app:v1")
	if _, err := h.images.CreateSignature(t.Context(), &posted, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.bring("team/app", digest, found, posted)
	h.importTag("team/app:v1")
	h.bring("team/app", digest)
	h.importTag("team/app:v1")
	h.want("deleted from the registry", digest, "True", map[string]string{"team/app": "True"})
	if s := h.get(digest).Signatures; len(s) != 1 || s[0].Name != posted.Name {
		t.Errorf("%d signatures are held", len(s))
	}
}

// Where not all signatures could be read, it is not known that there are none; the next search that
// succeeds ends that.
func TestSearchThatCannotReadEverything(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	h := newHarbour(t, map[string]*signaturestest.Key{"team": key})
	image, err := sample.New(sample.Spec{Name: "unread"})
	if err != nil {
		t.Fatal(err)
	}
	digest := h.registry.Push("team/app:v1", image)
	at := "team/app@" + digest
	h.found.annotations[at] = map[string]string{annotation.Unread: "lookaside storage: no route to host"}
	h.importTag("team/app:v1")
	h.want("unread", digest, "Unknown", map[string]string{"team/app": "Unknown"})
	if v := annotation.Judged(h.get(digest).Annotations)[h.registry.Host+"/team/app"]; v.Reason != "SearchIncomplete" || !strings.Contains(v.Message, "no route to host") {
		t.Errorf("%+v", v)
	}
	list, err := h.images.List(t.Context(), metav1.ListOptions{FieldSelector: "warnings=SearchIncomplete"})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%d images, %v", len(list.Items), err)
	}
	delete(h.found.annotations, at)
	h.importTag("team/app:v1")
	h.want("read", digest, "Unsigned", map[string]string{"team/app": "Unsigned"})
	// A registry that fails takes nothing away.
	h.bring("team/app", digest, h.sign(key, "team/app", digest, 0))
	h.importTag("team/app:v1")
	h.found.fail[at] = errors.New("503")
	im, err := importer.New(importer.Options{Signatures: h.found})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	ref, err := reference.Parse(h.registry.Host + "/team/app:v1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := im.Import(t.Context(), ref, h.images); err == nil {
		t.Error("the search that failed is not reported")
	}
	h.want("a search failed", digest, "True", map[string]string{"team/app": "True"})
}

// The platforms of a signed index are verified through it in its repository, whichever comes first,
// and follow it.
func TestPlatformsOfASignedIndex(t *testing.T) {
	t.Parallel()
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	h := newHarbour(t, map[string]*signaturestest.Key{"team": key})
	index, err := sample.MultiPlatform(sample.Spec{Name: "signed"}, false, "linux/amd64", "linux/arm64")
	if err != nil {
		t.Fatal(err)
	}
	m, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	digest, children := h.registry.PushIndex("team/app:v1", index), []v1.Hash{m.Manifests[0].Digest, m.Manifests[1].Digest}
	h.registry.PushIndex("other/app:v1", index)
	h.bring("team/app", digest, h.sign(key, "team/app", digest, 0))
	h.importTag("team/app:v1")
	h.want("the index", digest, "True", map[string]string{"team/app": "True"})
	for _, child := range children {
		h.want("a platform", child.String(), "ByIndex", map[string]string{"team/app": "ByIndex"})
		v := annotation.Judged(h.get(child.String()).Annotations)[h.registry.Host+"/team/app"]
		if v.Index != digest || !slices.Equal(v.Signers, []string{"team"}) || v.Reason != "IndexVerified" {
			t.Errorf("%+v", v)
		}
	}
	// A platform that comes after its index.
	late := children[1].String()
	deleteTagged(t, h.images, late)
	h.importTag("team/app:v1")
	h.want("a platform that comes later", late, "ByIndex", nil)
	// Another repository's index vouches for nothing here, nor does that of this one there.
	h.importTag("other/app:v1")
	h.want("in another repository as well", late, "ByIndex", map[string]string{"team/app": "ByIndex", "other/app": "NoPolicy"})
	// The index's signature is replaced by another's, comes back, and the index goes.
	h.bring("team/app", digest, h.sign(other, "team/app", digest, 0))
	h.importTag("team/app:v1")
	h.want("an index signed by somebody else", late, "Unsigned", map[string]string{"team/app": "Unsigned"})
	h.bring("team/app", digest, h.sign(key, "team/app", digest, 0))
	h.importTag("team/app:v1")
	h.want("signed again", late, "ByIndex", nil)
	deleteTagged(t, h.images, digest)
	h.want("without its index", late, "Unsigned", nil)
}

// No client can write that an image is verified.
func TestAttackForgedVerdicts(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	h := newHarbour(t, map[string]*signaturestest.Key{"team": key})
	for repository, none := range map[string]string{"team/app": "Unsigned", "unpoliced/app": "NoPolicy"} {
		image, err := sample.New(sample.Spec{Name: repository})
		if err != nil {
			t.Fatal(err)
		}
		digest := h.registry.Push(repository+":v1", image)
		h.importTag(repository + ":v1")
		for _, forge := range []string{`{"verified":"True"}`, `{"verified":"ByIndex","index":"x"}`} {
			stored := h.get(digest)
			stored.Annotations[annotation.Verdicts] = fmt.Sprintf(`{"%s/%s":%s}`, h.registry.Host, repository, forge)
			if _, err := h.images.Update(t.Context(), stored, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			h.want(cmp.Or(repository, forge), digest, none, map[string]string{repository: none})
		}
		deleteTagged(t, h.images, digest)
		forged := &imagev1.Image{
			ObjectMeta:           metav1.ObjectMeta{Name: digest, Annotations: map[string]string{annotation.Verdicts: fmt.Sprintf(`{"%s/%s":{"verified":"True"}}`, h.registry.Host, repository)}},
			DockerImageReference: h.registry.Host + "/" + repository + "@" + digest,
		}
		if _, err := h.images.Create(t.Context(), forged, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		h.want("created so", digest, none, map[string]string{repository: none})
	}
}

// deleteTagged deletes an image to which a tag leads.
func deleteTagged(t *testing.T, images *imageclient.Client, name string) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		image, err := images.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		image.Annotations[annotation.AllowDelete] = annotation.TaggedReason
		_, err = images.Update(t.Context(), image, metav1.UpdateOptions{})
		return err
	})
	if err == nil {
		err = images.Delete(t.Context(), name, metav1.DeleteOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What a pod asks for is judged when it asks: also where an image is in more repositories than it
// holds verdicts of, and by the tag that is asked for, which somebody without a key can move to an
// older image that is signed.
func TestAdmissionJudgesWhatIsAsked(t *testing.T) {
	oneCaller(t)
	t.Parallel()
	key, release := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	h := newHarbour(t, map[string]*signaturestest.Key{"other": key})
	host, objects := h.registry.Host, policiesOf(t, h.Config)
	objects.create(signaturestest.Document("base", `["`+host+`/team"]`, signaturestest.TrustKey(key, nil), "{matchPolicy: ExactRepository, exactRepository: {repository: "+host+"/base/image}}"))
	objects.create(signaturestest.Document("release", `["`+host+`/app"]`, signaturestest.TrustKey(release, nil), ""))
	client := httpClient(t, h.Config)
	check := func(image string, allowed bool, want string) {
		t.Helper()
		got := askAdmission(t, client, h.Config.Host+admission.Path, review(host+"/"+image))
		if got.Allowed != allowed || !allowed && !strings.Contains(got.Result.Message, want) {
			t.Errorf("a pod with %s is answered %+v", image, got)
		}
	}

	base, err := sample.New(sample.Spec{Name: "base"})
	if err != nil {
		t.Fatal(err)
	}
	const copies = annotation.MaxRepositories + 2
	digest := ""
	for i := range copies {
		repository := fmt.Sprintf("team/app%02d", i)
		digest = h.registry.Push(repository+":v1", base)
		if i != 5 {
			h.bring(repository, digest, h.sign(key, "base/image", digest, 0))
		}
		h.importTag(repository + ":v1")
	}
	for i := range copies {
		check(fmt.Sprintf("team/app%02d:v1", i), i != 5, "Unsigned")
		check(fmt.Sprintf("team/app%02d@%s", i, digest), i != 5, "Unsigned")
	}
	h.want("in many repositories", digest, "Unsigned", map[string]string{"team/app00": "True", "team/app33": "Unknown"})

	old, err := sample.New(sample.Spec{Name: "old"})
	if err != nil {
		t.Fatal(err)
	}
	digest = h.registry.Push("app:v1.0", old)
	h.registry.Push("app:v2.0", old)
	h.bring("app", digest, h.sign(release, "app:v1.0", digest, 0))
	h.importTag("app:v1.0")
	h.importTag("app:v2.0")
	check("app:v1.0", true, "")
	check("app@"+digest, true, "")
	check("app:v2.0", false, "which by MatchRepoDigestOrExact is not the reference "+host+"/app:v2.0")
}

// Whoever may push makes nothing unknown that a policy would refuse, where what is unknown is
// admitted.
func TestAttackForceUnknown(t *testing.T) {
	t.Parallel()
	key := signaturestest.NewKey(t, signaturestest.P256)
	h := newHarbour(t, map[string]*signaturestest.Key{"other": key})
	document := signaturestest.Document("lenient", `["`+h.registry.Host+`/team"]`, signaturestest.TrustKey(key, nil), "{matchPolicy: MatchRepository}")
	policiesOf(t, h.Config).create(strings.Replace(document, "metadata: {", "metadata: {annotations: {tidewaiter.dev/admission-unknown: allow}, ", 1))
	client := httpClient(t, h.Config)
	for _, tc := range []struct {
		name    string
		bring   func(at, digest string)
		allowed bool
	}{
		{"nothing", func(string, string) {}, false},
		{"more referrers than are looked at", func(at, _ string) {
			h.found.annotations[at] = map[string]string{annotation.Unusable: "more than 64", annotation.Cut: "true"}
		}, false},
		{"a signature that is too large", func(at, _ string) { h.found.annotations[at] = map[string]string{annotation.Unusable: "too large"} }, false},
		{"a signature in a format that is not known", func(at, digest string) {
			content := signaturestest.Marshal(t, key.Bundle(t, signaturestest.Statement(digest, "https://spdx.dev/Document")))
			h.found.signatures[at] = []imagev1.ImageSignature{{ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(digest, content)}, Type: signatures.TypeBundle, Content: content}}
		}, false},
		{"a registry that cannot be read", func(at, _ string) { h.found.annotations[at] = map[string]string{annotation.Unread: "a web page"} }, true},
	} {
		image, err := sample.New(sample.Spec{Name: tc.name})
		if err != nil {
			t.Fatal(err)
		}
		digest := h.registry.Push("team/app:v1", image)
		tc.bring("team/app@"+digest, digest)
		h.importTag("team/app:v1")
		if got := askAdmission(t, client, h.Config.Host+admission.Path, review(h.registry.Host+"/team/app@"+digest)); got.Allowed != tc.allowed {
			t.Errorf("%s: answered %+v", tc.name, got)
		}
		if verified, _, _ := signatures.Summary(h.get(digest)); tc.name != "nothing" && verified != "Unknown" {
			t.Errorf("%s: the image is %s", tc.name, verified)
		}
	}
}

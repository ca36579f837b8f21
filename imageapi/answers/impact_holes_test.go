package answers

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// holed is a small world in which things are missing: images that run and are not stored, SBOMs
// that cannot be read, tags that lead nowhere, pods that have not started, clusters that are away,
// callers who may not see everything. It is all that an Answerer asks.
type holed struct {
	images     map[string]*holedImage // by digest
	containers []podimages.Container
	away       bool // a cluster is, so there may be more pods
	noPods     bool // the caller may not see pods
	policies   *policy.Set
}

type holedImage struct {
	digest, tag, layer       string // tag is the whole reference
	stored, listed, packaged bool   // listed: its SBOM was read
}

func newHoled(r *rand.Rand, policies *policy.Set) *holed {
	w := &holed{images: map[string]*holedImage{}, away: r.IntN(5) == 0, noPods: r.IntN(8) == 0, policies: policies}
	half := func() bool { return r.IntN(2) == 0 }
	for i := range 1 + r.IntN(5) {
		image := &holedImage{
			digest: fmt.Sprintf("sha256:%064x", i+1), tag: fmt.Sprintf("r%d.example.com/team/app%d:v1", r.IntN(2), r.IntN(2)), layer: fmt.Sprintf("sha256:%064x", 100+r.IntN(2)),
			stored: r.IntN(4) > 0, listed: half(), packaged: half(),
		}
		for _, other := range w.images {
			if other.tag == image.tag { // a tag leads to one image
				image.tag += fmt.Sprint(i)
			}
		}
		w.images[image.digest] = image
		for n := range r.IntN(3) {
			whole := w.ref(image).WithDigest(image.digest).String()
			c := podimages.Container{Cluster: "prod", Namespace: "kb", Pod: fmt.Sprintf("pod-%d-%d", i, n), Image: image.tag, ImageID: whole}
			switch r.IntN(4) {
			case 0:
				c.Image = whole
			case 1:
				c.ImageID = "" // it has not started
			}
			w.containers = append(w.containers, c)
		}
	}
	return w
}

func (w *holed) ref(image *holedImage) reference.Reference {
	ref, err := reference.Parse(image.tag)
	if err != nil {
		panic(err)
	}
	return ref
}

// Get and List of images.
type holedImages struct{ *holed }

func (w holedImages) Get(_ context.Context, digest string, _ *metav1.GetOptions) (runtime.Object, error) {
	image := w.images[digest]
	if image == nil || !image.stored {
		return nil, apierrors.NewNotFound(imagev1.Resource("images"), digest)
	}
	return &imagev1.Image{
		ObjectMeta: metav1.ObjectMeta{Name: digest}, DockerImageReference: w.ref(image).WithDigest(digest).String(),
		DockerImageLayers: []imagev1.ImageLayer{{Name: image.layer, LayerSize: 1}},
	}, nil
}

func (w holedImages) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	list := &imagev1.ImageList{}
	for digest, image := range w.images {
		layer, asked := "", false
		if o.FieldSelector != nil {
			layer, asked = o.FieldSelector.RequiresExactMatch(selectors.Layer)
			_, lists := o.FieldSelector.RequiresExactMatch(selectors.Lists)
			_, recorded := o.FieldSelector.RequiresExactMatch(selectors.RecordedReferences)
			if _, config := o.FieldSelector.RequiresExactMatch(selectors.Config); lists || config || recorded {
				continue
			}
		}
		if image.stored && (!asked || image.layer == layer) {
			obj, _ := w.Get(ctx, digest, nil)
			list.Items = append(list.Items, *obj.(*imagev1.Image))
		}
	}
	return list, nil
}

// Get and List of tags. Images that are not stored have none that is known.
type holedTags struct{ *holed }

func (w holedTags) all() (all []imagev1.ImageTag) {
	for _, image := range w.images {
		if image.stored {
			tag := tags.New(w.ref(image))
			tags.Lead(tag, w.ref(image), image.digest, metav1.Now())
			all = append(all, *tag)
		}
	}
	return all
}

func (w holedTags) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	for _, tag := range w.all() {
		if tag.Name == name {
			return &tag, nil
		}
	}
	return nil, apierrors.NewNotFound(imagev1.Resource("imagetags"), name)
}

func (w holedTags) List(_ context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	list := &imagev1.ImageTagList{}
	for _, tag := range w.all() {
		now, _ := tags.Now(&tag)
		if o.FieldSelector != nil {
			if leads, asked := o.FieldSelector.RequiresExactMatch(selectors.TagImage); asked && leads != now {
				continue
			}
		}
		list.Items = append(list.Items, tag)
	}
	return list, nil
}

// What runs.

func (w *holed) Pods(digest string, image *imagev1.Image) (n int, complete bool) {
	return len(w.Users(digest, image, 100)), !w.away
}

func (w *holed) Users(digest string, image *imagev1.Image, _ int) (all []string) {
	for _, c := range w.containers {
		if runs(c) == digest || runs(c) == "" && image != nil && w.images[digest].tag == c.Image {
			all = append(all, c.Cluster+"/"+c.Namespace+"/"+c.Pod)
		}
	}
	return all
}

func (*holed) NeededBy(string, *imagev1.Image, int) []string { return nil }

func (*holed) Unimported() int { return 0 }

func (*holed) NeededAs([]reference.Reference, int) []string { return nil }

func (w *holed) Digests() (all []string) {
	digests, _ := w.Runs()
	return digests
}

func (w *holed) Runs() (digests, references []string) {
	for _, c := range w.containers {
		if runs(c) == "" {
			references = append(references, c.Image)
		} else {
			digests = append(digests, runs(c))
		}
	}
	slices.Sort(digests)
	slices.Sort(references)
	return slices.Compact(digests), slices.Compact(references)
}

func (w *holed) StaleReasons() []string {
	if w.away {
		return []string{"cluster prod is away"}
	}
	return nil
}

func (*holed) WorkloadStaleReasons() []string { return nil }

func (*holed) Keys(digest string, _ *imagev1.Image) []string { return []string{digest} }

// holedContainers are the containers of pods.
type holedContainers struct{ *holed }

func (w holedContainers) Naming(_ context.Context, values []string, _ int) (all []podimages.Container, more bool, err error) {
	for _, c := range w.containers {
		if slices.Contains(values, runs(c)) || slices.Contains(values, c.Image) {
			all = append(all, c)
		}
	}
	return all, false, nil
}

func (w holedContainers) InNamespace(context.Context, string, int) (all []podimages.Container, more bool, err error) {
	return w.containers, false, nil
}

// The packages of images.
type holedPackages struct{ *holed }

func (w holedPackages) Get(_ context.Context, digest string, _ *metav1.GetOptions) (runtime.Object, error) {
	return &packages.ImagePackages{ObjectMeta: metav1.ObjectMeta{Name: digest}, Sources: []packages.Source{{Format: packages.FormatSPDX, Packages: []packages.Package{{Name: "openssl", Version: "1", PURL: "pkg:npm/openssl@1"}}}}}, nil
}

func (w holedPackages) Known(_ context.Context, digest string) (bool, error) {
	image := w.images[digest]
	return image.stored && image.listed, nil
}

func (w holedPackages) With(context.Context, string, string, int64, int) (names []string, at int64, more string, err error) {
	for digest, image := range w.images {
		if image.stored && image.listed && image.packaged {
			names = append(names, digest)
		}
	}
	slices.Sort(names)
	return names, 1, "", nil
}

func (w holedPackages) Lists(ctx context.Context, after string, _ int) (all []packages.ImagePackages, _ error) {
	names, _, _, err := w.With(ctx, "", "", 0, 0)
	for _, name := range names {
		if name > after {
			obj, _ := w.Get(ctx, name, nil)
			all = append(all, *obj.(*packages.ImagePackages))
		}
	}
	return all, err
}

func (w holedPackages) Count(context.Context) (n int64, err error) {
	for _, image := range w.images {
		if image.stored && image.listed {
			n++
		}
	}
	return n, nil
}

func (holedPackages) Partly(context.Context) (bool, error) { return false, nil }

// touched says whether an act touches a pod that runs an image, or would run it, and whether that
// can be known.
func (w *holed) touched(spec *ImpactReviewSpec, changes string, image *holedImage) (is, known bool) {
	switch {
	case len(spec.ApplyPolicies) > 0:
		is = w.ref(image).Name() == applied
		return is && image.stored, !is || image.stored
	case spec.Layer != "":
		return image.stored && image.layer == spec.Layer, image.stored
	case spec.Package != "", len(spec.Advisories) > 0:
		return image.stored && image.listed && image.packaged, image.stored && image.listed
	case spec.LoseRegistry != "":
		return w.ref(image).Host == spec.LoseRegistry, true
	}
	// The verdict of an image that nobody has signed changes neither with who is trusted nor with
	// time.
	is = w.ref(image).Name() == changes
	return is && image.stored && spec.RemovePolicy != "", !is || image.stored
}

// applied is what a policy covers that is applied.
const applied = "r1.example.com/team/app1"

// isThere reports whether an image, a tag or a pod is known of a repository.
func (w *holed) isThere(repository string) bool {
	for _, image := range w.images {
		if w.ref(image).Name() == repository && (image.stored || slices.ContainsFunc(w.containers, func(c podimages.Container) bool { return runs(c) == image.digest || c.Image == image.tag })) {
			return true
		}
	}
	return false
}

// tells is what a text tells that only pods know: their names and namespaces, or what they name.
func (w *holed) tells(text string) string {
	for _, c := range w.containers {
		for _, secret := range []string{c.Cluster + "/", `"` + c.Namespace + `"`, c.Pod} {
			if strings.Contains(text, secret) {
				return secret
			}
		}
	}
	for _, image := range w.images {
		if !image.stored && (strings.Contains(text, image.digest) || strings.Contains(text, `"`+image.tag+`"`)) {
			return image.tag
		}
	}
	return ""
}

var firstSeed = flag.Uint64("seed", 0, "seed of the first of the random worlds of a test; the others have the next ones")

// In random worlds with holes, no review says that nothing that runs is touched, or of how many
// pods it knows, unless all is known that this needs; and none says unknown if it is.
func TestImpactOfWhatIsNotKnown(t *testing.T) {
	t.Parallel()
	const changes = "r0.example.com/team/app0"
	key := signaturestest.NewKey(t, signaturestest.P256)
	both := string(key.PEM) + string(signaturestest.NewKey(t, signaturestest.P256).PEM) // the second is nobody's
	policies := signaturestest.SetFrom(t, signaturestest.Document("p", `["`+changes+`"]`, signaturestest.TrustKey(key, nil), ""))
	raw, err := yaml.YAMLToJSON([]byte(signaturestest.Document("q", `["`+applied+`"]`, signaturestest.TrustKey(key, nil), "")))
	if err != nil {
		t.Fatal(err)
	}
	acts := []ImpactReviewSpec{
		{ApplyPolicies: []runtime.RawExtension{{Raw: raw}}}, {At: &metav1.Time{Time: time.Now().Add(24 * time.Hour)}}, {Delete: applied + ":v1"},
		{RemovePolicy: "p"}, {RevokeSigner: string(key.PEM)}, {RevokeSigner: both}, {RevokeSigner: "ann@example.com"}, {LoseRegistry: "r0.example.com"}, {LoseRegistry: "127.0.0.1:1750"},
		{Layer: fmt.Sprintf("sha256:%064x", 100)}, {Package: "openssl"}, {Advisories: zipped(t, openssl), Named: true},
		{Advisories: zipped(t, `{"id":"A","affected":[{"package":{"ecosystem":"NuGet","name":"OpenSSL"},"versions":["1"]}]}`+openssl)}, // for which all lists are read
	}
	undecided, decided, worlds := 0, 0, uint64(3000)
	if testing.Short() { // under the race detector
		worlds = 300
	}
	for seed := *firstSeed; seed < *firstSeed+worlds; seed++ {
		r := rand.New(rand.NewPCG(seed, 49))
		w, spec := newHoled(r, policies), acts[r.IntN(len(acts))]
		a := &Answerer{Images: holedImages{w}, Tags: holedTags{w}, Packages: holedPackages{w}, Use: w, Containers: holedContainers{w}, Policies: InForce{func(context.Context) (*policy.Set, error) { return policies, nil }, clock.RealClock{}}, Authorizer: authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if w.noPods && a.GetResource() == "clusterpods" {
				return authorizer.DecisionNoOpinion, "", nil
			}
			return authorizer.DecisionAllow, "", nil
		})}
		ctx := genericapirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "ann"})
		got, err := a.Impact(ctx, &spec)
		if err != nil {
			t.Fatalf("%d: %v", seed, err)
		}
		want, unknown := 0, w.away
		count := func(image *holedImage) {
			is, known := w.touched(&spec, changes, image)
			unknown = unknown || !known
			if is {
				want++
			}
		}
		nothing := spec.Delete != ""
		for _, image := range w.images {
			nothing = nothing && !(image.stored && image.tag == spec.Delete)
		}
		for _, c := range w.containers {
			if spec.Delete != "" {
				if c.Image == spec.Delete { // whatever it runs
					want, nothing = want+1, false
				}
				continue
			}
			for _, image := range w.images {
				if runs(c) == image.digest || runs(c) == "" && c.Image == image.tag {
					count(image)
				}
			}
		}
		s := &got.Summary
		if n := got.Touched; spec.Named && (len(n.Images) != int(s.Images) || len(n.References) != int(s.References) || !w.noPods && (len(n.Pods) != int(s.Pods) || len(n.Workloads) != int(s.Workloads))) {
			t.Fatalf("%d: %+v is named of %+v", seed, n, s)
		}
		strange := spec.RevokeSigner == "ann@example.com" || spec.LoseRegistry != "" // nothing is known of it
		for _, image := range w.images {
			strange = strange && !(image.stored && w.ref(image).Host == spec.LoseRegistry)
		}
		unknown = unknown || s.References == 0 && strange
		uncovering := len(spec.ApplyPolicies) > 0 && !w.isThere(applied)
		unknown = unknown || uncovering || nothing || spec.RevokeSigner == both
		describe := func() string {
			var text strings.Builder
			fmt.Fprintf(&text, "%+v %+v away %v", spec, w.containers, w.away)
			for _, image := range w.images {
				fmt.Fprintf(&text, "\n  %+v", *image)
			}
			fmt.Fprintf(&text, "\nsummary %+v\nunknowns %v", *s, got.Unknowns)
			return text.String()
		}
		if s.PodsComplete == unknown || unknown && len(got.Unknowns) == 0 {
			t.Fatalf("%d: something is unknown: %v, and it says: complete %v, %d unknowns\n%s", seed, unknown, s.PodsComplete, len(got.Unknowns), describe())
		}
		if uncovering != slices.ContainsFunc(got.Unknowns, func(u UnknownPart) bool { return strings.Contains(u.Reason, "in the scopes of the policy q") }) {
			t.Fatalf("%d: the policy covers nothing that is known: %v\n%s", seed, uncovering, describe())
		}
		if int(s.Pods) != want {
			t.Fatalf("%d: it touches %d pods\n%s", seed, want, describe())
		}
		for _, c := range s.Changes {
			if int(c.Pods) > want || c.PodsComplete && w.away {
				t.Fatalf("%d: %+v of %d pods\n%s", seed, c, want, describe())
			}
		}
		raw, err := json.Marshal(got)
		if asked := spec.Delete; asked != "" { // the caller has named it
			raw = bytes.ReplaceAll(raw, []byte(`"`+asked+`"`), nil)
		}
		if err != nil || w.noPods && w.tells(string(raw)) != "" {
			t.Fatalf("%d: who may not see pods reads %q, %v\n%s", seed, w.tells(string(raw)), err, describe())
		}
		if int(s.References) != len(got.Rows)+int(got.OmittedRows) {
			t.Fatalf("%d: of %d references there are %d rows and %d more\n%s", seed, s.References, len(got.Rows), got.OmittedRows, describe())
		}
		if unknown {
			undecided++
		} else {
			decided++
		}
	}
	if least := int(worlds) / 6; undecided < least || decided < least {
		t.Errorf("%d reviews were decided, %d not", decided, undecided)
	}
}

// openssl is an advisory about every version of openssl.
const openssl = `{"id":"O","affected":[{"package":{"ecosystem":"npm","name":"openssl"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"}]}]}]}`

// zipped are advisories as a review has them.
func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

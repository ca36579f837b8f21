package answers

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// world is a few images, tags, pods and policies, and answers about them.
type world struct {
	t      testing.TB
	images map[string]*imagev1.Image
	tags   map[string]*imagev1.ImageTag
	pods   []podimages.Container
	// needing are workloads, by the digest that they need, and by the tag that they name.
	needing map[string][]string
	configs map[string]string // the digest of an image, by that of its config
	moved   string            // a digest that pods which have not started may run
	away    string            // why what a cluster runs is old
	bounded bool              // no more containers are listed than are asked for
	// vouching is what a list of the indexes that vouch for an image has; nil if there are none.
	vouching *imagev1.Image
	policies []*policy.Policy
	// failed are why imports of what pods of the cluster prod run have failed.
	failed  map[string]string
	may     func(authorizer.Attributes) bool
	reads   atomic.Int64 // of the store, since failing was set
	failing int64        // the read that fails; 0 for none
}

var errInjected = errors.New("injected")

// read counts a read of the store, and returns the error with which it fails.
func (w *world) read() error {
	if w.reads.Add(1) == w.failing {
		return errInjected
	}
	return nil
}

func newWorld(t testing.TB) *world {
	return &world{
		t: t, images: map[string]*imagev1.Image{}, tags: map[string]*imagev1.ImageTag{}, needing: map[string][]string{},
		may: func(authorizer.Attributes) bool { return true },
	}
}

// digestOf is a digest that is easily read.
func digestOf(name string) string {
	hex := ""
	for _, c := range []byte(name) {
		hex += string("0123456789abcdef"[c>>4]) + string("0123456789abcdef"[c&15])
	}
	return "sha256:" + hex + strings.Repeat("0", 64-len(hex))
}

// image stores an image that is in some repositories.
func (w *world) image(name string, repositories ...string) string {
	digest := digestOf(name)
	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest, Annotations: map[string]string{}}}
	var all []reference.Reference
	for _, repository := range repositories {
		all = append(all, w.ref(repository).WithDigest(digest))
	}
	annotation.SetKnown(image.Annotations, all)
	w.images[digest] = image
	return digest
}

// tag has a tag lead to digests, the newest first; "" is nothing.
func (w *world) tag(name string, digests ...string) {
	tag := tags.New(w.ref(name))
	tag.Status = &imagev1.NamedTagEventList{}
	for _, digest := range digests {
		tag.Status.Items = append(tag.Status.Items, imagev1.TagEvent{Image: digest, Created: metav1.Now()})
	}
	w.tags[tag.Name] = tag
}

// runs has a pod of the cluster prod name an image, and run a digest; "" if that is not known.
func (w *world) runs(namespace, pod, image, digest string) {
	c := podimages.Container{Cluster: "prod", Namespace: namespace, Pod: pod, Image: image}
	if digest != "" {
		c.ImageID = w.ref(image).Name() + "@" + digest
	}
	w.pods = append(w.pods, c)
}

// demands has a namespace demand signatures of everything in a repository; "" is the cluster.
func (w *world) demands(namespace, repository string) {
	key := signaturestest.TrustKey(signaturestest.NewKey(w.t, signaturestest.P256), nil)
	document := signaturestest.Document("own", `["`+repository+`"]`, key, "{matchPolicy: MatchRepository}")
	if namespace != "" {
		document = strings.NewReplacer("ClusterImagePolicy", "ImagePolicy", "{name: own}", "{name: own, namespace: "+namespace+"}").Replace(document)
	}
	all, err := policy.ParseObjects([]byte(document), "")
	if err != nil {
		w.t.Fatal(err)
	}
	w.policies = append(w.policies, all...)
}

func (w *world) ref(text string) reference.Reference {
	ref, err := reference.Parse(text)
	if err != nil {
		w.t.Fatal(err)
	}
	return ref
}

// answerer answers about the world.
func (w *world) answerer() *Answerer {
	set, err := policy.NewSet(w.policies)
	if err != nil {
		w.t.Fatal(err)
	}
	in := InForce{func(context.Context) (*policy.Set, error) { return set, nil }, clock.RealClock{}}
	return &Answerer{Images: worldImages{w}, Tags: worldTags{w}, Policies: in, Use: worldUse{w}, Containers: w, Naming: w, Jobs: w, Authorizer: authorizer.AuthorizerFunc(w.authorize)}
}

// as is the context of a caller.
func (w *world) as(name string) context.Context {
	return genericapirequest.WithUser(w.t.Context(), &user.DefaultInfo{Name: name})
}

// ask asks about one reference.
func (w *world) ask(ctx context.Context, q Question) *Answer {
	w.t.Helper()
	status, err := w.answerer().Answer(ctx, &ReferenceReviewSpec{References: []Question{q}})
	if err != nil {
		w.t.Fatal(err)
	}
	return &status.References[0]
}

// authorize is an authorizer.AuthorizerFunc.
func (w *world) authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if w.may(a) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// Find is part of Jobs.
func (w *world) Find(_ context.Context, source push.Source, key string) (*push.Job, error) {
	if why, ok := w.failed[key]; ok && source == push.OfCluster("prod") {
		return &push.Job{Error: why, Enqueued: time.Unix(1e9, 0)}, nil
	}
	return nil, nil
}

// Naming is part of Containers.
func (w *world) Naming(_ context.Context, values []string, most int) (all []podimages.Container, more bool, err error) {
	if err := w.read(); err != nil {
		return nil, false, err
	}
	for _, c := range w.pods {
		if !slices.Contains(values, c.Image) && !slices.Contains(values, runs(c)) {
			continue
		}
		if w.bounded && len(all) == most {
			return all, true, nil
		}
		all = append(all, c)
	}
	return all, false, nil
}

// InNamespace is part of Containers.
func (w *world) InNamespace(_ context.Context, namespace string, _ int) (all []podimages.Container, more bool, err error) {
	if err := w.read(); err != nil {
		return nil, false, err
	}
	for _, c := range w.pods {
		if c.Namespace == namespace {
			all = append(all, c)
		}
	}
	return all, false, nil
}

// Running is part of Naming.
func (w *world) Running([]string, func(usage.Tagged) usage.Run) (outdated, unknown usage.Count) {
	return outdated, unknown
}

type worldImages struct{ *world }

func (w worldImages) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if err := w.read(); err != nil {
		return nil, err
	}
	if image := w.images[name]; image != nil {
		return image, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "images"}, name)
}

func (w worldImages) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	if err := w.read(); err != nil {
		return nil, err
	}
	list := &imagev1.ImageList{}
	if o.FieldSelector != nil && w.vouching != nil && strings.HasPrefix(o.FieldSelector.String(), selectors.IndexVerdicts+"=") {
		list.Items = append(list.Items, *w.vouching)
		return list, nil
	}
	for _, image := range w.images {
		if o.FieldSelector == nil {
			list.Items = append(list.Items, *image)
			continue
		}
		for _, r := range o.FieldSelector.Requirements() {
			base := w.images[r.Value]
			if r.Field == selectors.Base && base == nil {
				warning.AddWarning(ctx, "", "the layers of the base are not known")
			}
			onBase := r.Field == selectors.Base && base != nil && image != base && manifest.BeginsWith(image, base)
			hasLayer := slices.ContainsFunc(image.DockerImageLayers, func(l imagev1.ImageLayer) bool { return l.Name == r.Value })
			lists := slices.ContainsFunc(image.DockerImageManifests, func(m imagev1.ImageManifest) bool { return m.Digest == r.Value })
			if r.Field == selectors.Digest && strings.HasPrefix(image.Name, r.Value) || r.Field == selectors.Layer && hasLayer || onBase || r.Field == selectors.Lists && lists || r.Field == selectors.Config && w.configs[r.Value] == image.Name {
				list.Items = append(list.Items, *image)
			}
		}
	}
	return list, nil
}

type worldTags struct{ *world }

func (w worldTags) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if err := w.read(); err != nil {
		return nil, err
	}
	if tag := w.tags[name]; tag != nil {
		return tag, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "imagetags"}, name)
}

func (w worldTags) List(_ context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	if err := w.read(); err != nil {
		return nil, err
	}
	list := &imagev1.ImageTagList{}
	all := fields.Everything()
	if o.FieldSelector != nil {
		all = o.FieldSelector
	}
	for _, tag := range w.tags {
		ref, _ := tags.Reference(tag)
		now, _ := tags.Now(tag)
		if all.Matches(fields.Set{selectors.TagImage: now, selectors.TagRepository: ref.Name()}) {
			list.Items = append(list.Items, *tag)
		}
	}
	if n := int(o.Limit); n > 0 && len(list.Items) > n {
		list.Items, list.Continue = list.Items[:n], "more"
	}
	return list, nil
}

type worldUse struct{ *world }

func (w worldUse) Pods(digest string, _ *imagev1.Image) (n int, complete bool) {
	return len(w.users(digest)), digest == "" || digest != w.moved
}

func (w worldUse) Users(digest string, _ *imagev1.Image, most int) []string {
	all := w.users(digest)
	return all[:min(len(all), most)]
}

// users are all pods that run a digest.
func (w worldUse) users(digest string) (all []string) {
	for _, c := range w.pods {
		if runs(c) == digest && digest != "" {
			all = append(all, c.Cluster+"/"+c.Namespace+"/"+c.Pod)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (w worldUse) NeededBy(digest string, _ *imagev1.Image, _ int) []string {
	all := slices.Clone(w.needing[digest])
	for _, tag := range w.tags {
		ref, _ := tags.Reference(tag)
		if now, _ := tags.Now(tag); now == digest {
			all = append(all, w.needing[ref.String()]...)
		}
	}
	return all
}

func (worldUse) Unimported() int { return 0 }

func (w worldUse) NeededAs(names []reference.Reference, _ int) (all []string) {
	for _, name := range names {
		all = append(all, w.needing[podimages.Key(name)]...)
	}
	return all
}

func (w worldUse) Digests() (all []string) {
	for _, c := range w.pods {
		if digest := runs(c); digest != "" && !slices.Contains(all, digest) {
			all = append(all, digest)
		}
	}
	return all
}

func (w worldUse) Runs() (digests, references []string) { return w.Digests(), nil }

func (worldUse) Keys(digest string, _ *imagev1.Image) []string { return []string{digest} }

// runs is the digest that a container runs; "" if that is not known.
func runs(c podimages.Container) string { return podimages.Runs(c.Image, c.ImageID).Digest }

func (w worldUse) StaleReasons() []string {
	if w.away == "" {
		return nil
	}
	return []string{w.away}
}

func (w worldUse) WorkloadStaleReasons() []string { return nil }

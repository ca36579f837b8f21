package imageapi_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/imageapi"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// saidSummary is a summary that the image itself brings, as "verified|signer|signer".
func saidSummary(image *imagev1.Image) (verified string, signers []string) {
	parts := strings.Split(image.Annotations["summary"], "|")
	return parts[0], parts[1:]
}

// saying are verdicts that a function sums up, the same in all places of an image.
type saying func(image *imagev1.Image) (verified string, signers []string)

func (s saying) Summarize(image *imagev1.Image) (verified string, signers []string) { return s(image) }

func (saying) Attested(image *imagev1.Image) string { return signatures.Attested(image) }

func (s saying) Held(image *imagev1.Image) (all []annotation.HeldVerdict) {
	verified, signers := s(image)
	for _, repository := range annotation.In(image.Annotations, image.DockerImageReference, image.Name) {
		all = append(all, annotation.HeldVerdict{Place: repository.String(), Verdict: annotation.Verdict{Verified: verified, Signers: signers, Attested: s.Attested(image)}})
	}
	return all
}

// attesting says of the attestations what a label says.
type attesting struct{}

func (attesting) Summarize(image *imagev1.Image) (verified string, signers []string) {
	return saidSummary(image)
}

func (attesting) Attested(image *imagev1.Image) string { return image.Labels["attested"] }

func (attesting) Held(*imagev1.Image) []annotation.HeldVerdict { return nil }

// plain is an Image named by the last part of its reference.
func plain(name, summary string) *imagev1.Image {
	image := plainImage()
	image.Name, image.DockerImageReference = name, "registry.example.com/"+name+":1"
	image.Annotations = map[string]string{"summary": summary}
	return image
}

func selecting(selector string) *internalversion.ListOptions {
	return &internalversion.ListOptions{FieldSelector: fields.ParseSelectorOrDie(selector), LabelSelector: labels.Everything()}
}

// selected are the names of the images that a field selector selects.
func (s storages) selected(t *testing.T, selector string) string {
	t.Helper()
	var names []string
	for _, reference := range s.list(t, selecting(selector)) {
		names = append(names, strings.TrimSuffix(strings.TrimPrefix(reference, "registry.example.com/"), ":1"))
	}
	return strings.Join(names, " ")
}

// An image is gone from a repository that lost its digest, not from one that lost a tag of it.
func TestSelectWhatIsGone(t *testing.T) {
	s := newStorages(t, nil)
	image := ociImage(t)
	lost := map[reference.Reference]string{}
	mark := func(text string) {
		ref, err := reference.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		lost[ref] = "2026-05-28T10:00:00Z"
		annotation.SetMissing(image.Annotations, lost)
	}
	image.Annotations = map[string]string{}
	mark("registry.example.com/acme/web:1")
	image = s.mustCreate(t, image)
	known := strings.TrimPrefix(image.DockerImageReference, "registry.example.com/")
	if _, _, err := imageregistry.ConvertFieldLabel("gone", "false"); err == nil || !strings.Contains(err.Error(), `cannot be "false": it is empty, true`) {
		t.Errorf("gone=false: %v", err)
	}
	expect := func(selector, want, cell string) {
		t.Helper()
		if got := s.selected(t, selector); got != want {
			t.Errorf("%s selects %q, want %q", selector, got, want)
		}
		table, err := s.images.ConvertToTable(requestContext(), image, nil)
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(table.ColumnDefinitions, func(c metav1.TableColumnDefinition) bool { return c.Name == "Gone" })
		if got := table.Rows[0].Cells[at]; got != cell {
			t.Errorf("the cell is %q, want %q", got, cell)
		}
	}
	expect("gone=true", "", "<none>")
	expect("gone=", known, "<none>")
	for _, where := range []string{"registry.example.com/acme/web", "mirror.example.com/acme/web"} {
		mark(where + "@" + image.Name)
	}
	image, err := s.update(image)
	if err != nil {
		t.Fatal(err)
	}
	expect("gone=true", known, "mirror.example.com/acme/web,+1")
	expect("gone=", "", "mirror.example.com/acme/web,+1")
}

func TestSelectByVerdict(t *testing.T) {
	var asked atomic.Int64
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Verdicts: saying(func(image *imagev1.Image) (string, []string) {
		asked.Add(1)
		return saidSummary(image)
	})}})
	for name, summary := range map[string]string{
		"both": "True|ann|bob", "ann": "True|ann", "keyless": "True|https://example.com/a=b,c",
		"bad": "False", "unknown": "Unknown", "unsigned": "Unsigned",
	} {
		s.mustCreate(t, plain(name, summary))
	}
	for _, tt := range []struct {
		selector, want string
		looked         int64 // images looked at; all six where no index helps
	}{
		{"signatures.verified=True", "ann both keyless", 3},
		{"signatures.verified=False", "bad", 1},
		{"signatures.verified=Unknown", "unknown", 1},
		{"signatures.verified=Unsigned", "unsigned", 1},
		{"signatures.verified!=True", "bad unknown unsigned", 6},
		{"signatures.verified!=True,signatures.verified!=Unsigned", "bad unknown", 6},
		{"signatures.signer=ann", "ann both", 2},
		{"signatures.signer=bob", "both", 1},
		{"signatures.signer==bob,signatures.signer=ann", "both", 1},
		{"signatures.signer=ann,signatures.signer!=bob", "ann", 2},
		{"signatures.signer!=ann", "bad keyless unknown unsigned", 6},
		{"signatures.signer!=ann,signatures.signer!=bob,signatures.verified=True", "keyless", 3},
		{"signatures.signer=" + fields.EscapeValue("https://example.com/a=b,c"), "keyless", 1},
		{"signatures.signer=", "bad unknown unsigned", 3},
		{"signatures.signer!=", "ann both keyless", 6},
		{"signatures.signer=carol", "", 0},
		{"signatures.signer=true", "", 0},
		{"signatures.signer=ann,signatures.verified=False", "", 2},
		{"signatures.signer=ann,metadata.name=both", "both", 1},
		{"signatures.signer=bob,metadata.name=ann", "", 1},
	} {
		t.Run(tt.selector, func(t *testing.T) {
			asked.Store(0)
			if got := s.selected(t, tt.selector); got != tt.want {
				t.Errorf("selected %q, want %q", got, tt.want)
			}
			// A selector may ask for the summary once for each of the two fields.
			if n := asked.Load(); n < tt.looked || n > 3*tt.looked {
				t.Errorf("%d summaries were asked for; an index leaves %d images to look at", n, tt.looked)
			}
		})
	}
}

// An image is selected by each reference that it is known by, and by each repository of one.
func TestSelectByReference(t *testing.T) {
	s := newStorages(t, nil)
	for name, known := range map[string]string{
		"app": `["r.example.com:5000/team/app:1","r.example.com:5000/team/app:latest"]`, "old": `["r.example.com:5000/team/app@sha256:` + strings.Repeat("ab", 32) + `"]`,
		"moved": `["r.example.com:5000/team/app:0","r.example.com:5000/team/app2:1"]`, "bad": `{`, "none": ``, "hub": `["index.docker.io/library/busybox:1"]`,
	} {
		image := plain(name, "")
		image.Annotations[annotation.References] = known
		s.mustCreate(t, image)
	}
	for selector, want := range map[string]string{
		"references=r.example.com:5000/team/app":                   "app moved old",
		"references=r.example.com:5000/team/app2":                  "moved",
		"references=r.example.com:5000/team/app:1":                 "app",
		"references=r.example.com:5000/team":                       "",
		"references=registry.example.com/bad":                      "bad",
		"references!=r.example.com:5000/team/app":                  "bad hub none",
		"references=docker.io/library/busybox":                     "hub",
		"references=docker.io/library/busybox:1":                   "hub",
		"references=r.example.com:5000/team/app,metadata.name=old": "old",
	} {
		if got := s.selected(t, selector); got != want {
			t.Errorf("%s selects %q, want %q", selector, got, want)
		}
	}
}

// The index follows the verdict of an image that is otherwise the same, and so does a watch.
func TestVerdictChanges(t *testing.T) {
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Verdicts: saying(saidSummary)}})
	image := s.mustCreate(t, plain("image", "Unsigned"))
	options := selecting("signatures.signer=bob")
	options.ResourceVersion = image.ResourceVersion
	w, err := s.images.Watch(requestContext(), options)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()

	selectors := []string{
		"signatures.verified=Unsigned", "signatures.verified=True", "signatures.verified=False",
		"signatures.signer=ann", "signatures.signer=bob", "signatures.signer=",
	}
	for _, step := range []struct {
		summary string
		found   []string // the selectors that find it
		event   watch.EventType
	}{
		{"True|ann", []string{"signatures.verified=True", "signatures.signer=ann"}, ""},
		{"True|ann|bob", []string{"signatures.verified=True", "signatures.signer=ann", "signatures.signer=bob"}, watch.Added},
		{"True|bob", []string{"signatures.verified=True", "signatures.signer=bob"}, watch.Modified},
		{"False", []string{"signatures.verified=False", "signatures.signer="}, watch.Deleted},
		{"Unsigned", []string{"signatures.verified=Unsigned", "signatures.signer="}, ""},
	} {
		image.Annotations["summary"] = step.summary
		if image, err = s.update(image); err != nil {
			t.Fatal(err)
		}
		var found []string
		for _, selector := range selectors {
			if s.selected(t, selector) == "image" {
				found = append(found, selector)
			}
		}
		slices.Sort(found)
		slices.Sort(step.found)
		if diff := cmp.Diff(step.found, found); diff != "" {
			t.Errorf("%s is found by (-want +got):\n%s", step.summary, diff)
		}
		if step.event != "" {
			select {
			case event := <-w.ResultChan():
				if event.Type != step.event {
					t.Errorf("%s: event %s %v, want %s", step.summary, event.Type, event.Object, step.event)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s: no event, want %s", step.summary, step.event)
			}
		}
	}
}

// Where there are no policies, the verdict is NoPolicy, whether an image is signed or not.
func TestVerdictsWithoutPolicies(t *testing.T) {
	s := newStorages(t, nil)
	signed := plain("signed", "")
	signed.Signatures = []imagev1.ImageSignature{signature("signed", "a", "atomic", "x")}
	s.mustCreate(t, signed)
	s.mustCreate(t, plain("unsigned", ""))
	for selector, want := range map[string]string{
		"signatures.verified=Unknown": "", "signatures.verified=Unsigned": "", "signatures.verified=NoPolicy": "signed unsigned", "signatures.signer=": "signed unsigned",
	} {
		if got := s.selected(t, selector); got != want {
			t.Errorf("%s selected %q, want %q", selector, got, want)
		}
	}
}

// pods is what uses images: pods by digest or reference.
type pods struct {
	using  map[string]int
	on     map[string]string // platforms of nodes, by the digest that runs there
	synced bool
	partly bool         // a cluster has not been read yet
	doubts []string     // about clusters
	asked  atomic.Int64 // calls of PodsUsing
	told   func(digests []string)

	needing    map[string]int // workloads that need an image
	needDoubts []string
	unfollowed string
	since      int64  // when the pods were created
	version    uint64 // of the keys
	naming     string // the tag that the pods name which tell a digest, if not ""
}

// NeededBy has all workloads in one namespace, numbered.
func (p *pods) NeededBy(digests []string, references []reference.Reference, most int) (workloads []string) {
	n := 0
	for _, digest := range digests {
		digest, _, _ = strings.Cut(digest, "@")
		n += p.needing[digest]
	}
	for _, ref := range references {
		n += p.needing[ref.Pulled().String()]
	}
	for i := range min(most, n) {
		workloads = append(workloads, fmt.Sprintf("prod/team/deployments/app-%d", i))
	}
	return workloads
}

func (p *pods) WorkloadStaleReasons() []string { return p.needDoubts }

func (p *pods) Unfollowed() string { return p.unfollowed }

// need has workloads need images, and none else.
func (p *pods) need(keys ...string) {
	changed := slices.Collect(maps.Keys(p.needing))
	p.needing = map[string]int{}
	for _, key := range keys {
		p.needing[key] = 1
	}
	p.told(append(changed, keys...))
}

func (p *pods) Synced() bool { return p.synced }

func (p *pods) Complete() bool { return p.synced && !p.partly }

func (p *pods) StaleReasons() []string { return p.doubts }

// UsedBy has all pods in one namespace.
func (p *pods) UsedBy(digests []string, references []reference.Reference) []string {
	if p.PodsUsing(digests, references) == 0 {
		return nil
	}
	return []string{"prod", "prod/team"}
}

// Users has all pods in one namespace, numbered.
func (p *pods) Users(digests []string, references []reference.Reference, most int) (users []string) {
	for i := range min(most, p.PodsUsing(digests, references)) {
		users = append(users, fmt.Sprintf("prod/team/pod-%d", i))
	}
	return users
}

func (p *pods) PodsUsing(digests []string, references []reference.Reference) (n int) {
	p.asked.Add(1)
	for _, digest := range digests {
		digest, platform, _ := strings.Cut(digest, "@")
		if on := p.on[digest]; platform == "" || on == "" || on == platform {
			n += p.using[digest]
		}
	}
	for _, ref := range references {
		n += p.using[ref.Pulled().String()]
	}
	return n
}

func (p *pods) InUse() (digests, references []string) {
	for _, key := range slices.Concat(slices.Collect(maps.Keys(p.using)), slices.Collect(maps.Keys(p.needing))) {
		if strings.ContainsAny(key, "/?") {
			references = append(references, key)
		} else {
			digests = append(digests, key)
		}
	}
	return digests, references
}

func (p *pods) Named(uint64) (all []usage.Named, version uint64) {
	_, others := p.InUse()
	for _, key := range others {
		n := usage.Named{Tag: key, Since: p.since}
		if tag, id, ok := podimages.CutUnsettled(key); ok {
			n.Tag, n.ID = tag, id
		}
		all = append(all, n)
	}
	return all, p.version + 1
}

func (p *pods) Reporting(digests []string) (all []usage.Named) {
	for _, digest := range digests {
		if p.naming != "" && p.using[digest] > 0 {
			all = append(all, usage.Named{Tag: p.naming, ID: digest, Since: p.since})
		}
	}
	return all
}

func (p *pods) Telling(id string) (keys []string) {
	_, others := p.InUse()
	return slices.DeleteFunc(others, func(key string) bool { return !strings.HasSuffix(key, "?"+id) })
}

func (p *pods) Used(keys []string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return p.using[key] == 0 })
}

func (p *pods) Subscribe(f func(digests []string)) (cancel func()) {
	p.told = f
	return func() { p.told = nil }
}

// use has one pod each use these, and no other.
func (p *pods) use(keys ...string) {
	changed := slices.Collect(maps.Keys(p.using))
	p.using = map[string]int{}
	for _, key := range keys {
		p.using[key] = 1
	}
	p.version++
	var digests []string
	for _, key := range append(changed, keys...) {
		if _, id, ok := podimages.CutUnsettled(key); ok {
			digests = append(digests, id)
		} else if !strings.Contains(key, "/") {
			digests = append(digests, key)
		}
	}
	p.told(digests)
}

func (s storages) cell(t *testing.T, image *imagev1.Image, column string) any {
	t.Helper()
	table, err := s.images.ConvertToTable(requestContext(), image, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range table.ColumnDefinitions {
		if c.Name == column {
			return table.Rows[0].Cells[i]
		}
	}
	t.Fatalf("there is no column %s", column)
	return nil
}

func TestUsed(t *testing.T) {
	p := &pods{synced: true, using: map[string]int{"digest": 2, "registry.example.com/reference:1": 1, "registry.example.com/former:3": 4}}
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: p, Verdicts: saying(saidSummary)}})
	for name, known := range map[string]string{
		"digest": "", "reference": "not JSON", "annotated": `["registry.example.com/former:3","registry.example.com/annotated:1"]`, "idle": `[]`,
	} {
		image := plain(name, "True|"+name)
		image.Annotations[annotation.References] = known
		s.mustCreate(t, image)
	}
	for selector, want := range map[string]string{
		"used=true":                           "annotated digest reference",
		"used=false":                          "idle",
		"used!=true":                          "idle",
		"used=true,used=false":                "",
		"used=true,metadata.name!=digest":     "annotated reference",
		"used=true,signatures.signer=digest":  "digest",
		"used=false,signatures.signer=digest": "",
		"used=true,metadata.name=idle":        "",
	} {
		if got := s.selected(t, selector); got != want {
			t.Errorf("%s selected %q, want %q", selector, got, want)
		}
	}
	for name, want := range map[string]string{"digest": "2", "reference": "1", "annotated": "4", "idle": "0"} {
		if got := s.cell(t, s.get(t, name), "Pods"); got != want {
			t.Errorf("%s: column PODS %v, want %s", name, got, want)
		}
	}

	// Pods come and go without a change of any image.
	p.use("idle")
	if got := s.selected(t, "used=true"); got != "idle" {
		t.Errorf("used=true selected %q after the pods have changed", got)
	}
	if _, err := s.images.DeleteCollection(requestContext(), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, selecting("used=false")); err != nil {
		t.Fatal(err)
	}
	if got := s.selected(t, "used!=maybe"); got != "idle" {
		t.Errorf("after those not used were deleted there are %q", got)
	}
}

// What is not known is not answered: least of all that nothing is used.
func TestUsedIsNotKnown(t *testing.T) {
	for _, tt := range []struct {
		name, cell string
		usage      imageregistry.Usage
		is         func(error) bool
	}{
		{"no pods", "Unknown", nil, apierrors.IsBadRequest},
		{"pods not yet read", "Unknown", &pods{}, apierrors.IsServiceUnavailable},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: tt.usage}})
			image := s.mustCreate(t, plain("image", ""))
			if got := s.cell(t, image, "Pods"); got != tt.cell {
				t.Errorf("column PODS %v, want %s", got, tt.cell)
			}
			for _, selector := range []string{"used=true", "used!=true", "metadata.name=image,used=false"} {
				if list, err := s.images.List(requestContext(), selecting(selector)); !tt.is(err) {
					t.Errorf("list %s: %v, %v", selector, list, err)
				}
			}
			if _, err := s.images.DeleteCollection(requestContext(), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, selecting("used=false")); !tt.is(err) {
				t.Errorf("deletecollection: %v", err)
			}
			if got := s.selected(t, "metadata.name=image"); got != "image" {
				t.Errorf("left: %q", got)
			}
		})
	}
}

// A watch cannot see pods change, so it is refused.
func TestUsedIsNotWatched(t *testing.T) {
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: &pods{synced: true}}})
	w, err := s.images.Watch(requestContext(), selecting("used=true"))
	if !apierrors.IsBadRequest(err) {
		t.Errorf("watch: %v", err)
	}
	if err == nil {
		w.Stop()
	}
}

// What attestations come to is selected by an index, without an entry of what has none.
func TestSelectByAttestations(t *testing.T) {
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Verdicts: attesting{}}})
	for name, cell := range map[string]string{"True": "True", "False": "False", "Unknown": "Unknown", "ByIndex": "ByIndex", "": "<none>"} {
		image := plain("is"+strings.ToLower(name), "Unsigned")
		image.Labels = map[string]string{"attested": name}
		s.mustCreate(t, image)
		if got := s.cell(t, image, "Attested"); got != cell {
			t.Errorf("the column is %v, want %s", got, cell)
		}
	}
	for selector, want := range map[string]string{
		"attestations.verified=True": "istrue", "attestations.verified=False": "isfalse", "attestations.verified=Unknown": "isunknown",
		"attestations.verified=ByIndex": "isbyindex", "attestations.verified=": "is", "attestations.verified!=": "isbyindex isfalse istrue isunknown",
		"attestations.verified!=True": "is isbyindex isfalse isunknown",
	} {
		if got := s.selected(t, selector); got != want {
			t.Errorf("%s selects %q, want %q", selector, got, want)
		}
	}
	unjudged := newStoragesWith(t, imageapi.Options{})
	image := plain("image", "")
	if got := unjudged.cell(t, image, "Attested"); got != "<none>" {
		t.Errorf("the column is %v", got)
	}
	image.Signatures = []imagev1.ImageSignature{{Type: verdicts.TypeAttestation, Content: []byte("x")}}
	if got := unjudged.cell(t, image, "Attested"); got != "Unknown" {
		t.Errorf("the column is %v where nobody judges", got)
	}
}

func TestSignerColumn(t *testing.T) {
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Verdicts: saying(saidSummary)}})
	for summary, want := range map[string][2]string{
		"Unsigned": {"Unsigned", "<none>"}, "True|a": {"True", "a"}, "True|a|b": {"True", "a,b"}, "True|a|b|c|d": {"True", "a,b,+2"},
	} {
		image := plain("image", summary)
		if got := [2]string{s.cell(t, image, "Verdict").(string), s.cell(t, image, "Signer").(string)}; got != want {
			t.Errorf("%s: %q, want %q", summary, got, want)
		}
	}
}

// heard keeps the references that the last image was asked for with.
type heard struct{ references []reference.Reference }

func (*heard) Synced() bool { return true }

func (*heard) Unfollowed() string { return "" }

func (*heard) Complete() bool { return true }

func (*heard) StaleReasons() []string { return nil }

func (*heard) UsedBy([]string, []reference.Reference) []string { return nil }

func (*heard) Users([]string, []reference.Reference, int) []string { return nil }

func (*heard) InUse() (digests, references []string) { return nil, nil }

func (*heard) Used([]string) []string { return nil }

func (*heard) Telling(string) []string { return nil }

func (*heard) Reporting([]string) []usage.Named { return nil }

func (*heard) Named(uint64) ([]usage.Named, uint64) { return nil, 0 }

func (*heard) Subscribe(func([]string)) (cancel func()) { return func() {} }

func (h *heard) NeededBy([]string, []reference.Reference, int) []string { return nil }

func (h *heard) WorkloadStaleReasons() []string { return nil }

func (h *heard) PodsUsing(_ []string, references []reference.Reference) int {
	h.references = references
	return len(references)
}

// Whatever stands in the annotation, the image's own reference counts, and what can be read of an
// array of references counts with it.
func FuzzReferencesAnnotation(f *testing.F) {
	for _, seed := range []string{"", `[]`, `["registry.example.com/a:1","b@sha256:x"]`, `null`, `{"a":1}`, `[1,"x"]`, `["\u0000"]`, `[[]]`, `["a"`} {
		f.Add(seed)
	}
	h := &heard{}
	s := newStoragesWith(f, imageapi.Options{Images: imageregistry.Options{Usage: h}})
	f.Fuzz(func(t *testing.T, text string) {
		image := plain("image", "")
		image.Annotations[annotation.References] = text
		own, err := reference.Parse(image.DockerImageReference)
		if err != nil {
			t.Fatal(err)
		}
		want := append(annotation.Known(image.Annotations), own)
		if got := s.cell(t, image, "Pods"); got != fmt.Sprint(len(want)) || !slices.Equal(h.references, want) {
			t.Errorf("%q: %v pods by %q, want by %q", text, got, h.references, want)
		}
	})
}

package answers

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/internal/admit"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// shelf has objects by name, and lists none.
type shelf map[string]runtime.Object

func (s shelf) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	if obj := s[name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(imagev1.Resource("images"), name)
}

func (s shelf) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	return &imagev1.ImageList{}, nil
}

// tagShelf is a shelf of tags.
type tagShelf struct{ shelf }

func (tagShelf) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	return &imagev1.ImageTagList{}, nil
}

// queued is a job that is found under every key; nil is none.
type queued struct{ *push.Job }

func (q queued) Find(context.Context, push.Source, string) (*push.Job, error) { return q.Job, nil }

var testNow = time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC)

const (
	testRepository = "registry.example.com/team/app"
	testDigest     = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	otherDigest    = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

func parsed(t testing.TB, text string) reference.Reference {
	t.Helper()
	ref, err := reference.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// tagTo is the history of a tag that leads to a digest, "" if it is gone, as checked at a time.
func tagTo(t testing.TB, text, digest string, checked time.Time) (string, *imagev1.ImageTag) {
	ref := parsed(t, text)
	return tags.Name(ref), &imagev1.ImageTag{
		ObjectMeta: metav1.ObjectMeta{Name: tags.Name(ref), Namespace: tags.Namespace, Generation: 1},
		Spec:       &imagev1.TagReference{Name: ref.Tag, From: &corev1.ObjectReference{Kind: "DockerImage", Name: text}},
		Status:     &imagev1.NamedTagEventList{Tag: ref.Tag, Items: []imagev1.TagEvent{{Created: metav1.NewTime(checked), Image: digest, DockerImageReference: ref.Name() + "@" + digest, Generation: 1}}},
	}
}

// state is what a server knows of an image when a pod asks.
type state struct {
	image  *imagev1.Image
	tag    *imagev1.ImageTag
	job    *push.Job
	mirror bool // the pod names the mirror of the registry
}

// demand is what policies demand of an image.
type demand struct {
	// of the first policy
	mode, unknown, age, immutable string
	excepts, attests              bool
	// whether there is a second policy of the cluster, one of the namespace, and one for the mirror
	second, own, mirror bool
	// what the first demands instead of a key: a workflow, and who has called it
	keyless, caller bool
	// whether another signer is an alternative to the first, by a policy with the same admission, or
	// must have signed, too
	alternative, also bool
}

// workflow is one that others call.
const workflow = "https://github.com/acme/shared/.github/workflows/build.yml@refs/tags/v1"

func (d demand) set(t testing.TB, key, other *signaturestest.Key, fulcio *signaturestest.Deployment) *policy.Set {
	var annotations []string
	for name, value := range map[string]string{policy.AdmissionAnnotation: d.mode, policy.UnknownAnnotation: d.unknown, policy.MaxTagAgeAnnotation: d.age, policy.ImmutableTagsAnnotation: d.immutable} {
		if value != "" {
			annotations = append(annotations, fmt.Sprintf("%s: %q", name, value))
		}
	}
	identity := "{matchPolicy: MatchRepository}"
	if d.attests {
		identity = "" // attestations are about a digest; here all signatures are for one repository
	}
	trust, scopes := signaturestest.TrustKey(other, nil), `["registry.example.com"]`
	first := signaturestest.TrustKey(key, nil)
	switch {
	case d.caller:
		first = fulcio.TrustFulcio(t, "signedURI: "+workflow+`, extensions: [{name: sourceRepositoryURI, value: "https://github.com/acme/app"}]`)
	case d.keyless:
		first = fulcio.TrustFulcio(t, "signedURI: "+workflow)
	}
	document := strings.Replace(signaturestest.Document("first", scopes, first, identity), "metadata: {", "metadata: {annotations: {"+strings.Join(annotations, ", ")+"}, ", 1)
	if d.attests {
		document += "    attestations: [{name: tested, predicateType: vuln}]\n"
	}
	if d.excepts {
		document += fmt.Sprintf("  exceptions:\n  - {images: [%q], until: %q, by: ann, reason: soon}\n", testDigest, testNow.Add(365*24*time.Hour).Format(time.RFC3339))
	}
	if d.alternative || d.also {
		document += strings.Replace(signaturestest.Document("more", scopes, trust, identity), "metadata: {", fmt.Sprintf("metadata: {annotations: {%s: %q, %s: %q}, ", policy.AdmissionAnnotation, cmp.Or(d.mode, policy.ModeEnforce), policy.UnknownAnnotation, cmp.Or(d.unknown, policy.UnknownDeny)), 1)
	}
	if d.alternative {
		document = strings.ReplaceAll(document, "spec:\n", "spec:\n  alternatives: release\n")
	}
	if d.second {
		document += signaturestest.Document("second", scopes, trust, identity)
	}
	if d.mirror { // one that refuses nothing by itself
		document += strings.Replace(signaturestest.Document("mirror", `["mirror.example.com"]`, trust, ""), "metadata: {", "metadata: {annotations: {"+policy.AdmissionAnnotation+": "+policy.ModeAudit+"}, ", 1)
	}
	set := signaturestest.SetFrom(t, document)
	if !d.own {
		return set
	}
	spec := signaturestest.SetFrom(t, signaturestest.Document("own", scopes, trust, identity)).Policies()[0].Spec
	own, err := policy.New("team", "own", &spec)
	if err == nil {
		set, err = set.With(own)
	}
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// stricter are the demands that demand one thing more. A policy for the mirror is not one of them:
// it judges in place of the source's, as a policy of a narrower scope does.
func (d demand) stricter() (all []demand) {
	add := func(more func(*demand) bool) {
		next := d
		if more(&next) {
			all = append(all, next)
		}
	}
	following := func(value *string, order ...string) bool {
		i := slices.Index(order, *value) + 1
		if i < len(order) {
			*value = order[i]
		}
		return i < len(order)
	}
	add(func(d *demand) bool { return following(&d.mode, policy.ModeAudit, policy.ModeWarn, policy.ModeEnforce) })
	add(func(d *demand) bool {
		return following(&d.unknown, policy.UnknownAllow, policy.UnknownWarn, policy.UnknownDeny)
	})
	add(func(d *demand) bool { return following(&d.age, "", "10s") })
	add(func(d *demand) bool { return following(&d.immutable, "", "v*", "*") })
	add(func(d *demand) (more bool) { more, d.excepts = d.excepts, false; return more })
	add(func(d *demand) (more bool) { more, d.attests = !d.attests, true; return more })
	add(func(d *demand) (more bool) { more, d.second = !d.second, true; return more })
	add(func(d *demand) (more bool) { more, d.own = !d.own, true; return more })
	add(func(d *demand) (more bool) { more, d.caller = d.keyless && !d.caller, true; return more })
	add(func(d *demand) (more bool) { more, d.alternative = d.alternative, false; return more })
	add(func(d *demand) (more bool) { more, d.alternative, d.also = d.alternative, false, true; return more })
	return all
}

// Whatever is known of an image, who demands more of it does not admit it more easily. Neither does
// anything that who may push, or who may create pods, can bring about make an image unknown.
func TestMoreDemandedIsNeverLooser(t *testing.T) {
	t.Parallel()
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	image := func(found string, blobs ...any) *imagev1.Image {
		i := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: testDigest, Annotations: map[string]string{}}, DockerImageReference: testRepository + "@" + testDigest}
		for _, b := range blobs {
			content := signaturestest.Marshal(t, b)
			i.Signatures = append(i.Signatures, imagev1.ImageSignature{ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(testDigest, content)}, Type: signatures.TypeSimpleSigning, Content: content})
		}
		if found != "" {
			i.Annotations[annotation.Repositories] = fmt.Sprintf(`{%q:{%s}}`, testRepository, found)
		}
		return i
	}
	fulcio := signaturestest.NewDeployment(t)
	calledBy := func(repository string) any {
		leaf, key := fulcio.Identity(t, workflow, signaturestest.Extensions(t, map[int]string{12: repository}))
		return fulcio.Keyless(t, leaf, key, testDigest, testRepository, time.Now())
	}
	artifact := image("")
	artifact.Annotations[annotation.ArtifactType] = "application/x"
	images := map[string]*imagev1.Image{
		"not stored": nil, "unsigned": image(""), "signed": image("", key.SimpleSigning(t, testDigest, testRepository)),
		"signed by another": image("", other.SimpleSigning(t, testDigest, testRepository)),
		"built for one":     image("", calledBy("https://github.com/acme/app")),
		"built for another": image("", calledBy("https://github.com/acme/evil")),
		"unusable":          image(`"unusable":"too large"`), "not searched": image(`"unread":"500"`), "artifact": artifact,
	}
	jobs := map[string]*push.Job{
		"no job": nil, "running": {State: job.Leased, Attempts: 1},
		"away":    {State: job.Waiting, Attempts: 3, Error: "connection refused", Unread: true},
		"refused": {State: job.Dead, Attempts: 1, Error: "not an image"},
	}
	states := map[string]state{}
	for what, i := range images {
		for when, job := range jobs {
			for led, age := range map[string]time.Duration{"now": 0, "a day ago": 24 * time.Hour, "in a day": -24 * time.Hour} {
				if age < 0 && what != "signed" && what != "unsigned" {
					continue // these two show what the bound decides
				}
				_, tag := tagTo(t, testRepository+":v1", testDigest, testNow.Add(-age))
				if job == nil || job.Unread || i == nil || age != 0 { // others do not matter to what is known now
					states[what+", led "+led+", "+when] = state{image: i, tag: tag, job: job}
				}
			}
			if job == nil || job.Unread || i == nil {
				states[what+", by its digest, "+when] = state{image: i, job: job}
			}
			_, moved := tagTo(t, testRepository+":v1", testDigest, testNow)
			moved.Status.Items = append(moved.Status.Items, imagev1.TagEvent{Created: metav1.NewTime(testNow.Add(-time.Hour)), Image: otherDigest})
			if job == nil || job.Unread || i == nil {
				states[what+", moved, "+when] = state{image: i, tag: moved, job: job}
			}
			_, gone := tagTo(t, testRepository+":v1", "", testNow)
			states["the tag is gone, "+when] = state{tag: gone, job: job}
		}
	}
	for name, s := range maps.Clone(states) {
		if s.mirror = true; s.job == nil || s.job.Unread {
			states[name+", by the mirror's name"] = s
		}
	}
	sets := map[demand]*policy.Set{}
	type asked struct {
		demand
		state string
	}
	answered := map[asked]admit.Judgement{}
	ask := func(d demand, name string) admit.Judgement {
		if j, ok := answered[asked{d, name}]; ok {
			return j
		}
		s, set := states[name], sets[d]
		if set == nil {
			set = d.set(t, key, other, fulcio)
			sets[d] = set
		}
		a := &Answerer{Images: shelf{}, Tags: shelf{}, Jobs: queued{s.job}, Clock: testingclock.NewFakePassiveClock(testNow)}
		a.Policies = InForce{func(context.Context) (*policy.Set, error) { return set, nil }, a.Clock}
		a.Registries = mirroring{sources: func(ref reference.Reference) []reference.Reference {
			if ref.Host != "mirror.example.com" {
				return nil
			}
			ref.Host = "registry.example.com"
			return []reference.Reference{ref}
		}}
		ref := parsed(t, testRepository+"@"+testDigest)
		if s.image != nil {
			a.Images = shelf{testDigest: s.image}
		}
		if s.tag != nil {
			ref = parsed(t, testRepository+":v1")
			a.Tags = shelf{tags.Name(ref): s.tag}
		}
		if s.mirror {
			ref.Host = "mirror.example.com"
		}
		j, err := a.Admit(t.Context(), "prod", "team", ref)
		if err != nil {
			t.Fatal(err)
		}
		answered[asked{d, name}] = j
		return j
	}
	var demands []demand
	for _, mode := range []string{policy.ModeAudit, policy.ModeWarn, policy.ModeEnforce} {
		for _, unknown := range []string{policy.UnknownAllow, policy.UnknownWarn, policy.UnknownDeny} {
			for _, age := range []string{"", "10s"} {
				for i := range 4 {
					d := demand{mode: mode, unknown: unknown, age: age, excepts: i&1 > 0, second: i&2 > 0}
					demands = append(demands, d)
					if i == 0 && age == "" { // the others by themselves
						attests, own, mirror, immutable := d, d, d, d
						attests.attests, own.own, mirror.mirror, immutable.immutable = true, true, true, "v*"
						old := immutable
						old.age = "10s"
						keyless, caller := d, d
						keyless.keyless, caller.keyless, caller.caller = true, true, true
						either, eitherOld, eitherExcepts := d, old, d
						either.alternative, eitherOld.alternative, eitherExcepts.alternative, eitherExcepts.excepts = true, true, true, true
						demands = append(demands, attests, own, mirror, immutable, old, keyless, caller, either, eitherOld, eitherExcepts)
					}
				}
			}
		}
	}
	for name := range states {
		for _, d := range demands {
			is := ask(d, name)
			for _, more := range d.stricter() {
				if then := ask(more, name); then.Findings.Worst() < is.Findings.Worst() {
					t.Errorf("%s: by %+v it is %s, and by %+v %s: %+v", name, d, is.Findings.Worst(), more, then.Findings.Worst(), then.Findings)
				}
			}
			forced := !strings.Contains(name, "away") && !strings.Contains(name, "not searched")
			if d.mode == policy.ModeEnforce && forced && len(is.Findings) > 0 && !d.excepts && !d.mirror && is.Findings.Worst() != admit.Deny {
				t.Errorf("%s: whoever may push or create pods can bring this about, and by %+v it is %s: %+v", name, d, is.Findings.Worst(), is.Findings)
			}
		}
	}
	// What the annotation is for: the registry is away, or the signatures there cannot be read.
	lenient := demand{mode: policy.ModeEnforce, unknown: policy.UnknownAllow}
	for _, name := range []string{"not stored, by its digest, away", "not searched, led now, no job"} {
		if got := ask(lenient, name); got.Findings.Worst() != admit.Audit {
			t.Errorf("%s: %s: %+v", name, got.Findings.Worst(), got.Findings)
		}
	}
	if got := ask(lenient, "signed, led now, no job"); len(got.Findings) > 0 {
		t.Errorf("what is verified: %+v", got.Findings)
	}
	// Whoever may push brings a move about, whatever admits the unknown, and so does a push that an
	// exception names.
	for _, name := range []string{"signed, moved, no job", "unsigned, moved, no job", "not searched, moved, away"} {
		for _, excepts := range []bool{false, true} {
			d := demand{mode: policy.ModeEnforce, unknown: policy.UnknownAllow, immutable: "v*", excepts: excepts}
			if got := ask(d, name); got.Findings.Worst() != admit.Deny || !strings.Contains(got.Findings[0].Reason, "must not move") {
				t.Errorf("%s, by %+v: %+v", name, d, got.Findings)
			}
		}
	}
	if got := ask(demand{mode: policy.ModeEnforce, immutable: "*-release"}, "signed, moved, no job"); len(got.Findings) > 0 {
		t.Errorf("a tag that may move: %+v", got.Findings)
	}
	// The clock has been set back: it is not known how long ago the registry was asked.
	if got := ask(demand{mode: policy.ModeEnforce, age: "10s"}, "signed, led in a day, no job"); len(got.Findings) != 1 || !got.Pending || !strings.Contains(got.Findings[0].Reason, "by a clock that has been set back since, and policy") {
		t.Errorf("checked in the future: %+v", got)
	}
	// A known answer is kept beside the bound, and says both.
	if got := ask(demand{mode: policy.ModeEnforce, unknown: policy.UnknownAllow, age: "10s"}, "unsigned, led a day ago, away"); len(got.Findings) != 1 ||
		!strings.Contains(got.Findings[0].Reason, "Unsigned: it has no signature") || !strings.Contains(got.Findings[0].Reason, "last checked 24h ago, and policy") {
		t.Errorf("known to be unsigned, and known of old: %+v", got)
	}
}

// Moves that a history no longer has do not make what runs verified: that is unknown.
func TestMoveThatTheHistoryNoLongerHas(t *testing.T) {
	t.Parallel()
	key, other := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	content := signaturestest.Marshal(t, key.SimpleSigning(t, testDigest, testRepository))
	signed := &imagev1.Image{
		ObjectMeta: metav1.ObjectMeta{Name: testDigest, Annotations: map[string]string{}}, DockerImageReference: testRepository + "@" + testDigest,
		Signatures: []imagev1.ImageSignature{{ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(testDigest, content)}, Type: signatures.TypeSimpleSigning, Content: content}},
	}
	unsigned := signed.DeepCopy()
	unsigned.Signatures = nil
	set := demand{mode: policy.ModeEnforce, unknown: policy.UnknownAllow, immutable: "v*"}.set(t, key, other, signaturestest.NewDeployment(t))
	ref := parsed(t, testRepository+":v1")
	_, tag := tagTo(t, ref.String(), otherDigest, testNow)
	ask := func(image *imagev1.Image) Judgement {
		return judge(set, testNow, testNow, Asked{Image: image, Reference: ref, Tag: ledTo(tag, testDigest, testNow)})
	}
	if got := ask(signed); got.Verdict.Verified != "True" {
		t.Errorf("a tag that never led to what runs: %+v", got.Verdict)
	}
	move := func(to string) {
		before := tag.DeepCopy()
		tags.Lead(tag, ref, to, metav1.NewTime(testNow))
		tags.KeepFirst(tag, before)
	}
	move(testDigest)
	if got := ask(signed); got.Verdict.Verified != "False" || got.Verdict.Reason != ReasonTagMoved {
		t.Errorf("a tag that led to what runs: %+v", got.Verdict)
	}
	for n := range tags.MaxItems {
		move(fmt.Sprintf("sha256:%064x", n))
	}
	if got := ask(signed); got.Verdict.Verified != "Unknown" || got.Verdict.Reason != ReasonTagMoved || !strings.Contains(got.Verdict.Message, "no longer says whether it moved to this image; this image is True by itself") || got.Findings.Worst() != admit.Deny {
		t.Errorf("a tag of which that is no longer known: %+v", got)
	}
	if got := ask(unsigned); got.Verdict.Verified != "Unsigned" || !strings.Contains(got.Verdict.Message, "no longer says") {
		t.Errorf("what is unsigned: %+v", got.Verdict)
	}
}

// A mirror's name means the same to admission and to a review: what a policy names of the two.
func TestMirrorsNameMeansOneThing(t *testing.T) {
	t.Parallel()
	const mirror, source = "mirror.example.com/copy/app:v1", "registry.example.com/team/app:v1"
	trust := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	image := func(name string) *imagev1.Image {
		return &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: testDigest}, DockerImageReference: strings.TrimSuffix(name, ":v1") + "@" + testDigest}
	}
	for name, c := range map[string]struct {
		scopes, known, namespaced string
		by, means, verdict        string
		missing                   string // what admission has imported
	}{
		"no policy":                          {`["other.example.com"]`, source, "", "", source, "NoPolicy", ""},
		"the source's":                       {`["registry.example.com"]`, source, "", "p", source, "Unsigned", ""},
		"the source's, and nothing is known": {`["registry.example.com"]`, "", "", "p", "", "", source},
		"the source's, and the mirror's own is known": {`["registry.example.com"]`, mirror, "", "p", "", "", source},
		"the mirror's":                       {`["mirror.example.com"]`, source, "", "p", "", "", mirror},
		"the mirror's, and its own is known": {`["mirror.example.com"]`, mirror, "", "p", mirror, "Unsigned", ""},
		"one for both":                       {`["mirror.example.com", "registry.example.com"]`, source, "", "p", source, "Unsigned", ""},
		"one for everything":                 {`["*"]`, source, "", "p", source, "Unsigned", ""},
		// whoever may write a policy in a namespace gets past no policy of the cluster
		"the source's, and a namespace's for the mirror": {`["registry.example.com"]`, mirror, `["mirror.example.com"]`, "p", "", "", source},
	} {
		t.Run(name, func(t *testing.T) {
			set := signaturestest.SetFrom(t, signaturestest.Document("p", c.scopes, trust, ""))
			if c.namespaced != "" {
				own := signaturestest.SetFrom(t, signaturestest.Document("own", c.namespaced, trust, "")).Policies()[0]
				spec := own.Spec
				of, err := policy.New("team", "own", &spec)
				if err != nil {
					t.Fatal(err)
				}
				if set, err = set.With(of); err != nil {
					t.Fatal(err)
				}
			}
			images, histories := shelf{}, shelf{}
			if c.known != "" {
				at, tag := tagTo(t, c.known, testDigest, testNow)
				images[testDigest], histories[at] = image(c.known), tag
			}
			a := &Answerer{
				Images: images, Tags: tagShelf{histories}, Jobs: queued{}, Use: unused{}, Containers: unused{}, Naming: unused{}, Clock: testingclock.NewFakePassiveClock(testNow),
				Registries: mirroring{sources: func(ref reference.Reference) []reference.Reference {
					if ref.Host != "mirror.example.com" {
						return nil
					}
					ref.Host, ref.Repository = "registry.example.com", "team/app"
					return []reference.Reference{ref}
				}},
			}
			a.Policies = InForce{func(context.Context) (*policy.Set, error) { return set, nil }, a.Clock}
			j, err := a.Admit(t.Context(), "prod", "team", parsed(t, mirror))
			if err != nil {
				t.Fatal(err)
			}
			by := ""
			for _, f := range j.Findings {
				by += f.Policy
			}
			missing := ""
			if j.Missing.Host != "" {
				missing = j.Missing.String()
			}
			if by != c.by || missing != c.missing {
				t.Errorf("admission finds %q and has %q imported, want %q and %q", by, missing, c.by, c.missing)
			}
			status, err := a.Answer(t.Context(), &ReferenceReviewSpec{References: []Question{{Reference: mirror, Namespace: "team"}}})
			if err != nil {
				t.Fatal(err)
			}
			got, means, verdict := status.References[0], "", ""
			if got.State == Found {
				means = got.Meaning.Reference
			}
			if got.Verdict != nil {
				verdict = got.Verdict.Verified
			}
			if means != c.means || verdict != c.verdict {
				t.Errorf("a review says that it means %q, by the verdict %q, want %q and %q (%s)", means, verdict, c.means, c.verdict, got.Message)
			}
		})
	}
}

// unused is that nothing runs.
type unused struct{}

func (unused) Runs() (digests, references []string) { return nil, nil }

func (unused) Keys(string, *imagev1.Image) []string { return nil }

func (unused) Pods(string, *imagev1.Image) (int, bool)       { return 0, true }
func (unused) Users(string, *imagev1.Image, int) []string    { return nil }
func (unused) NeededBy(string, *imagev1.Image, int) []string { return nil }
func (unused) Unimported() int                               { return 0 }
func (unused) NeededAs([]reference.Reference, int) []string  { return nil }
func (unused) Digests() []string                             { return nil }
func (unused) StaleReasons() []string                        { return nil }
func (unused) WorkloadStaleReasons() []string                { return nil }

func (unused) Running([]string, func(usage.Tagged) usage.Run) (outdated, unknown usage.Count) {
	return outdated, unknown
}

func (unused) Naming(context.Context, []string, int) ([]podimages.Container, bool, error) {
	return nil, false, nil
}

func (unused) InNamespace(context.Context, string, int) ([]podimages.Container, bool, error) {
	return nil, false, nil
}

package answers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Use knows which pods run an image and which workloads need it. image is nil if it is not stored.
type Use interface {
	// Pods counts the pods that run an image. complete is false if there may be more.
	Pods(digest string, image *imagev1.Image) (n int, complete bool)
	// Users returns the first most of these pods as cluster/namespace/name.
	Users(digest string, image *imagev1.Image, most int) []string
	// NeededBy returns the first most of the workloads that need the image, as
	// cluster/namespace/resource/name.
	NeededBy(digest string, image *imagev1.Image, most int) []string
	// NeededAs returns the first most of the workloads that name one of some tags, or one of some
	// digests in whatever repository.
	NeededAs(names []reference.Reference, most int) []string
	// Keys are the keys of package podimages by which pods use the image, each maybe with a platform,
	// as in sha256:…@linux/arm64.
	Keys(digest string, image *imagev1.Image) []string
	// Digests are those that pods run or workloads need, whether the images are stored or not.
	Digests() []string
	// Runs returns the digests that pods run, whether the images are stored or not, and the tags that
	// pods name without reporting what they run.
	Runs() (digests, references []string)
	// Unimported counts the images that pods run and that are not stored.
	Unimported() int
	// StaleReasons lists the clusters whose pods are missing or out of date, and why;
	// WorkloadStaleReasons does the same for workloads.
	StaleReasons() []string
	WorkloadStaleReasons() []string
}

// Containers lists the containers of pods.
type Containers interface {
	// Naming lists the containers of pods that name, or run, an image, by the values that
	// [Answerer.Selects] returns. more is true if it lists only some.
	Naming(ctx context.Context, values []string, most int) (all []podimages.Container, more bool, err error)
	// InNamespace lists the containers of the pods of a namespace. It reads at most maxPods pods, and
	// returns more if there are further ones.
	InNamespace(ctx context.Context, namespace string, maxPods int) (all []podimages.Container, more bool, err error)
}

// Naming knows the pods that name tags.
type Naming interface {
	// Running counts the pods that name one of some tags and are outdated, and the pods for which it
	// is unknown whether they are.
	Running(tags []string, as func(usage.Tagged) usage.Run) (outdated, unknown usage.Count)
}

// Registries knows registries from the configuration and from imports.
type Registries interface {
	// Sources returns the references that a mirror's name may stand for.
	Sources(ref reference.Reference) []reference.Reference
	// Mirrors returns the names of a reference on mirrors, which pods may use, too.
	Mirrors(ref reference.Reference) []reference.Reference
	// Confirmed returns when a registry last confirmed that a reference leads to a digest; zero if
	// that is not known. Tags tell it themselves.
	Confirmed(ctx context.Context, ref reference.Reference, digest string) time.Time
	// Immutable returns the rule of the configuration that forbids a tag to move; "" if it may move.
	Immutable(ref reference.Reference) string
}

// Answerer answers questions. All fields but Packages, Authorizer, Registries and Clock are
// required; Jobs only for [Answerer.Admit].
type Answerer struct {
	Images, Tags Objects
	Packages     Packages // nil if packages of images are not known
	Policies     Policies
	Use          Use
	Containers   Containers
	Naming       Naming
	// Authorizer decides what a caller may see; nil allows everything.
	Authorizer Authorizer
	// Registries may be nil: there are no mirrors, and all tags may move.
	Registries Registries
	// Clock is the time; nil is the real one.
	Clock clock.PassiveClock
	// Jobs finds queued and failed imports.
	Jobs Jobs

	// vouching, if it is set, finds the indexes that vouch for an image under a verdict's key.
	// Otherwise the stored ones do.
	vouching func(ctx context.Context, key, digest string) ([]*imagev1.Image, error)
}

// session answers the questions of one caller.
type session struct {
	*Answerer
	resolver
	only       string // the only namespace whose pods the answers contain; "" for all namespaces
	formerTags bool
	driftSince *metav1.Time
	former     map[string]histories        // what led has read, by repository
	searched   int                         // tags, and entries of their histories, that led has read
	full       error                       // why led reads no more
	bases      map[string][]*imagev1.Image // what withPlatforms has read
}

func (a *Answerer) session(ctx context.Context) *session {
	s := a.own("")
	s.rights = a.rightsOf(ctx)
	return s
}

// own returns a session of the program itself, which checks no rights. It judges for the pods of a
// namespace or, with "", for no namespace.
func (a *Answerer) own(namespace string) *session {
	return &session{Answerer: a, resolver: resolver{source: &source{images: a.Images, tags: a.Tags}, mirrored: a.Sources, policies: a.Policies, namespace: namespace, running: func() []string { return a.Use.Digests() }}}
}

func (a *Answerer) now() time.Time {
	if a.Clock == nil {
		return time.Now()
	}
	return a.Clock.Now()
}

// Answer answers a review for the caller in ctx. It fails only if ctx ends.
func (a *Answerer) Answer(ctx context.Context, spec *ReferenceReviewSpec) (*ReferenceReviewStatus, error) {
	s := a.session(ctx)
	s.formerTags, s.driftSince = spec.FormerTags, spec.DriftSince
	status := &ReferenceReviewStatus{AsOf: metav1.NewTime(a.now().UTC().Truncate(time.Second))}
	known := map[Question]*Answer{}
	for _, q := range spec.References {
		if known[q] == nil {
			answer := s.answer(ctx, q)
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			known[q] = &answer
		}
		status.References = append(status.References, *known[q].DeepCopy())
	}
	return status, nil
}

func (s *session) answer(ctx context.Context, q Question) Answer {
	a := s.answerAbout(ctx, q)
	if q.Runs == "" || a.State == Invalid {
		return a
	}
	if s.rights.getImages == "" && s.rights.getTags == "" {
		s.ofContainer(ctx, &a, q)
	}
	if s.driftSince != nil {
		s.drifted(ctx, &a, q, *s.driftSince)
	}
	return a
}

// ofContainer fills in the verdict for a container that names a reference.
func (s *session) ofContainer(ctx context.Context, a *Answer, q Question) {
	a.Verdict, a.Verdicts = nil, nil
	ref, bad := reference.Parse(q.Reference)
	if bad != nil {
		return
	}
	found, err := s.Container(ctx, q.Namespace, q.Reference, ref.Bare().WithDigest(q.Runs).String())
	if err != nil {
		a.unknown("verdict", err)
		return
	}
	a.Verdict = found.Verdict
}

// answerAbout answers a question, but for the verdict for a container.
func (s *session) answerAbout(ctx context.Context, q Question) Answer {
	a := Answer{Question: q}
	s.namespace = q.Namespace
	m, err := s.resolve(ctx, q)
	if err != nil {
		a.State, a.Message = Unknown, "the meaning of the reference is unknown: "+whyNot(err)
		a.unknown("meaning", err)
		return a
	}
	a.State, a.Reason, a.Message, a.Suggestion = m.state, m.reason, printable.Line(m.message, maxText), m.suggestion
	a.means(m)
	if m.state == Invalid || m.state == Ambiguous {
		return a
	}
	if m.state == Absent { // an image that is not imported may run all the same
		s.unstored(ctx, &a, m)
	}
	s.checked(ctx, &a, m)
	if a.State == Absent {
		s.used(ctx, &a, m)
		s.unimported(ctx, &a, m)
		return a
	}
	s.placed(ctx, &a, m)
	s.judged(ctx, &a, q, m)
	s.used(ctx, &a, m)
	s.unimported(ctx, &a, m)
	s.based(ctx, &a, m)
	return a
}

// unknown records that a part of the answer is not known.
func (a *Answer) unknown(part string, err error) {
	a.Unknowns = append(a.Unknowns, UnknownPart{Part: part, Reason: whyNot(err)})
}

// whyNot is the text of an error for the caller.
func whyNot(err error) string {
	if not, ok := errors.AsType[*unpermitted](err); ok {
		return not.reason
	}
	return printable.Line(err.Error(), maxText)
}

// means fills in what the reference means.
func (a *Answer) means(m *resolved) {
	a.Meaning = Meaning{Digest: m.digest, Assumed: m.assumed, Others: m.others, KnownTags: m.knownTags, Platforms: m.platforms}
	if m.ref.Host != "" {
		a.Meaning.Reference, a.Meaning.Repository, a.Meaning.Tag = m.ref.String(), m.ref.Name(), m.ref.Tag
	}
	if m.image == nil {
		return
	}
	a.Meaning.Platform, a.Meaning.Platforms = platformOf(m.image), platformsOf(m.image)
	if metadata, err := manifest.Metadata(m.image); err == nil {
		a.Meaning.Size = metadata.Size
	}
	a.Meaning.ArtifactType = m.image.Annotations[annotation.ArtifactType]
	a.Meaning.ImportedAt = &m.image.CreationTimestamp
	for _, ref := range annotation.In(m.image.Annotations, m.image.DockerImageReference, m.image.Name) {
		a.Meaning.Repositories = append(a.Meaning.Repositories, ref.Name())
	}
}

// checked fills in how it is known where the reference leads, and where the tag led before.
func (s *session) checked(ctx context.Context, a *Answer, m *resolved) {
	a.Checked.Registry = Unasked
	if m.image != nil {
		a.Checked.Registry = Present
		a.Checked.LastChecked = m.image.CreationTimestamp.DeepCopy()
		if s.Registries != nil && m.ref.Digest != "" {
			if at := s.Registries.Confirmed(ctx, m.ref, m.digest); at.After(m.image.CreationTimestamp.Time) {
				a.Checked.LastChecked = &metav1.Time{Time: at.Truncate(time.Second)}
			}
		}
	}
	if m.tag != nil {
		a.history(m.tag, s.now())
		s.forbidden(ctx, a, m.tag)
	}
	if m.image == nil || m.ref.Host == "" {
		return
	}
	missing := annotation.Missing(m.image.Annotations)
	for _, ref := range []reference.Reference{m.ref, m.ref.WithDigest(m.digest)} {
		if at, gone := missing[ref]; gone {
			a.Checked.Registry = Lost
			if since, err := time.Parse(time.RFC3339, at); err == nil {
				a.Checked.Since = &metav1.Time{Time: since}
				if last := a.Checked.LastChecked; last == nil || last.Before(a.Checked.Since) {
					a.Checked.LastChecked = a.Checked.Since
				}
			}
		}
	}
}

// history fills in the facts that the tag's history has now.
func (a *Answer) history(tag *imagev1.ImageTag, now time.Time) {
	c := &a.Checked
	if failure := tags.Failure(tag); failure != nil {
		c.Failing, c.FailingSince = failure.Reason+": "+failure.Message, failure.LastTransitionTime.DeepCopy()
		a.Unknowns = append(a.Unknowns, UnknownPart{Part: "checked", Reason: fmt.Sprintf("checks of the tag have failed since %s: %s", failure.LastTransitionTime.UTC().Format(time.RFC3339), c.Failing)})
	}
	if tag.Status == nil || len(tag.Status.Items) == 0 {
		return
	}
	by, items := tags.Writers(tag), tag.Status.Items
	c.Registry, c.Since, c.LastChecked = Present, items[0].Created.DeepCopy(), tags.Checked(tag, now)
	if at := c.LastChecked.Time; tags.IsAhead(at, now) {
		c.LastChecked = nil
		a.Unknowns = append(a.Unknowns, UnknownPart{Part: "checked", Reason: fmt.Sprintf("the tag was last checked at %s by a clock that has been set back since", at.UTC().Format(time.RFC3339))})
	}
	if items[0].Image == "" {
		c.Registry = Lost
	}
	if len(by) > 0 {
		c.By = by[0]
	}
	for i := 1; i < min(len(items), maxPrevious+1); i++ {
		p := Previous{Digest: items[i].Image, Since: items[i].Created}
		if i < len(by) {
			p.By = by[i]
		}
		a.Previous = append(a.Previous, p)
	}
}

// Parts of an answer that may be unknown.
const (
	PartTags    = "tags"    // the tags and indexes of the image
	PartRunning = "running" // where it runs
	PartDrift   = "drift"   // when a container ran something else than its tag led to
	// PartNeededBy is about workloads that need the image.
	PartNeededBy = "neededBy"
)

// placed fills in the tags and the indexes that lead to the image.
func (s *session) placed(ctx context.Context, a *Answer, m *resolved) {
	if m.digest == "" {
		return
	}
	all, more, err := s.tagged(ctx, selectors.TagImage, m.digest, maxTags)
	if err != nil {
		a.unknown("meaning", fmt.Errorf("which tags lead to it: %w", err))
	} else if more {
		a.unknown(PartTags, fmt.Errorf("more than %d tags lead to it, and only these are named", maxTags))
	}
	for i := range all {
		if ref, ok := tags.Reference(&all[i]); ok {
			a.Meaning.Tags = append(a.Meaning.Tags, ref.String())
		}
	}
	if s.formerTags {
		s.ledBefore(ctx, a, m)
	}
	if m.image == nil || len(m.image.DockerImageManifests) > 0 {
		return
	}
	indexes, more, err := s.listing(ctx, m.digest)
	if err != nil {
		a.unknown("meaning", fmt.Errorf("which indexes list it: %w", err))
	} else if more {
		a.unknown(PartTags, fmt.Errorf("more than %d indexes list it, and only these are named", maxOthers))
	}
	for i := range indexes {
		a.Meaning.Indexes = append(a.Meaning.Indexes, indexes[i].Name)
	}
}

// ledBefore fills in the tags that led to the image before.
func (s *session) ledBefore(ctx context.Context, a *Answer, m *resolved) {
	if n := len(a.Meaning.Repositories); n > maxOthers {
		a.unknown(PartTags, fmt.Errorf("it is in %d repositories, and only those of the first %d were searched for tags that led to it before", n, maxOthers))
	}
	for _, repository := range a.Meaning.Repositories[:min(len(a.Meaning.Repositories), maxOthers)] {
		led, err := s.led(ctx, repository)
		if err != nil {
			a.unknown("meaning", fmt.Errorf("which tags led to it before: %w", err))
		}
		former := led[m.digest]
		room := maxTags - len(a.Meaning.FormerTags)
		a.Meaning.FormerTags = append(a.Meaning.FormerTags, former[:min(len(former), room)]...)
		if len(former) > room {
			a.unknown(PartTags, fmt.Errorf("more than %d tags led to it before, and only these are named", maxTags))
			return
		}
	}
}

// histories are the former tags of a repository, by the digest that they led to. If err is set,
// some are missing.
type histories struct {
	led map[string][]FormerTag
	err error
}

// led returns the former tags of a repository by the digest that they led to. It reads them once
// for all questions of a review. Once the review has read maxSearched entries, or the store has no
// room for a list, it fails for all that it has not read.
func (s *session) led(ctx context.Context, repository string) (map[string][]FormerTag, error) {
	if known, ok := s.former[repository]; ok {
		return known.led, known.err
	}
	if s.full != nil {
		return nil, s.full
	}
	ctx, read := context.WithCancel(ctx)
	defer read() // the list makes room for the next one
	all, more, err := s.tagged(ctx, selectors.TagRepository, repository, maxHistories)
	if apierrors.IsTooManyRequests(err) {
		s.full = err
	}
	if err == nil && more {
		err = fmt.Errorf("only the histories of the first %d tags of %s were searched", len(all), repository)
	}
	for i := range all {
		if s.searched++; all[i].Status != nil {
			s.searched += len(all[i].Status.Items)
		}
	}
	if s.searched >= maxSearched {
		s.full = errors.New("this review has searched the histories of many tags: ask about fewer references at once")
	}
	if s.former == nil {
		s.former = map[string]histories{}
	}
	found := histories{formerTags(all), err}
	s.former[repository] = found
	return found.led, found.err
}

// formerTags returns for each digest the tags that led to it before, and until when. It leaves out
// a tag that leads to the digest now.
func formerTags(all []imagev1.ImageTag) map[string][]FormerTag {
	led := map[string][]FormerTag{}
	for i := range all {
		ref, ok := tags.Reference(&all[i])
		if !ok || all[i].Status == nil {
			continue
		}
		items, seen := all[i].Status.Items, map[string]bool{}
		for n, item := range items {
			if n > 0 && !seen[item.Image] {
				led[item.Image] = append(led[item.Image], FormerTag{Reference: ref.String(), Since: item.Created, Until: items[n-1].Created, Now: items[0].Image})
			}
			seen[item.Image] = true
		}
	}
	return led
}

// judged fills in the verdict for the reference or, if that is only a digest, the verdict in each
// repository.
func (s *session) judged(ctx context.Context, a *Answer, q Question, m *resolved) {
	if m.image == nil || a.Meaning.ArtifactType != "" {
		return
	}
	if m.ref.Host != "" {
		v, _, err := s.verdict(ctx, m.image, m.ref, s.ledTo(m.tag, m.image.Name), q.Namespace)
		if err != nil {
			a.unknown("verdict", err)
			return
		}
		a.Verdict = v
		return
	}
	in := annotation.In(m.image.Annotations, m.image.DockerImageReference, m.image.Name)
	for _, repository := range in[:min(len(in), maxVerdicts)] {
		v, _, err := s.verdict(ctx, m.image, repository.WithDigest(m.image.Name), Led{}, q.Namespace)
		if err != nil {
			a.unknown("verdict", err)
			return
		}
		a.Verdicts = append(a.Verdicts, *v)
	}
	if len(in) > maxVerdicts {
		a.unknown("verdict", fmt.Errorf("the image is in %d repositories, of which %d are judged here: name one of them", len(in), maxVerdicts))
	}
}

// verdict returns the verdict on an Image for a reference with a tag or a digest, and the
// judgement, which has the findings for admission. All verdicts come from here. led is taken from
// the tag's history.
func (s *session) verdict(ctx context.Context, image *imagev1.Image, ref reference.Reference, led Led, namespace string) (*Verdict, Judgement, error) {
	vouching := s.verifiedIndexes
	if s.vouching != nil {
		vouching = s.vouching
	}
	j, err := s.Policies.Judge(ctx, Asked{
		Image: image, Reference: ref, Namespace: namespace, Tag: led,
		Indexes: func(key string) ([]*imagev1.Image, error) { return vouching(ctx, key, image.Name) },
	})
	if err != nil {
		return nil, Judgement{}, err
	}
	v, covering := j.Verdict, ids(j.Covering)
	out := &Verdict{
		Reference: ref.String(), Verified: v.Verified, Policies: covering, Missing: v.Unmet, Spared: v.Spared, Reason: v.Reason, Message: v.Message,
		Signers: v.Signers, Index: v.Index, Until: v.Until, Attested: v.Attested,
	}
	if v.Verified == verdicts.Unsigned && v.Message == "" {
		out.Message = "it has no signature in " + ref.Name()
	}
	if len(out.Missing) == 0 && !verdicts.IsVerified(v.Verified) {
		out.Missing = covering
	}
	return out, j, nil
}

// ErrNotStarted is the reason why further pods may run an image although all pods are known.
var ErrNotStarted = errors.New("pods that have not started, or tell no digest of an image here, may run it, too: their tag has moved, or could not be read")

// used fills in where the image runs, and what needs it.
func (s *session) used(ctx context.Context, a *Answer, m *resolved) {
	if s.rights.getImages != "" {
		a.unknown(PartRunning, &unpermitted{s.rights.getImages})
		return
	}
	n, complete := s.Use.Pods(m.digest, m.image)
	named, more, err := s.naming(ctx, m)
	if err != nil {
		a.unknown(PartRunning, err)
	}
	if m.digest == "" {
		n, complete = len(named), complete && err == nil && !more
	}
	if more {
		a.unknown(PartRunning, fmt.Errorf("more pods name it than the %d that were looked at", maxContainers))
	}
	a.Running = &Running{Pods: int32(n), Complete: complete, Selectors: a.selectors(m)}
	stale := s.Use.StaleReasons()
	for _, doubt := range stale {
		a.Unknowns = append(a.Unknowns, UnknownPart{Part: PartRunning, Reason: doubt})
	}
	if m.digest != "" && !complete && len(stale) == 0 {
		a.unknown(PartRunning, ErrNotStarted)
	}
	if s.rights.listPods != "" {
		a.unknown(PartRunning, &unpermitted{s.rights.listPods})
		return
	}
	since, err := s.since(ctx, m)
	if err != nil {
		a.unknown(PartRunning, err)
	}
	pods, most, needing := named, maxUsers, maxNeeding
	if s.only != "" {
		most, needing = maxPodsNamed, maxPodsNamed
	}
	if m.digest != "" {
		pods = s.Use.Users(m.digest, m.image, most)
		if a.NeededBy = s.Use.NeededBy(m.digest, m.image, needing+1); len(a.NeededBy) > needing {
			a.NeededBy = a.NeededBy[:needing]
			a.unknown(PartNeededBy, fmt.Errorf("more than %d workloads need it, and only these are named", needing))
		}
		if len(pods) < n {
			a.unknown(PartRunning, fmt.Errorf("the first %d pods are counted by namespace, and not the others", len(pods)))
		}
	}
	if s.only != "" {
		a.Running.Complete = a.Running.Complete && len(pods) < most
		pods, a.NeededBy = ofNamespace(pods, s.only), ofNamespace(a.NeededBy, s.only)
		a.NeededBy, a.Running.Pods = a.NeededBy[:min(len(a.NeededBy), maxNeeding)], int32(len(pods))
	}
	a.Running.Clusters, a.Running.Names = runningIn(slices.Values(pods)), pods[:min(len(pods), maxNames)]
	for i := range a.Running.Clusters {
		in := &a.Running.Clusters[i]
		if at, ok := since[in.Cluster+"/"+in.Namespace]; ok {
			in.Since = &at
		}
	}
	for _, doubt := range s.Use.WorkloadStaleReasons() {
		a.Unknowns = append(a.Unknowns, UnknownPart{Part: PartNeededBy, Reason: doubt})
	}
	if s.only == "" {
		s.outdated(ctx, a, m)
	}
}

// ofNamespace keeps the names of one namespace. A name has the form cluster/namespace/… .
func ofNamespace(all []string, namespace string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(one string) bool {
		parts := strings.SplitN(one, "/", 3)
		return len(parts) < 3 || parts[1] != namespace
	})
}

// naming returns the names of pods that name a tag, if it is not known where the tag leads. more is
// true if it returns only some.
func (s *session) naming(ctx context.Context, m *resolved) (pods []string, more bool, err error) {
	if m.digest != "" || m.ref.Host == "" || m.ref.Tag == "" {
		return nil, false, nil
	}
	containers, more, err := s.Containers.Naming(ctx, s.spellings(m.ref), maxContainers)
	for _, c := range containers {
		pods = append(pods, c.Cluster+"/"+c.Namespace+"/"+c.Pod)
	}
	slices.Sort(pods)
	return slices.Compact(pods), more, err
}

// unstored finds out whether pods run a digest that is not stored. Callers who may see pods can
// also give the beginning of the digest.
func (s *session) unstored(ctx context.Context, a *Answer, m *resolved) {
	name, text, ok := strings.Cut(strings.TrimSpace(a.Question.Reference), "@")
	if !ok {
		name, text = "", name
	}
	if isDigits := !ok && someDigits.MatchString(text); len(m.others) > 0 || m.image != nil || m.ref.Tag != "" && !isDigits || s.rights.getImages != "" {
		return
	}
	digest := m.digest
	if digest == "" {
		digest = s.runningDigest(whole(text))
	}
	if n, _ := s.Use.Pods(digest, nil); n == 0 || digest == "" {
		return
	}
	if m.ref.Digest == "" { // no digest of a repository was asked for
		in := s.runsIn(ctx, digest)
		if name != "" && in != m.ref.Bare() {
			return
		}
		if m.ref, m.assumed = in.WithDigest(digest), nil; in.Host == "" {
			m.ref = reference.Reference{}
		} else if name == "" {
			m.assumed = []string{"the repository " + in.Name() + ", which the pods name"}
		}
	}
	m.state, m.digest, m.whole, m.message = NotImported, digest, false, fmt.Sprintf("%s runs, and is not imported", digest)
	a.State, a.Message = m.state, m.message
	a.means(m)
}

// runningDigest is the only digest that pods run with a beginning; "" if there is none, or several,
// or the caller may not see pods.
func (s *session) runningDigest(begins string) (found string) {
	if !beginning.MatchString(begins) || s.rights.listPods != "" {
		return ""
	}
	for _, digest := range s.Use.Digests() {
		if !strings.HasPrefix(digest, begins) {
			continue
		}
		if n, _ := s.Use.Pods(digest, nil); n == 0 {
			continue // only workloads need it
		}
		if found != "" {
			return ""
		}
		found = digest
	}
	return found
}

// runsIn is the only repository that pods name which run a digest; zero if there is none, or
// several, or the caller may not see pods.
func (s *session) runsIn(ctx context.Context, digest string) (in reference.Reference) {
	if s.rights.listPods != "" {
		return in
	}
	containers, more, err := s.Containers.Naming(ctx, []string{digest}, maxContainers)
	if err != nil || more { // the others may name another one
		return in
	}
	for _, c := range containers {
		ref, bad := reference.Parse(c.Image)
		if bad != nil || podimages.Runs(c.Image, c.ImageID).Digest != digest {
			continue
		}
		if in.Host != "" && in != ref.Bare() {
			return reference.Reference{}
		}
		in = ref.Bare()
	}
	return in
}

// runningIn counts pods, named as cluster/namespace/name, by cluster and namespace.
func runningIn(pods iter.Seq[string]) (all []RunningIn) {
	counts := map[RunningIn]int32{}
	for pod := range pods {
		if parts := strings.SplitN(pod, "/", 3); len(parts) == 3 {
			counts[RunningIn{Cluster: parts[0], Namespace: parts[1]}]++
		}
	}
	for _, in := range slices.SortedFunc(maps.Keys(counts), func(a, b RunningIn) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Namespace, b.Namespace))
	}) {
		in.Pods = counts[in]
		all = append(all, in)
	}
	return all
}

// selectors returns the values of the selector "image" for clusterpods that run the image or name
// the tag.
func (a *Answer) selectors(m *resolved) []string {
	switch {
	case m.whole && a.Meaning.Repository != "":
		return []string{a.Meaning.Repository}
	case m.ref.Tag != "" && m.ref.Host != "":
		return []string{m.ref.String()}
	case m.digest != "":
		return []string{m.digest}
	}
	return nil // the beginning of a digest that nothing here has
}

// since returns, by cluster and namespace, when the oldest pod that runs an image was created.
func (s *session) since(ctx context.Context, m *resolved) (map[string]metav1.Time, error) {
	values := s.valuesOf(m)
	if len(values) == 0 {
		return nil, nil
	}
	all, more, err := s.Containers.Naming(ctx, values, maxContainers)
	if more {
		return nil, fmt.Errorf("since when it runs is not looked up for more than %d pods", maxContainers)
	}
	oldest := map[string]metav1.Time{}
	for _, c := range all {
		in := c.Cluster + "/" + c.Namespace
		if had, ok := oldest[in]; !ok || c.Since.Before(&had) {
			oldest[in] = c.Since
		}
	}
	return oldest, err
}

// outdated counts the pods that name the tag and run something else than it leads to now.
func (s *session) outdated(ctx context.Context, a *Answer, m *resolved) {
	if m.ref.Tag == "" || m.ref.Host == "" {
		return
	}
	drift, err := s.drift(ctx, m.ref, s.spellings(m.ref))
	if err != nil {
		a.unknown(PartRunning, err)
		return
	}
	a.Running.Outdated = int32(drift.Outdated.Pods())
	for _, digest := range slices.Sorted(maps.Keys(drift.Outdated.ByDigest)) {
		a.Running.OutdatedImages = append(a.Running.OutdatedImages, RunningImage{digest, int32(drift.Outdated.ByDigest[digest])})
	}
	a.Running.unsure(drift.Unknown.Pods(), drift.Why)
}

// unsure records of how many pods it is not known whether they are outdated.
func (r *Running) unsure(pods int, why string) {
	if r.OutdatedUnknown = int32(pods); pods > 0 {
		r.OutdatedUnknownReason = why
	}
}

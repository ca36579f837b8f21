package answers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
)

// Policies judge images.
type Policies interface {
	// Judge returns the verdict on a stored Image for a reference with a tag or a digest, from a
	// namespace, and the names of the policies that cover the reference. indexes finds indexes that
	// vouch for the image under a verdict's key. An error says why the policies are not known.
	Judge(ctx context.Context, image *imagev1.Image, asked reference.Reference, namespace string, indexes func(key string) ([]*imagev1.Image, error)) (v annotation.Verdict, covering []string, err error)
	// Stale returns the policies by which too long ago a registry last confirmed where a reference
	// with a tag leads, and why.
	Stale(ctx context.Context, asked reference.Reference, namespace string, checked time.Time) (policies []string, why string, err error)
}

// Use knows which pods run an image and which workloads need it. image is nil if it is not stored.
type Use interface {
	// Pods counts the pods that run an image. complete is false if there may be more.
	Pods(digest string, image *imagev1.Image) (n int, complete bool)
	// Users names these pods as cluster/namespace/name, at most most of them.
	Users(digest string, image *imagev1.Image, most int) []string
	// NeededBy names workloads that need the image, as cluster/namespace/resource/name, at most
	// most of them.
	NeededBy(digest string, image *imagev1.Image, most int) []string
	// Digests are those that pods run or workloads need, whether the images are stored or not.
	Digests() []string
	// StaleReasons say which clusters' pods are not known as of now, and WorkloadStaleReasons which
	// workloads.
	StaleReasons() []string
	WorkloadStaleReasons() []string
}

// Container is what a container of a followed cluster's pod runs.
type Container struct {
	Cluster, Namespace, Pod string
	// Image is the reference as the pod has it, and Digest what runs; it is empty until that is
	// known.
	Image, Digest string
	// Since is when the pod was created.
	Since metav1.Time
}

// Containers lists the containers of pods of followed clusters.
type Containers interface {
	// Naming lists the containers that name, or run, an image: by a digest or a canonical reference
	// with a tag. more is true if it lists only some.
	Naming(ctx context.Context, image string, most int) (all []Container, more bool, err error)
}

// Naming knows the pods of followed clusters that name tags.
type Naming interface {
	// Running counts the pods that name a tag and run one of the digests that is accepts, by
	// cluster and by digest.
	Running(tag string, is func(digest string) bool) (byCluster, byDigest map[string]int)
}

// Answerer answers questions. All fields but Authorizer, Mirrored, Confirmed and Clock are
// required.
type Answerer struct {
	Images, Tags Objects
	Packages     Packages // nil if nobody knows which packages images have
	Policies     Policies
	Use          Use
	Containers   Containers
	Naming       Naming
	// Authorizer says what a caller may see; nil allows everything.
	Authorizer Authorizer
	// Mirrored returns the references that a mirror's name may stand for.
	Mirrored func(reference.Reference) []reference.Reference
	// Confirmed returns when a registry last confirmed that a reference leads to a digest; zero if
	// that is not known. Tags tell it themselves.
	Confirmed func(ctx context.Context, ref reference.Reference, digest string) time.Time
	// Clock is the time; nil is the real one.
	Clock clock.PassiveClock
	// Acts says how images are judged after an act; nil if no acts are reviewed.
	Acts Acts

	// vouching, if it is set, finds the indexes that vouch for an image under a verdict's key.
	// Otherwise the stored ones do.
	vouching func(ctx context.Context, key, digest string) ([]*imagev1.Image, error)
}

// session answers the questions of one caller.
type session struct {
	*Answerer
	resolver
	formerTags bool
	bases      map[string][]*imagev1.Image // what withPlatforms has read
}

func (a *Answerer) session(ctx context.Context) *session {
	s := &source{images: a.Images, tags: a.Tags, rights: a.rightsOf(ctx)}
	return &session{Answerer: a, resolver: resolver{source: s, mirrored: a.Mirrored}}
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
	s.formerTags = spec.FormerTags
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
	a := Answer{Question: q}
	m, err := s.resolve(ctx, q)
	if err != nil {
		a.State, a.Message = Unknown, "the meaning of the reference is unknown: "+whyNot(err)
		a.unknown("meaning", err)
		return a
	}
	a.State, a.Message, a.Suggestion = m.state, printable.Line(m.message, maxText), m.suggestion
	a.means(m)
	if m.state == Invalid || m.state == Ambiguous {
		return a
	}
	s.checked(ctx, &a, m)
	if m.state == Absent {
		// An image that is not imported may run all the same.
		s.used(ctx, &a, m)
		return a
	}
	s.placed(ctx, &a, m)
	s.judged(ctx, &a, q, m)
	s.used(ctx, &a, m)
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
	a.Meaning = Meaning{Digest: m.digest, Assumed: m.assumed, Others: m.others, KnownTags: m.knownTags}
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
		if s.Confirmed != nil && m.ref.Digest != "" {
			if at := s.Confirmed(ctx, m.ref, m.digest); at.After(m.image.CreationTimestamp.Time) {
				a.Checked.LastChecked = &metav1.Time{Time: at.Truncate(time.Second)}
			}
		}
	}
	if m.tag != nil {
		a.history(m.tag)
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

// history fills in what the history of a tag says.
func (a *Answer) history(tag *imagev1.ImageTag) {
	c := &a.Checked
	if failure := tags.Failure(tag); failure != nil {
		c.Failing, c.FailingSince = failure.Reason+": "+failure.Message, failure.LastTransitionTime.DeepCopy()
		a.Unknowns = append(a.Unknowns, UnknownPart{Part: "checked", Reason: fmt.Sprintf("checks of the tag have failed since %s: %s", failure.LastTransitionTime.UTC().Format(time.RFC3339), c.Failing)})
	}
	if tag.Status == nil || len(tag.Status.Items) == 0 {
		return
	}
	var by []string
	// only the server writes it; if it cannot be read, nobody is named
	_ = json.Unmarshal([]byte(tag.Annotations[tags.By]), &by)
	items := tag.Status.Items
	c.Registry, c.Since, c.LastChecked = Present, items[0].Created.DeepCopy(), tags.Checked(tag)
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

// placed fills in the tags and the indexes that lead to the image.
func (s *session) placed(ctx context.Context, a *Answer, m *resolved) {
	if m.digest == "" {
		return
	}
	all, _, err := s.tagged(ctx, selectors.TagImage, m.digest, maxTags)
	if err != nil {
		a.unknown("meaning", fmt.Errorf("which tags lead to it: %w", err))
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
	indexes, err := s.listing(ctx, m.digest)
	if err != nil {
		a.unknown("meaning", fmt.Errorf("which indexes list it: %w", err))
	}
	for i := range indexes {
		a.Meaning.Indexes = append(a.Meaning.Indexes, indexes[i].Name)
	}
}

// ledBefore fills in the tags that led to the image before.
func (s *session) ledBefore(ctx context.Context, a *Answer, m *resolved) {
	for _, repository := range a.Meaning.Repositories[:min(len(a.Meaning.Repositories), maxOthers)] {
		all, more, err := s.tagged(ctx, selectors.TagRepository, repository, maxHistories)
		if err == nil && more {
			err = fmt.Errorf("only the histories of the first %d tags of %s were searched", maxHistories, repository)
		}
		if err != nil {
			a.unknown("meaning", fmt.Errorf("which tags led to it before: %w", err))
		}
		for i := range all {
			if len(a.Meaning.FormerTags) == maxTags {
				return
			}
			if former := formerOf(&all[i], m.digest); former != nil {
				a.Meaning.FormerTags = append(a.Meaning.FormerTags, *former)
			}
		}
	}
}

// formerOf says when a tag last led to an image, unless it leads there now or never has.
func formerOf(tag *imagev1.ImageTag, digest string) *FormerTag {
	ref, ok := tags.Reference(tag)
	if !ok || tag.Status == nil {
		return nil
	}
	for i, item := range tag.Status.Items {
		if item.Image != digest {
			continue
		}
		if i == 0 {
			return nil
		}
		return &FormerTag{Reference: ref.String(), Since: item.Created, Until: tag.Status.Items[i-1].Created, Now: tag.Status.Items[0].Image}
	}
	return nil
}

// judged fills in the verdict for the very reference; for a digest alone, that in each repository.
func (s *session) judged(ctx context.Context, a *Answer, q Question, m *resolved) {
	if m.image == nil || a.Meaning.ArtifactType != "" {
		return
	}
	if m.ref.Host != "" {
		v, err := s.verdict(ctx, m.image, m.ref, checkedAt(m.tag), q.Namespace)
		if err != nil {
			a.unknown("verdict", err)
			return
		}
		a.Verdict = v
		return
	}
	in := annotation.In(m.image.Annotations, m.image.DockerImageReference, m.image.Name)
	for _, repository := range in[:min(len(in), maxVerdicts)] {
		v, err := s.verdict(ctx, m.image, repository.WithDigest(m.image.Name), time.Time{}, q.Namespace)
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

// stale makes the verdict for a tag Unknown if too long ago was seen where the tag leads.
func (s *session) stale(ctx context.Context, v *Verdict, ref reference.Reference, checked time.Time, namespace string) error {
	policies, why, err := s.Policies.Stale(ctx, ref, namespace, checked)
	if err != nil || len(policies) == 0 {
		return err
	}
	v.Message = fmt.Sprintf("%s; what it led to is %s", why, v.Verified)
	v.Verified, v.Reason, v.Missing = verdicts.VerifiedUnknown, ReasonTagTooOld, policies
	return nil
}

// ReasonTagTooOld is the reason of a verdict for a tag where a policy bounds how long ago the
// registry was asked.
const ReasonTagTooOld = "TagTooOld"

// checkedAt is when a registry last confirmed where a tag leads; zero if that is not known, or no
// history is kept.
func checkedAt(tag *imagev1.ImageTag) time.Time {
	if at := tags.Checked(tag); at != nil {
		return at.Time
	}
	return time.Time{}
}

// verdict is the verdict on an Image for a reference with a tag or a digest: the one place that
// asks for it. checked is when a registry last confirmed where the tag leads, zero if that is not
// known.
func (s *session) verdict(ctx context.Context, image *imagev1.Image, ref reference.Reference, checked time.Time, namespace string) (*Verdict, error) {
	vouching := s.verifiedIndexes
	if s.vouching != nil {
		vouching = s.vouching
	}
	v, covering, err := s.Policies.Judge(ctx, image, ref, namespace, func(key string) ([]*imagev1.Image, error) { return vouching(ctx, key, image.Name) })
	if err != nil {
		return nil, err
	}
	out := &Verdict{
		Reference: ref.String(), Verified: v.Verified, Policies: covering, Missing: v.Unmet, Reason: v.Reason, Message: v.Message,
		Signers: v.Signers, Index: v.Index, Until: v.Until, Attested: v.Attested,
	}
	if v.Verified == verdicts.Unsigned && v.Message == "" {
		out.Message = "it has no signature in " + ref.Name()
	}
	if len(out.Missing) == 0 && v.Verified != verdicts.VerifiedTrue && v.Verified != verdicts.ByIndex {
		out.Missing = covering
	}
	if ref.Digest == "" {
		if err := s.stale(ctx, out, ref, checked, namespace); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// used fills in where the image runs, and what needs it.
func (s *session) used(ctx context.Context, a *Answer, m *resolved) {
	if s.rights.getImages != "" {
		a.unknown("running", &unpermitted{s.rights.getImages})
		return
	}
	n, complete := s.Use.Pods(m.digest, m.image)
	a.Running = &Running{Pods: int32(n), Complete: complete, Selectors: a.selectors(m)}
	for _, doubt := range s.Use.StaleReasons() {
		a.Unknowns = append(a.Unknowns, UnknownPart{Part: "running", Reason: doubt})
	}
	if s.rights.listPods != "" {
		a.unknown("running", &unpermitted{s.rights.listPods})
		return
	}
	since, err := s.since(ctx, m.digest)
	if err != nil {
		a.unknown("running", err)
	}
	if m.digest != "" {
		pods := s.Use.Users(m.digest, m.image, maxUsers)
		a.Running.Clusters, a.Running.Names = runningIn(slices.Values(pods)), pods[:min(len(pods), maxNames)]
		a.NeededBy = s.Use.NeededBy(m.digest, m.image, maxNeeding)
	}
	for i := range a.Running.Clusters {
		in := &a.Running.Clusters[i]
		if at, ok := since[in.Cluster+"/"+in.Namespace]; ok {
			in.Since = &at
		}
	}
	for _, doubt := range s.Use.WorkloadStaleReasons() {
		a.Unknowns = append(a.Unknowns, UnknownPart{Part: "neededBy", Reason: doubt})
	}
	s.outdated(a, m)
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

// selectors are the values by which clusterpods that run the image, or name the tag, are selected.
func (a *Answer) selectors(m *resolved) []string {
	if m.whole && a.Meaning.Repository != "" {
		return []string{a.Meaning.Repository}
	}
	var all []string
	if m.ref.Tag != "" && m.ref.Host != "" {
		all = append(all, m.ref.String())
	}
	if m.digest != "" {
		all = append(all, m.digest)
	}
	if m.state == Absent && m.ref.Host != "" && m.ref.Tag == "" && m.digest == "" {
		return nil // the beginning of a digest that nothing here has
	}
	for _, p := range a.Meaning.Platforms {
		all = append(all, p.Digest)
	}
	return append(all, a.Meaning.Indexes...)
}

// since says, by cluster and namespace, when the oldest pod that runs an image was created.
func (s *session) since(ctx context.Context, digest string) (map[string]metav1.Time, error) {
	if digest == "" {
		return nil, nil
	}
	all, _, err := s.Containers.Naming(ctx, digest, maxContainers)
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
func (s *session) outdated(a *Answer, m *resolved) {
	if m.tag == nil || m.ref.Tag == "" || m.digest == "" {
		return
	}
	byCluster, byDigest := s.otherThan(m.ref, m)
	for _, n := range byCluster {
		a.Running.Outdated += int32(n)
	}
	for _, digest := range slices.Sorted(maps.Keys(byDigest)) {
		a.Running.OutdatedImages = append(a.Running.OutdatedImages, RunningImage{digest, int32(byDigest[digest])})
	}
}

// isOutdated reports whether a container that names a tag runs something else than the tag leads
// to. now is what the tag leads to, and image that Image, nil if it is not stored. known is false
// if that cannot be told: nothing is known to run, the tag leads nowhere, or it may lead to an
// index that lists what runs.
func isOutdated(now string, image *imagev1.Image, runs string) (outdated, known bool) {
	switch {
	case now == "" || runs == "":
		return false, false
	case now == runs:
		return false, true
	case image == nil:
		return false, false
	}
	return !slices.ContainsFunc(image.DockerImageManifests, func(m imagev1.ImageManifest) bool { return m.Digest == runs }), true
}

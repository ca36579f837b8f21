package answers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

const (
	// maxLocalPods is how many pods of a namespace a review reads.
	maxLocalPods = 5000
	// maxLocalContainers is how many containers a review names.
	maxLocalContainers = 1000
)

// local answers questions about what the pods of a namespace run. It may read all data, but its
// answers contain only what these pods name and run.
type local struct {
	*session
	namespace  string
	containers []localContainer
	more       bool // there are more containers
}

// localContainer is a container of a pod of the namespace.
type localContainer struct {
	podimages.Container
	ContainerAnswer
	err error // why the answer is unknown
	// names are the reference that the container names, and others for which it may stand.
	names []reference.Reference
}

// Local answers a review for the caller in ctx, who must be allowed to list the pods of the
// namespace or all ClusterPods.
func (a *Answerer) Local(ctx context.Context, namespace string, spec *LocalReferenceReviewSpec) (*LocalReferenceReviewStatus, error) {
	if lacks := a.lacks(ctx, "list", corev1.SchemeGroupVersion, "pods", namespace); lacks != "" && a.LacksPods(ctx) != "" {
		return nil, apierrors.NewForbidden(GroupVersion.WithResource(LocalResource).GroupResource(), "", fmt.Errorf("a review of a namespace tells what its pods run, and %s", lacks))
	}
	l, err := a.local(ctx, namespace)
	if err != nil {
		return nil, err
	}
	status := &LocalReferenceReviewStatus{AsOf: metav1.NewTime(a.now().UTC().Truncate(time.Second)), Complete: !l.more}
	unknown := func(part, reason string) {
		status.Complete = false
		status.Unknowns = append(status.Unknowns, UnknownPart{Part: part, Reason: reason})
	}
	if l.more {
		unknown(PartRunning, fmt.Sprintf("only the first %d pods of the namespace were looked at", maxLocalPods))
	}
	for _, reason := range a.Use.StaleReasons() {
		unknown(PartRunning, reason)
	}
	if _, complete := a.Use.Pods("", nil); !complete {
		status.Complete = false
	}
	questions := spec.References
	if len(questions) == 0 {
		var omitted int
		if questions, omitted = l.questions(); omitted > 0 {
			unknown("meaning", fmt.Sprintf("the pods name %s: ask about them", table.Quantity(omitted, "more reference")))
		}
	}
	about := map[int]bool{}
	for _, q := range questions {
		q.Namespace = namespace
		answer, matched := l.answer(ctx, q)
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for _, i := range matched {
			about[i] = true
		}
		status.References = append(status.References, answer)
	}
	for i := range l.containers {
		switch {
		case !about[i]:
		case len(status.Containers) == maxLocalContainers:
			unknown(PartRunning, fmt.Sprintf("only the first %d containers are named", maxLocalContainers))
			return status, nil
		default:
			status.Containers = append(status.Containers, l.containers[i].row())
		}
	}
	return status, nil
}

// local reads what the pods of a namespace run.
func (a *Answerer) local(ctx context.Context, namespace string) (*local, error) {
	l := &local{session: a.own(namespace), namespace: namespace}
	l.only = namespace
	all, more, err := a.Containers.InNamespace(ctx, namespace, maxLocalPods)
	if err != nil {
		return nil, err
	}
	l.more = more
	type use struct{ image, imageID string }
	known := map[use]localContainer{}
	for _, c := range all {
		one, asked := known[use{c.Image, c.ImageID}]
		if !asked {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			one.ContainerAnswer, one.err = a.Container(ctx, namespace, c.Image, c.ImageID)
			if ref, bad := reference.Parse(c.Image); bad == nil {
				standing, err := l.standing(ctx, ref.Pulled())
				one.names, one.err = append(standing, ref.Pulled()), cmp.Or(one.err, err)
			}
			known[use{c.Image, c.ImageID}] = one
		}
		one.Container = c
		l.containers = append(l.containers, one)
	}
	return l, nil
}

// row returns a container as a review shows it.
func (c *localContainer) row() LocalContainer {
	v := c.VerdictOr(c.err)
	row := LocalContainer{Cluster: c.Cluster, Pod: c.Pod, Name: c.Name, Image: c.Image, Digest: c.Runs, Verified: v.Verified, Reason: v.Reason, Message: v.Message}
	if row.OutdatedUnknown = c.WhyOutdatedUnknown(c.err); c.Outdated {
		row.Outdated = c.Now
	}
	if !c.Since.IsZero() {
		row.Since = c.Since.DeepCopy()
	}
	return row
}

// questions returns a question for each reference and digest that containers name and run, and how
// many it omits.
func (l *local) questions() (all []Question, omitted int) {
	seen := map[Question]bool{}
	for i := range l.containers {
		q := Question{Reference: l.containers[i].Image, Runs: l.containers[i].Runs}
		switch {
		case seen[q]:
			continue
		case len(all) == maxReferences:
			omitted++
		default:
			all = append(all, q)
		}
		seen[q] = true
	}
	return all, omitted
}

// answer answers a question if containers name or run its subject; matched are their indexes.
func (l *local) answer(ctx context.Context, q Question) (a Answer, matched []int) {
	text := strings.TrimSpace(q.Reference)
	found := l.match(text)
	if q.Runs != "" {
		found.at = slices.DeleteFunc(found.at, func(i int) bool {
			c := &l.containers[i] // callers know the digest in the pod's status, which may be a config's
			return c.Runs != q.Runs && podimages.Manifest(c.Image, c.ImageID) != q.Runs
		})
	}
	switch {
	case found.bad != nil:
		m := invalid(found.bad)
		return Answer{Question: q, State: Invalid, Message: m.message, Suggestion: m.suggestion}, nil
	case len(found.at) == 0:
		a = Answer{Question: q, State: Unknown, Message: fmt.Sprintf("no known pod of the namespace %s names or runs it, so this review shows nothing about it", l.namespace)}
		a.unknown("meaning", errors.New(a.Message))
		return a, nil
	case len(found.others) > 0:
		return Answer{Question: q, State: Ambiguous, Reason: found.reason, Message: "pods of the namespace name several that it may mean", Meaning: Meaning{Others: found.others}}, found.at
	}
	a = l.session.answer(ctx, Question{Reference: found.asked, Namespace: l.namespace, Platform: q.Platform, Runs: q.Runs})
	l.strip(&a, found.at)
	if a.Question = q; found.asked != text {
		a.Meaning.Assumed = []string{found.asked + ", which pods of the namespace name or run"}
	}
	return a, found.at
}

// strip removes from an answer everything that its containers neither name nor run.
func (l *local) strip(a *Answer, matched []int) {
	m := &a.Meaning
	a.Meaning = Meaning{Reference: m.Reference, Repository: m.Repository, Tag: m.Tag, Digest: m.Digest, Platform: m.Platform, Platforms: m.Platforms, Size: m.Size, ArtifactType: m.ArtifactType, ImportedAt: m.ImportedAt}
	a.Suggestion, a.Previous, a.Base, a.Checked.By = "", nil, nil, ""
	a.Checked.Overwritten = nil
	a.Verdicts = slices.DeleteFunc(a.Verdicts, func(v Verdict) bool {
		ref, err := reference.Parse(v.Reference)
		return err != nil || !slices.ContainsFunc(matched, func(i int) bool { return l.containers[i].in(ref) })
	})
	if a.Running == nil {
		return
	}
	a.Running.Selectors = nil
	outdated, unknown, runs, why := map[string]bool{}, map[string]bool{}, map[string]map[string]bool{}, ""
	for _, i := range matched {
		c := &l.containers[i]
		if m.Tag == "" || !slices.ContainsFunc(c.names, func(name reference.Reference) bool { return name.String() == m.Reference }) {
			continue
		}
		pod := c.Cluster + "/" + c.Pod
		if reason := c.WhyOutdatedUnknown(c.err); reason != "" {
			unknown[pod], why = true, reason
		}
		if !c.Outdated {
			continue
		}
		outdated[pod] = true
		if runs[c.Runs] == nil {
			runs[c.Runs] = map[string]bool{}
		}
		runs[c.Runs][pod] = true
	}
	maps.DeleteFunc(unknown, func(pod string, _ bool) bool { return outdated[pod] })
	a.Running.Outdated = int32(len(outdated))
	for _, digest := range slices.Sorted(maps.Keys(runs)) {
		a.Running.OutdatedImages = append(a.Running.OutdatedImages, RunningImage{digest, int32(len(runs[digest]))})
	}
	a.Running.unsure(len(unknown), why)
}

// in reports whether a container names something in the repository of a reference.
func (c *localContainer) in(ref reference.Reference) bool {
	return slices.ContainsFunc(c.names, func(name reference.Reference) bool { return name.Bare() == ref.Bare() })
}

// localMatch is the result of looking for a text among what the containers name and run.
type localMatch struct {
	asked  string   // the reference to ask about
	at     []int    // indexes of the containers that name or run it
	others []string // the possible meanings, if there are several
	reason string   // why there are others: see Answer.Reason
	bad    error    // why the text is not a reference
}

// match finds the containers that name or run the subject of a text.
func (l *local) match(text string) localMatch {
	name, digest, ok := strings.Cut(text, "@")
	if !ok {
		name, digest = text, ""
		hasName := !hasAlgorithm.MatchString(text)
		if !hasName || someDigits.MatchString(text) {
			if found := l.byDigest(whole(text), nil); len(found.at) > 0 || !hasName {
				return found
			}
		}
	}
	ref, bad := reference.Parse(name)
	if bad != nil {
		return localMatch{bad: bad}
	}
	names := append([]reference.Reference{ref}, l.Sources(ref)...)
	ends := func(whole string) bool { return !reference.NamesRegistry(text) && strings.HasSuffix(whole, "/"+name) }
	if digest != "" {
		return l.byDigest(whole(digest), func(of reference.Reference) bool {
			return ends(of.Name()) || slices.ContainsFunc(names, func(name reference.Reference) bool { return of.Bare() == name.Bare() })
		})
	}
	if found := l.byName(func(of reference.Reference) bool {
		return slices.ContainsFunc(names, func(name reference.Reference) bool {
			return of.Bare() == name.Bare() && (name.Tag == "" || name.Tag == of.Tag)
		})
	}); len(found.at) > 0 {
		return found
	}
	return l.byName(func(of reference.Reference) bool {
		return ref.Tag == "" && ends(of.Name()) || ref.Tag != "" && ends(of.String())
	})
}

// byDigest finds the containers that run or name a digest with this beginning. If in is not nil, it
// must also be true for something that the container names.
func (l *local) byDigest(begins string, in func(reference.Reference) bool) (found localMatch) {
	var digests, repositories []string
	for i := range l.containers {
		c := &l.containers[i]
		if in != nil && !slices.ContainsFunc(c.names, in) {
			continue
		}
		digest := ""
		switch { // the digest may be an index's that lists what runs
		case strings.HasPrefix(c.Runs, begins):
			digest = c.Runs
		case !c.Outdated && strings.HasPrefix(c.Now, begins):
			digest = c.Now
		}
		for _, name := range c.names {
			if name.Digest != "" && strings.HasPrefix(name.Digest, begins) {
				digest = name.Digest
			}
		}
		if digest == "" {
			continue
		}
		found.at, digests = append(found.at, i), append(digests, digest)
		if len(c.names) > 0 {
			repositories = append(repositories, c.names[0].Name())
		}
	}
	digests, repositories = distinct(digests), distinct(repositories)
	switch {
	case len(digests) > 1:
		found.others, found.reason = digests[:min(len(digests), maxOthers)], SeveralDigests
	case len(digests) == 1 && len(repositories) == 1:
		found.asked = repositories[0] + "@" + digests[0]
	case len(digests) == 1:
		found.asked = digests[0]
	}
	return found
}

// byName finds the containers that name a reference, or run the image to which its tag leads.
func (l *local) byName(is func(reference.Reference) bool) (found localMatch) {
	var named []string
	leads := map[string]bool{}
	for i := range l.containers {
		c := &l.containers[i]
		at := slices.IndexFunc(c.names, is)
		if at < 0 {
			continue
		}
		found.at, named = append(found.at, i), append(named, c.names[at].String())
		if c.names[at].Tag != "" {
			leads[c.Now] = true
			leads[c.Runs] = leads[c.Runs] || !c.Outdated
		}
	}
	switch named = distinct(named); len(named) {
	case 0:
		return found
	case 1:
		found.asked = named[0]
	default:
		found.others = named[:min(len(named), maxOthers)]
		return found
	}
	for i := range l.containers {
		if runs := l.containers[i].Runs; runs != "" && leads[runs] && !slices.Contains(found.at, i) {
			found.at = append(found.at, i)
		}
	}
	return found
}

// distinct sorts texts and removes duplicates.
func distinct(all []string) []string {
	slices.Sort(all)
	return slices.Compact(all)
}

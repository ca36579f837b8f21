// Package prune decides which images nothing needs, and deletes them after a grace period. The
// server has the last word: it refuses to delete an image that something needs.
package prune

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// Decisions about an image.
const (
	Keep   = "keep"   // something needs it
	Mark   = "mark"   // nothing does: it will be deleted when the grace period is over
	Wait   = "wait"   // it is marked, and the grace period is not over
	Delete = "delete" // it is marked, and the grace period is over
	Unmark = "unmark" // it was marked, and something needs it, or it is undone
	Fail   = "fail"   // it could not be decided or done
)

// Why an image is kept, beside the reasons that the server has (annotation.TaggedReason and
// others).
const (
	KeptDisabled = "disabled"
	KeptYoung    = "young"
	KeptRevision = "revision"
	KeptListed   = "listed"
	KeptChanged  = "changed"
	KeptVerdict  = "verdict"
)

const (
	pageSize  = 500 // images at a time, without what they are made of
	tagsPage  = 200 // tags at a time, each with its history
	maxReason = 300 // bytes of a reason that is shown
)

// Options configures what is kept.
type Options struct {
	// Confirm carries the decisions out. Without it nothing is changed.
	Confirm bool
	// Undo removes the marks, and deletes nothing.
	Undo bool
	// WithoutWorkloads deletes even if it is unknown what workloads need, and WithoutClusters even if
	// no cluster is followed, so that it is unknown what runs.
	WithoutWorkloads, WithoutClusters bool
	// Revisions is how many of the last images of each tag are kept.
	Revisions int
	// Younger keeps images that are younger.
	Younger time.Duration
	// Grace is the time between marking an image and deleting it.
	Grace time.Duration
	// Verdicts, if there are any, keep images that have another verdict in one of their repositories.
	Verdicts []string
	// Clock is the time; nil is the real one.
	Clock clock.PassiveClock
}

// Decision is what was decided about an image, and its reason.
type Decision struct {
	Image      string     `json:"image"`
	Repository string     `json:"repository,omitempty"`
	Decision   string     `json:"decision"`
	Reason     string     `json:"reason,omitempty"`
	Message    string     `json:"message"`
	After      *time.Time `json:"after,omitempty"` // when it is deleted

	// unasked is the reason why it is unknown whether something needs the image, if a flag
	// ([Options].WithoutClusters or WithoutWorkloads) ignores that.
	unasked string
}

// ErrUnfollowed ends a run that cannot know what runs.
var ErrUnfollowed = errors.New("it is not known what runs, as the server follows no cluster")

// Pruner decides about images page by page. It remembers only which images are revisions of tags.
type Pruner struct {
	Options
	images      metadata.Getter
	client      *imageclient.Client
	ask         func(context.Context, ...answers.Question) ([]answers.Answer, error)
	revisionsOf map[imageKey]string // each with a tag that led to it
	// checked is when the registry last confirmed the tag of each repository that it confirmed longest
	// ago; nil if no plan is made
	checked map[string]time.Time
	goes    map[imageKey]bool // images that a plan deletes; nil if marks decide
	counts  map[counted]int
}

// counted are decisions with the same reason, which is empty unless something needs the image.
type counted struct{ decision, reason string }

// New returns a pruner of images. client reads the same images and their tags, and ask reviews
// their verdicts.
func New(o Options, images metadata.Getter, client *imageclient.Client, ask func(context.Context, ...answers.Question) ([]answers.Answer, error)) *Pruner {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Pruner{Options: o, images: images, client: client, ask: ask, counts: map[counted]int{}}
}

// imageKey is the key of an image's name: 16 bytes of a digest of it.
type imageKey [16]byte

func keyOf(name string) imageKey {
	sum := sha256.Sum256([]byte(name))
	return imageKey(sum[:16])
}

// Run decides about all selected images, and calls report with each decision as it is made, and
// carried out.
func (p *Pruner) Run(ctx context.Context, report func(Decision) error) error {
	if !p.Undo {
		if err := p.readRevisions(ctx); err != nil {
			return err
		}
	}
	selected := []string{""}
	if len(p.Verdicts) > 0 {
		selected = nil
		for _, verdict := range p.Verdicts {
			selected = append(selected, fields.OneTermEqualSelector("signatures.verified", verdict).String())
		}
	}
	asked := false
	for _, selector := range selected {
		err := pages.Each(ctx, metav1.ListOptions{Limit: pageSize, FieldSelector: selector}, p.images.List, func(list *metav1.PartialObjectMetadataList) error {
			for i := range list.Items {
				if !asked {
					if err := p.knowsWhatRuns(ctx, &list.Items[i]); err != nil {
						return err
					}
					asked = true
				}
				if err := p.one(ctx, &list.Items[i], report); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// readRevisions reads which images the tags have led to lately.
func (p *Pruner) readRevisions(ctx context.Context) error {
	p.revisionsOf = map[imageKey]string{}
	keep := func(tag string, items []imagev1.TagEvent) {
		if len(items) == 0 || items[0].Image == "" {
			return // the registry no longer has it
		}
		seen := map[string]bool{"": true} // a tag that was deleted or moved has led to some more than once
		for _, item := range items {
			if seen[item.Image] {
				continue
			}
			if seen[item.Image] = true; len(seen) > p.Revisions+1 {
				return
			}
			if key := keyOf(item.Image); p.revisionsOf[key] == "" {
				p.revisionsOf[key] = tag
			}
		}
	}
	err := pages.Each(ctx, metav1.ListOptions{Limit: tagsPage}, p.client.ListTags, func(list *imagev1.ImageTagList) error {
		for i := range list.Items {
			if tag := &list.Items[i]; tag.Status != nil {
				keep(tag.Namespace+"/"+tag.Name, tag.Status.Items)
				p.noteCheck(tag)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return pages.Each(ctx, metav1.ListOptions{Limit: tagsPage}, p.client.ListStreams, func(list *imagev1.ImageStreamList) error {
		for i := range list.Items {
			stream := &list.Items[i]
			if stream.Annotations[tags.Auto] != "" {
				continue // it has only what the ImageTags have
			}
			for _, tag := range stream.Status.Tags {
				keep(stream.Namespace+"/"+stream.Name+":"+tag.Tag, tag.Items)
			}
		}
		return nil
	})
}

// noteCheck notes when the registry last confirmed a tag, for a plan.
func (p *Pruner) noteCheck(tag *imagev1.ImageTag) {
	ref, ok := tags.Reference(tag)
	at := tags.Checked(tag, p.Clock.Now())
	if p.checked == nil || !ok || at == nil {
		return
	}
	if before, noted := p.checked[ref.Name()]; !noted || at.Time.Before(before) {
		p.checked[ref.Name()] = at.Time
	}
}

// knowsWhatRuns returns ErrUnfollowed if the server follows no cluster. The server says so of every
// image, so also of those that are kept for another reason.
func (p *Pruner) knowsWhatRuns(ctx context.Context, image *metav1.PartialObjectMetadata) error {
	if p.WithoutClusters || p.Undo {
		return nil
	}
	options := p.precondition(image)
	options.DryRun = []string{metav1.DryRunAll}
	var status apierrors.APIStatus
	if err := p.images.Delete(ctx, image.Name, options); !apierrors.IsConflict(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return nil // the decision about the image meets other errors
	}
	if slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool { return string(c.Type) == annotation.ClustersReason }) {
		return ErrUnfollowed
	}
	return nil
}

// one decides about one image, acts and reports.
func (p *Pruner) one(ctx context.Context, image *metav1.PartialObjectMetadata, report func(Decision) error) error {
	d, err := p.decide(ctx, image)
	repository := ""
	if err == nil {
		repository, err = p.repository(ctx, image, d.Decision)
	}
	if err == nil && p.Confirm {
		err = p.do(ctx, image, &d)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, ErrUnfollowed) {
		return err
	}
	if apierrors.IsNotFound(err) {
		return nil // another client has deleted it
	}
	if reason, message := refusal(err); reason != "" {
		d, err = Decision{Decision: Keep, Reason: reason, Message: message}, nil
	}
	if err != nil {
		d.Decision, d.Reason, d.Message, d.After = Fail, "", err.Error(), nil
	}
	d.Image, d.Repository = image.Name, repository
	d.Message = printable.Line(d.Message, maxReason)
	p.counts[counted{d.Decision, d.Reason}]++
	return report(d)
}

// repository returns a repository of an image. It is "" for a kept image whose annotations name
// none, as the image is not read for that.
func (p *Pruner) repository(ctx context.Context, image *metav1.PartialObjectMetadata, decision string) (string, error) {
	own := ""
	if decision != Keep && len(annotation.In(image.Annotations, "", image.Name)) == 0 {
		whole, err := p.client.Get(ctx, image.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		own = whole.DockerImageReference
	}
	for _, in := range annotation.In(image.Annotations, own, image.Name) {
		return in.Name(), nil
	}
	return "", nil
}

// decide decides about an image. It sends the server at most three requests.
func (p *Pruner) decide(ctx context.Context, image *metav1.PartialObjectMetadata) (Decision, error) {
	after, marked := annotation.Marked(image.Annotations)
	_, written := image.Annotations[annotation.PruneAfter]
	keep := func(reason, format string, args ...any) (Decision, error) {
		d := Decision{Decision: Keep, Reason: reason, Message: fmt.Sprintf(format, args...)}
		if written {
			d.Decision = Unmark
		}
		return d, nil
	}
	if p.Undo {
		return keep("undone", "--undo")
	}
	if value, ok := image.Annotations[annotation.Prune]; ok {
		return keep(KeptDisabled, "%s: %s", annotation.Prune, value)
	}
	if age := p.Clock.Now().Sub(image.CreationTimestamp.Time); age < p.Younger {
		return keep(KeptYoung, "stored %s ago, less than %s", age.Truncate(time.Second), p.Younger)
	}
	if tag := p.revisionsOf[keyOf(image.Name)]; tag != "" {
		return keep(KeptRevision, "one of the last %d images of %s", p.Revisions, tag)
	}
	above, err := p.images.List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("lists", image.Name).String(), Limit: pageSize})
	if err != nil {
		return Decision{}, err
	}
	for i := range above.Items {
		index := &above.Items[i]
		if tag := p.revisionsOf[keyOf(index.Name)]; tag != "" {
			return keep(KeptRevision, "listed by index %s, one of the last %d images of %s", index.Name, p.Revisions, tag)
		}
		if index.Name != image.Name && p.stays(index) {
			return keep(KeptListed, "index %s lists it", index.Name)
		}
	}
	if above.Continue != "" {
		return keep(KeptListed, "more than %d indexes list it", pageSize)
	}
	options, d := p.precondition(image), Decision{Message: "nothing needs it"}
	options.DryRun = []string{metav1.DryRunAll}
	if err := p.images.Delete(ctx, image.Name, options); err != nil {
		reason, message := refusal(err)
		switch {
		case reason == "":
			return Decision{}, err
		case reason == annotation.ClustersReason && !p.WithoutClusters:
			return Decision{}, ErrUnfollowed
		case reason == annotation.ClustersReason, reason == annotation.WorkloadsReason && p.WithoutWorkloads:
			d = Decision{Message: "nothing is known to need it", unasked: reason}
		default:
			return keep(reason, "%s", message)
		}
	}
	if reason, message, err := p.otherVerdict(ctx, image.Name); err != nil {
		return Decision{}, err
	} else if reason != "" {
		return keep(reason, "%s", message)
	}
	switch {
	case !marked:
		after = p.Clock.Now().Add(p.Grace).UTC().Truncate(time.Second)
		d.Decision = Mark
	case p.Clock.Now().Before(after):
		d.Decision = Wait
	default:
		d.Decision = Delete
		if p.goes == nil { // a plan contains no marks
			d.Message += ", and it was marked"
		}
	}
	d.After = &after
	return d, nil
}

// stays reports whether an index stays.
func (p *Pruner) stays(index *metav1.PartialObjectMetadata) bool {
	_, goes := annotation.Marked(index.Annotations)
	if p.goes != nil {
		goes = p.goes[keyOf(index.Name)]
	}
	_, disabled := index.Annotations[annotation.Prune]
	return disabled || !goes
}

// otherVerdict finds a repository in which an image has a verdict that keeps it, and returns the
// reason; "" if there is none, or if all verdicts may go. The list of images has the worst verdict
// of each image; a review returns the others.
func (p *Pruner) otherVerdict(ctx context.Context, name string) (reason, message string, err error) {
	if len(p.Verdicts) == 0 {
		return "", "", nil
	}
	all, err := p.ask(ctx, answers.Question{Reference: name})
	if err != nil {
		return "", "", err
	}
	given := all[0].Verdicts
	if all[0].Verdict != nil {
		given = append(given, *all[0].Verdict)
	}
	for _, v := range given {
		if !slices.Contains(p.Verdicts, v.Verified) {
			return KeptVerdict, fmt.Sprintf("the verdict for %s is %s", v.Reference, v.Verified), nil
		}
	}
	for _, unknown := range all[0].Unknowns {
		if unknown.Part == "verdict" {
			return annotation.UnknownReason, "its verdicts are not all known: " + unknown.Reason, nil
		}
	}
	return "", "", nil
}

// refusal returns why the server would not delete an image; no reason if err is another error. Of
// several reasons it is the first that is known, else that pods and tags are unknown, then that no
// cluster is followed, and last that workloads are.
func refusal(err error) (reason, message string) {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) {
		return "", ""
	}
	reason, message = KeptChanged, "it changed in the meantime"
	if details := status.Status().Details; details != nil {
		weak := []string{annotation.UnknownReason, annotation.ClustersReason, annotation.WorkloadsReason, KeptChanged}
		for _, cause := range details.Causes {
			// The index of a reason that is known is -1.
			if slices.Index(weak, string(cause.Type)) < slices.Index(weak, reason) {
				reason, message = string(cause.Type), cause.Message
			}
		}
	}
	return reason, message
}

// precondition makes the server refuse a deletion if the image has changed since.
func (p *Pruner) precondition(image *metav1.PartialObjectMetadata) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &image.UID, ResourceVersion: &image.ResourceVersion}}
}

// do carries out a decision, unless the image has changed since.
func (p *Pruner) do(ctx context.Context, image *metav1.PartialObjectMetadata, d *Decision) error {
	var value any
	switch d.Decision {
	case Delete:
		if d.unasked != "" {
			words := strings.TrimPrefix(image.Annotations[annotation.AllowDelete]+","+d.unasked, ",")
			var err error
			if image, err = p.annotate(ctx, image, annotation.AllowDelete, words); err != nil {
				return err
			}
		}
		return p.images.Delete(ctx, image.Name, p.precondition(image))
	case Mark:
		value = d.After.Format(time.RFC3339)
	case Unmark:
	default:
		return nil
	}
	_, err := p.annotate(ctx, image, annotation.PruneAfter, value)
	return err
}

// annotate writes an annotation, or takes it off if the value is nil, unless the image has changed
// since.
func (p *Pruner) annotate(ctx context.Context, image *metav1.PartialObjectMetadata, name string, value any) (*metav1.PartialObjectMetadata, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": image.ResourceVersion, "annotations": map[string]any{name: value},
	}})
	if err != nil {
		return nil, err
	}
	return p.images.Patch(ctx, image.Name, types.MergePatchType, patch, metav1.PatchOptions{})
}

// Summary counts the decisions, and the kept images by reason.
func (p *Pruner) Summary() map[string]int {
	counts := map[string]int{}
	for of, n := range p.counts {
		if of.decision == Keep {
			of.decision += " " + of.reason
		}
		counts[of.decision] += n
	}
	return counts
}

// Undecided counts the images that could not be changed, and the images for which it is unknown
// whether something needs them.
func (p *Pruner) Undecided() (n int) {
	for of, images := range p.counts {
		if of.decision == Fail || of.reason == annotation.UnknownReason || of.reason == annotation.WorkloadsReason {
			n += images
		}
	}
	return n
}

// IsUnknown reports whether an image is kept because it is unknown whether something needs it.
func (d *Decision) IsUnknown() bool {
	return d.Decision == Keep && (d.Reason == annotation.UnknownReason || d.Reason == annotation.WorkloadsReason)
}

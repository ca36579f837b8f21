package prune

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// maxPlanned bounds the images of a plan: all of them are held in memory.
const maxPlanned = 200_000

// Image is a manifest in a repository, with what was decided about it.
type Image struct {
	Digest string `json:"digest"`
	// Reason is a word, and Message explains it in a sentence.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Lists are the manifests that an index lists, including attestations.
	Lists []string `json:"lists,omitempty"`
	// Attached are the manifests that hold signatures and attestations of the image.
	Attached []string `json:"attached,omitempty"`
	// Tags are those that lead to it now, as far as they are recorded on it.
	Tags []string `json:"tags,omitempty"`
}

// Repository is the plan for a repository.
type Repository struct {
	Repository string `json:"repository"`
	// TagsChecked is the earliest of the times at which the registry last confirmed the tags of the
	// repository; nil if it has confirmed none. A tag that was set since may not be known.
	TagsChecked *time.Time `json:"tagsChecked,omitempty"`
	// Delete is what nothing is known to need, an index before what it lists. Keep is what
	// something needs. Of Unknown it is not known whether something needs it, so it must be kept,
	// too.
	Delete  []Image `json:"delete"`
	Keep    []Image `json:"keep"`
	Unknown []Image `json:"unknown"`
	// Attached are the manifests of signatures and attestations that may be deleted with the images
	// of Delete.
	Attached []string `json:"attached"`
}

// Plan lists the images that a registry may delete. An image of the registry that is in no list is
// not known, and must be kept.
type Plan struct {
	Registry string    `json:"registry"`
	AsOf     time.Time `json:"asOf"`
	// Warnings are about facts that the plan lacks.
	Warnings     []string      `json:"warnings"`
	Repositories []*Repository `json:"repositories"`

	by   map[string]*Repository
	n    int
	more bool // there are more warnings than maxWarnings
}

// NewPlan returns an empty plan.
func NewPlan(registry string, asOf time.Time) *Plan {
	return &Plan{Registry: registry, AsOf: asOf.UTC().Truncate(time.Second), Warnings: []string{}, Repositories: []*Repository{}, by: map[string]*Repository{}}
}

// Kind is a kind of decision about an image.
type Kind int

// The kinds of decisions.
const (
	PlanDelete Kind = iota
	PlanKeep
	PlanUnknown
)

// Add adds an image of a repository. It fails if there are more than maxPlanned.
func (p *Plan) Add(repository string, kind Kind, image Image) error {
	if p.n++; p.n > maxPlanned {
		return fmt.Errorf("%s has more than %d images: name a part of it, as in %s/team", p.Registry, maxPlanned, p.Registry)
	}
	r := p.by[repository]
	if r == nil {
		r = &Repository{Repository: repository, Delete: []Image{}, Keep: []Image{}, Unknown: []Image{}, Attached: []string{}}
		p.by[repository], p.Repositories = r, append(p.Repositories, r)
	}
	list := [...]*[]Image{PlanDelete: &r.Delete, PlanKeep: &r.Keep, PlanUnknown: &r.Unknown}[kind]
	*list = append(*list, image)
	return nil
}

// Warn adds a warning, once. Beyond maxWarnings only that there are more is kept.
func (p *Plan) Warn(text string) {
	switch {
	case slices.Contains(p.Warnings, text):
	case len(p.Warnings) < maxWarnings:
		p.Warnings = append(p.Warnings, text)
	default:
		p.more = true
	}
}

// maxWarnings bounds the warnings of a plan.
const maxWarnings = 100

// Finish puts the plan in order: an index before what it lists, and of what is attached to deleted
// images only what nothing that is kept has.
func (p *Plan) Finish() {
	if p.more {
		p.Warnings = append(p.Warnings, fmt.Sprintf("these are the first %d warnings, and there are more", maxWarnings))
	}
	slices.SortFunc(p.Repositories, func(a, b *Repository) int { return cmp.Compare(a.Repository, b.Repository) })
	for _, r := range p.Repositories {
		kept, gone := map[string]bool{}, map[string]bool{}
		for _, list := range [][]Image{r.Keep, r.Unknown} {
			for _, image := range list {
				kept[image.Digest] = true
				for _, digest := range slices.Concat(image.Lists, image.Attached) {
					kept[digest] = true
				}
			}
		}
		// Whatever a kept image lists stays, too, and so on down, whatever was decided about it.
		for more := true; more; {
			more = false
			r.Delete = slices.DeleteFunc(r.Delete, func(image Image) bool {
				if !kept[image.Digest] {
					return false
				}
				for _, digest := range slices.Concat(image.Lists, image.Attached) {
					kept[digest] = true
				}
				image.Reason, image.Message = KeptListed, "an index that is kept lists it, or it is attached to an image that is kept"
				r.Keep, more = append(r.Keep, image), true
				return true
			})
		}
		for _, list := range [][]Image{r.Delete, r.Keep, r.Unknown} {
			slices.SortFunc(list, func(a, b Image) int { return cmp.Compare(a.Digest, b.Digest) })
		}
		r.Delete = indexesFirst(r.Delete)
		for _, image := range r.Delete {
			gone[image.Digest] = true
		}
		for _, image := range r.Delete {
			for _, digest := range slices.Concat(image.Attached, image.Lists) {
				if !kept[digest] && !gone[digest] {
					gone[digest] = true
					if slices.Contains(image.Attached, digest) {
						r.Attached = append(r.Attached, digest)
					}
				}
			}
		}
		slices.Sort(r.Attached)
	}
}

// indexesFirst puts each index before what it lists.
func indexesFirst(all []Image) []Image {
	sorted := make([]Image, 0, len(all))
	listed := map[string]int{} // by how many of those that are left
	for _, image := range all {
		for _, digest := range image.Lists {
			listed[digest]++
		}
	}
	for len(all) > 0 {
		var left []Image
		for _, image := range all {
			if listed[image.Digest] > 0 {
				left = append(left, image)
				continue
			}
			sorted = append(sorted, image)
		}
		if len(left) == len(all) { // they list each other, which digests do not allow
			return append(sorted, left...)
		}
		for _, image := range sorted[len(sorted)-(len(all)-len(left)):] {
			for _, digest := range image.Lists {
				listed[digest]--
			}
		}
		all = left
	}
	return sorted
}

// planWarning is the warning about images that no plan can know.
const planWarning = "what was never imported is not known, such as an index that lists an image which may be deleted: import all that the registry has first (tidewaiter import --catalog), and delete nothing else"

// Plan decides what the registry, or the part of it below a path, may delete and must keep. It
// changes nothing.
func (p *Pruner) Plan(ctx context.Context, part reference.Reference) (*Plan, error) {
	p.checked = map[string]time.Time{}
	if err := p.readRevisions(ctx); err != nil {
		return nil, err
	}
	p.goes = map[imageKey]bool{}
	plan := NewPlan(strings.TrimSuffix(part.Host+"/"+part.Repository, "/"), p.Clock.Now())
	plan.Warnings = append(plan.Warnings, planWarning)
	is := func(r reference.Reference) bool { return r.Below(part) }
	var listed []string // images that are kept only because an index lists them
	asked := false
	err := pages.Each(ctx, metav1.ListOptions{Limit: pageSize}, p.images.List, func(list *metav1.PartialObjectMetadataList) error {
		for i := range list.Items {
			if !asked {
				if err := p.knowsWhatRuns(ctx, &list.Items[i]); err != nil {
					return err
				}
				asked = true
			}
			again, err := p.planOne(ctx, plan, &list.Items[i], is, false)
			if err != nil {
				return err
			}
			if again {
				listed = append(listed, list.Items[i].Name)
			}
		}
		return nil
	})
	for err == nil && len(listed) > 0 {
		// what goes may have been the last index that listed an image
		var left []string
		if left, err = p.planListed(ctx, plan, listed, is, false); err == nil && len(left) == len(listed) {
			left, err = p.planListed(ctx, plan, listed, is, true)
		}
		listed = left
	}
	plan.checked(p.checked)
	plan.Finish()
	return plan, err
}

// checked notes when the tags of each repository were last confirmed, and warns of those that may
// have got a tag since: with its image a registry deletes each tag that leads to it.
func (p *Plan) checked(at map[string]time.Time) {
	old, oldest := 0, (*Repository)(nil)
	for _, r := range p.Repositories {
		if confirmed, ok := at[r.Repository]; ok {
			confirmed = confirmed.UTC()
			r.TagsChecked = &confirmed
			if p.AsOf.Sub(confirmed) > maxTagsAge {
				if old++; oldest == nil || confirmed.Before(*oldest.TagsChecked) {
					oldest = r
				}
			}
		}
	}
	if old > 0 {
		p.Warn(fmt.Sprintf("the tags of %s were last confirmed more than %s ago, those of %s at %s: a tag that was set since is not known, and is deleted with its image",
			table.Quantity(old, "repository"), maxTagsAge, oldest.Repository, oldest.TagsChecked.Format(time.RFC3339)))
	}
}

// maxTagsAge is how old the knowledge of tags may be without a warning.
const maxTagsAge = time.Hour

// planListed decides once more about images that indexes list. left are those for which it is not
// the last time and nothing has changed.
func (p *Pruner) planListed(ctx context.Context, plan *Plan, names []string, is func(reference.Reference) bool, last bool) (left []string, err error) {
	for _, name := range names {
		image, err := p.images.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		var again bool
		if err == nil {
			again, err = p.planOne(ctx, plan, image, is, last)
		}
		if err != nil {
			return nil, err
		}
		if again {
			left = append(left, name)
		}
	}
	return left, nil
}

// planOne adds an image to a plan, once for each of the repositories that are planned. again is
// true, and nothing is added, if indexes are all that keeps it, which may go yet.
func (p *Pruner) planOne(ctx context.Context, plan *Plan, image *metav1.PartialObjectMetadata, is func(reference.Reference) bool, last bool) (again bool, err error) {
	var whole *imagev1.Image
	in := annotation.In(image.Annotations, "", image.Name)
	if len(in) == 0 {
		if whole, err = p.client.Get(ctx, image.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		in = annotation.In(whole.Annotations, whole.DockerImageReference, whole.Name)
	}
	if in = slices.DeleteFunc(in, func(r reference.Reference) bool { return !is(r) }); len(in) == 0 {
		return false, nil
	}
	d, err := p.decide(ctx, image)
	kind := PlanDelete
	switch {
	case errors.Is(err, ErrUnfollowed) || ctx.Err() != nil:
		return false, err
	case apierrors.IsNotFound(err):
		return false, nil // it has been deleted here, so it is not known
	case err != nil:
		kind, d.Reason, d.Message = PlanUnknown, Fail, err.Error()
	case d.Reason == annotation.UnknownReason, d.Reason == annotation.WorkloadsReason:
		kind = PlanUnknown
	case d.Reason == KeptListed && !last:
		return true, nil
	case d.Decision == Keep, d.Decision == Unmark:
		kind = PlanKeep
	}
	if whole == nil && image.Annotations[annotation.Platform] == "" { // it may be an index
		if whole, err = p.client.Get(ctx, image.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	switch kind {
	case PlanDelete:
		p.goes[keyOf(image.Name)] = true
	case PlanUnknown:
		p.counts[counted{decision: Fail}]++ // so that the exit code is 1
	}
	one := Image{Digest: image.Name, Reason: d.Reason, Message: printable.Line(d.Message, maxReason)}
	if whole != nil {
		one.Lists = manifest.Listed(whole)
	}
	found := annotation.Found(image.Annotations)
	gone := annotation.GoneFrom(image.Annotations, image.Name)
	for _, repository := range in {
		if kind == PlanDelete && slices.Contains(gone, repository) {
			continue
		}
		of := one
		r := found[repository.String()]
		of.Attached = r.Holders()
		if r.Unread != "" || r.Cut {
			plan.Warn(fmt.Sprintf("not all signatures of images in %s are known", repository.Name()))
		}
		for _, ref := range annotation.Known(image.Annotations) {
			if ref.Tag != "" && ref.Bare() == repository {
				of.Tags = append(of.Tags, ref.Tag)
			}
		}
		switch d.unasked {
		case annotation.ClustersReason:
			plan.Warn("the server follows no cluster, and --without-clusters ignores what runs elsewhere")
		case annotation.WorkloadsReason:
			plan.Warn("workloads are not known, and --without-workloads ignores what they need")
		}
		if err := plan.Add(repository.Name(), kind, of); err != nil {
			return false, err
		}
	}
	return false, nil
}

package answers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/admit"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// touch counts the rows of one image, with the pods that run it and the workloads that need it.
func (f *projection) touch(image *imagev1.Image, rows []ImpactRow, by *runners) {
	if len(rows) == 0 {
		return
	}
	if f.last != image.Name {
		f.last = image.Name
		f.images++
		if f.named != nil {
			f.named.Images = append(f.named.Images, image.Name)
		}
	}
	if by.notStarted {
		f.doubt(PartRunning, ErrNotStarted)
	}
	var needing []string
	labels := ownersOf(image)
	for i := range rows {
		row := &rows[i]
		if i == 0 || f.byPlace {
			needing = f.needing(image, row)
		}
		f.need(row, needing)
		row.Labels = labels
		key := [2]string{row.Before.word(), row.After.word()}
		if f.changes[key] == nil {
			f.changes[key] = &changed{pods: map[string]bool{}, complete: true}
		}
		f.changes[key].references++
		pods := f.podsOf(by, row)
		f.changes[key].add(pods, by.complete)
		row.Running = f.count(pods, by.complete, row)
		f.status.Summary.References++
		if f.named != nil {
			f.named.References = append(f.named.References, row.Name())
		}
		if f.shows(row) {
			f.status.Rows = append(f.status.Rows, *row)
		} else {
			f.omitted++
		}
	}
	if len(f.status.Rows) > 2*f.most+impactPage {
		f.cut()
	}
}

// needing returns the first workloads that need an image. If the act is about places, these are
// the workloads that name the place of the row, or one of its mirrors. Of a workload that names a
// digest it is not known in which repository, so it counts for each. The last tag of a digest keeps
// it in its repository.
func (f *projection) needing(image *imagev1.Image, row *ImpactRow) []string {
	ref, err := reference.Parse(row.Reference)
	if err != nil || !f.byPlace {
		return f.Use.NeededBy(image.Name, image, maxNeeding)
	}
	names := f.NamesOf(ref)
	if row.LastTag {
		names = append(names, ref.WithDigest(row.Image))
	}
	return f.Use.NeededAs(names, maxNeeding)
}

// need counts the workloads of a row. Only callers who may see pods get their names.
func (f *projection) need(row *ImpactRow, workloads []string) {
	for _, w := range workloads {
		if len(f.workloads) < maxPodsNamed {
			f.workloads[w] = true
		}
	}
	if f.rights.listPods == "" {
		row.NeededBy = workloads
	}
}

// Name is the reference, with the namespace whose pods the row is about.
func (r *ImpactRow) Name() string {
	if r.Namespace == "" {
		return r.Reference
	}
	return r.Reference + " [" + r.Namespace + "]"
}

// shows reports whether the caller may see a row, and removes from the row what the caller may not
// see. A caller who may read images sees how many pods run them, as in a ReferenceReview and in the
// table of images. Only a caller who may list pods sees where they run and what they name.
func (f *projection) shows(row *ImpactRow) bool {
	if f.rights.listPods == "" {
		return true
	}
	if row.Running != nil {
		row.Running.Clusters = nil
	}
	if row.Namespace != "" {
		row.Running = nil
	}
	switch { // some rows are known only from pods
	case row.Effect == Judged:
		return row.Before.State == Found
	case row.Effect == Contains || row.Effect == MayContain || row.Effect == NotAffected:
		return row.Before.State == Found && row.Namespace == ""
	case row.Effect == Unpullable && row.Before.State != Found:
		return false
	case row.Effect == Deleted && (row.Before.State == Moved || row.Image != "" && row.Before.State != Found && row.Before.State == row.After.State):
		return false
	}
	return row.Namespace == ""
}

// changed counts what becomes of references. A pod counts once, by however many of them it runs.
type changed struct {
	references int32
	pods       map[string]bool
	complete   bool
}

func (c *changed) add(pods map[string]bool, complete bool) {
	c.complete = c.complete && complete
	for pod := range pods {
		if len(c.pods) < maxPodsNamed {
			c.pods[pod] = true
		} else if !c.pods[pod] {
			c.complete = false
		}
	}
}

// runners are the pods that run an image.
type runners struct {
	containers []runner
	complete   bool // no more than these run it
	// notStarted is true if pods that have not started may run it.
	notStarted bool
}

// runner is a container of a pod.
type runner struct {
	podimages.Container
	// runs is the digest that runs, or empty if it is not known. of is the digest of the image that
	// was judged. former is what runs if the tag that is named leads elsewhere now.
	runs, of, former string
	// judged is the reference that its verdict is for; empty if it has none. names are all
	// references that it means.
	judged string
	names  []string
	// elsewhere is the digest in the repository that it names, if the image is not known to be there.
	elsewhere reference.Reference
}

// runners finds the pods that run an image.
func (f *projection) runners(ctx context.Context, image *imagev1.Image) (*runners, error) {
	n, complete := f.Use.Pods(image.Name, image)
	all := &runners{complete: complete, notStarted: !complete && len(f.Use.StaleReasons()) == 0}
	if all.notStarted && f.spec.LoseRegistry != "" && !f.isIn(image, f.spec.LoseRegistry) {
		all.complete, all.notStarted = true, false // they name tags of other registries
	}
	if n == 0 && f.spec.Delete == "" {
		return all, nil
	}
	var tags []string
	for _, tag := range f.tags[image.Name] {
		tags = append(tags, f.before.spellings(tag.ref)...)
	}
	if err := f.name(ctx, all, f.valuesOf(&resolved{digest: image.Name, image: image}), tags); err != nil {
		return nil, err
	}
	return all, nil
}

// isIn reports whether an image is in a registry, or in a repository that has a mirror there.
func (f *projection) isIn(image *imagev1.Image, host string) bool {
	return slices.ContainsFunc(annotation.In(image.Annotations, image.DockerImageReference, image.Name), func(repository reference.Reference) bool {
		repository.Tag = "any"
		return slices.ContainsFunc(f.NamesOf(repository), func(name reference.Reference) bool { return name.Host == host })
	})
}

// name adds the containers that use an image, by values of the field "image", and those that name
// one of some tags. Of the latter, those that run something else are left out, unless the act is a
// deletion: they can then no longer pull what they name.
func (f *projection) name(ctx context.Context, all *runners, values, tags []string) error {
	seen := map[podimages.Container]bool{}
	for i, name := range slices.Concat(values, tags) {
		containers, more, err := f.Containers.Naming(ctx, []string{name}, maxContainers)
		if err != nil {
			return err
		}
		if more {
			f.doubt(PartRunning, fmt.Errorf("more pods than the %d that were looked at name or run %s", maxContainers, name))
			all.complete = false
		}
		for _, c := range containers {
			if seen[c] {
				continue
			}
			seen[c] = true
			r, err := f.runner(ctx, c)
			if err != nil { // it is not known by which name the container runs the image
				f.doubt("verdict", err)
				all.complete = false
			}
			if i < len(values) || r.runs == "" || f.spec.Delete != "" {
				all.containers = append(all.containers, r)
			}
		}
	}
	return nil
}

// running are the containers that run what the tag that they name led to formerly, or with "" those
// that do not.
func (r *runners) running(former string) *runners {
	some := *r
	some.containers = nil
	for _, c := range r.containers {
		if c.former == former {
			some.containers = append(some.containers, c)
		}
	}
	return &some
}

// former are the digests that containers run by a tag that leads elsewhere now.
func (r *runners) former(ref reference.Reference) (all []string) {
	for _, c := range r.containers {
		if c.former != "" && slices.Contains(c.names, ref.String()) && !slices.Contains(all, c.former) {
			all = append(all, c.former)
		}
	}
	return all
}

// in reports whether a container of a namespace runs the image under a reference.
func (r *runners) in(namespace, reference string) bool {
	return slices.ContainsFunc(r.containers, func(c runner) bool { return c.Namespace == namespace && slices.Contains(c.names, reference) })
}

// tags are references with a tag by which containers that run an image are judged. listed includes
// containers whose verdict is on an index that lists the image.
func (r *runners) tags(digest string, listed bool) (all []reference.Reference) {
	for _, c := range r.containers {
		if c.runs != digest || c.of != digest && !listed {
			continue
		}
		if ref, err := reference.Parse(c.judged); err == nil && ref.Tag != "" && !slices.Contains(all, ref) {
			all = append(all, ref)
		}
	}
	return all
}

// elsewhere are the names under which containers run an image that is not known to be there.
func (r *runners) elsewhere(digest string) (all []reference.Reference) {
	for _, c := range r.containers {
		if c.runs == digest && c.elsewhere.Host != "" && !slices.Contains(all, c.elsewhere) {
			all = append(all, c.elsewhere)
		}
	}
	return all
}

// podsOf are the pods of a row: what their containers name decides.
func (f *projection) podsOf(by *runners, row *ImpactRow) map[string]bool {
	pods := map[string]bool{}
	var own []string // the namespaces that have rows of their own with the reference
	if ref, err := reference.Parse(row.Reference); err == nil {
		own = f.namespaces(ref)
	}
	for _, c := range by.containers {
		if slices.Contains(c.names, row.Reference) && (row.Namespace == c.Namespace || row.Namespace == "" && !slices.Contains(own, c.Namespace)) {
			pods[c.Cluster+"/"+c.Namespace+"/"+c.Pod] = true
		}
	}
	return pods
}

// runner finds out which references a container stands for: the one that its verdict is for, or
// that under which it runs what is not known to be there; and the one that it names, if that is
// still to be pulled, or can no longer be where a tag goes.
func (f *projection) runner(ctx context.Context, c podimages.Container) (runner, error) {
	r := runner{Container: c}
	answer, err := f.before.Container(ctx, c.Namespace, c.Image, c.ImageID)
	if err != nil {
		return r, err
	}
	r.runs, r.of = answer.Runs, answer.Judged
	if answer.Outdated {
		r.former = answer.Runs
	}
	if answer.Verdict != nil {
		r.judged = answer.Verdict.Reference
		r.names = append(r.names, r.judged)
	}
	ref, bad := reference.Parse(c.Image)
	if bad != nil || f.spec.Delete == "" && r.runs != "" && r.judged != "" {
		return r, nil
	}
	candidates, err := f.before.standing(ctx, ref.Pulled())
	if err != nil {
		return r, err
	}
	if r.runs != "" && r.judged == "" {
		at := slices.IndexFunc(candidates, func(ref reference.Reference) bool { return ref.Host == f.spec.LoseRegistry })
		r.elsewhere = candidates[max(at, 0)].WithDigest(r.runs)
		r.names = append(r.names, r.elsewhere.String())
	}
	if ref.Digest == "" && (f.spec.Delete != "" || r.runs == "") {
		for _, candidate := range append([]reference.Reference{ref.Pulled()}, candidates...) {
			r.names = append(r.names, candidate.String())
		}
	}
	return r, nil
}

func runningOf(pods map[string]bool, complete bool) *Running {
	return &Running{Pods: int32(len(pods)), Complete: complete, Clusters: runningIn(maps.Keys(pods))}
}

// count makes the Running of a row, and counts its pods among all.
func (f *projection) count(pods map[string]bool, complete bool, row *ImpactRow) *Running {
	r := runningOf(pods, complete)
	refused := row.After.Admission == admit.Deny.String() && row.Before.Admission != admit.Deny.String()
	for pod := range pods {
		if _, had := f.pods[pod]; had || len(f.pods) < maxPodsNamed {
			f.pods[pod] = f.pods[pod] || refused
		} else {
			f.complete = false
		}
	}
	f.complete = f.complete && complete
	return r
}

// ownerLabels are labels of a config that name owners of the image.
var ownerLabels = []string{"maintainer", "org.opencontainers.image.authors", "org.opencontainers.image.source", "org.opencontainers.image.vendor"}

// ownersOf returns the labels of an Image, and the labels of its config that name owners.
func ownersOf(image *imagev1.Image) map[string]string {
	all := map[string]string{}
	if metadata, err := manifest.Metadata(image); err == nil && metadata.Config != nil {
		for _, label := range ownerLabels {
			if value := metadata.Config.Labels[label]; value != "" && len(value) <= maxText {
				all[label] = value
			}
		}
	}
	for _, label := range slices.Sorted(maps.Keys(image.Labels)) {
		if len(all) < maxOwnerLabels {
			all[label] = image.Labels[label]
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// CompareImpactRows orders the rows of an answer: what runs in most pods, then what workloads need,
// then by name; what is not affected is last.
func CompareImpactRows(a, b ImpactRow) int {
	last := func(r *ImpactRow) int {
		if r.Effect == NotAffected {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(last(&a), last(&b)), -cmp.Compare(a.runs(), b.runs()), -cmp.Compare(len(a.NeededBy), len(b.NeededBy)), cmp.Compare(a.Reference, b.Reference), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Image, b.Image))
}

// cut keeps the requested number of rows, in their order.
func (f *projection) cut() {
	slices.SortStableFunc(f.status.Rows, CompareImpactRows)
	if more := len(f.status.Rows) - f.most; more > 0 {
		f.omitted += more
		clear(f.status.Rows[f.most:])
		f.status.Rows = f.status.Rows[:f.most]
	}
}

func (r *ImpactRow) runs() int32 {
	if r.Running == nil {
		return 0
	}
	return r.Running.Pods
}

// strange returns why the act may concern nothing that is known, such as a misspelt name, or "".
func (f *projection) strange() string {
	switch {
	case f.status.Summary.References > 0:
		return ""
	case f.unmeant != "":
		return f.unmeant
	case f.spec.LoseRegistry != "" && !f.known:
		return fmt.Sprintf("no image, tag or pod is known of the registry %s: is it the host, with the port, that references have?", f.spec.LoseRegistry)
	}
	return ""
}

// finish sums up.
func (f *projection) finish() {
	f.cut()
	f.status.OmittedRows = int32(f.omitted)
	s := &f.status.Summary
	s.Images, s.Workloads = int32(f.images), int32(len(f.workloads))
	_, known := f.Use.Pods("", nil)
	// of each policy that is applied and each signer, also if others of them touch something
	doubts := append(f.then.uncovering(), f.then.unmet()...)
	if reason := f.strange(); reason != "" {
		doubts = append(doubts, reason)
	}
	for _, reason := range doubts {
		f.doubt("act", errors.New(reason))
		f.complete = false
	}
	if s.Undecided = int32(len(f.undecided)); s.Undecided > 0 {
		such := ""
		if named := slices.Sorted(maps.Keys(f.undecided)); f.rights.listPods == "" {
			such = ", such as " + strings.Join(named[:min(len(named), 3)], ", ")
		}
		f.doubt("act", fmt.Errorf("it is not known whether the act touches %s that pods run%s", table.Quantity(s.Undecided, "image"), such))
	}
	if lacks := f.rights.listPods; lacks != "" { // the message then names no pods
		f.doubt(PartRunning, &unpermitted{lacks})
	}
	stale := f.Use.StaleReasons()
	s.Pods, s.PodsComplete = int32(len(f.pods)), f.complete && known && len(stale) == 0
	for _, refused := range f.pods {
		if refused {
			s.Denied++
		}
	}
	if f.status.Touched = f.named; f.named != nil && f.rights.listPods == "" {
		f.named.Pods, f.named.Workloads = slices.Sorted(maps.Keys(f.pods)), slices.Sorted(maps.Keys(f.workloads))
	}
	for _, key := range slices.SortedFunc(maps.Keys(f.changes), func(a, b [2]string) int {
		return cmp.Or(-cmp.Compare(len(f.changes[a].pods), len(f.changes[b].pods)), -cmp.Compare(f.changes[a].references, f.changes[b].references), slices.Compare(a[:], b[:]))
	}) {
		c := f.changes[key]
		s.Changes = append(s.Changes, ImpactChange{Before: key[0], After: key[1], References: c.references, Pods: int32(len(c.pods)), PodsComplete: c.complete && len(stale) == 0})
	}
	for _, doubt := range stale {
		f.unknowns[UnknownPart{Part: PartRunning, Reason: doubt}] = true
	}
	for _, doubt := range f.Use.WorkloadStaleReasons() {
		f.unknowns[UnknownPart{Part: PartNeededBy, Reason: doubt}] = true
	}
	f.status.Unknowns = slices.SortedFunc(maps.Keys(f.unknowns), func(a, b UnknownPart) int {
		return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Reason, b.Reason))
	})
}

package answers

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// ownPods is before the names of the server's own pods, of which it is not known by which reference
// they run an image.
const ownPods = "local/"

// admissionDenied is what admission says of a pod that it refuses.
const admissionDenied = "denied"

// touch counts the rows of one image, with the pods that run it and the workloads that need it.
func (f *projection) touch(image *imagev1.Image, rows []ImpactRow, by *runners) {
	if len(rows) == 0 {
		return
	}
	if f.last != image.Name {
		f.last = image.Name
		f.images++
	}
	needing := f.Use.NeededBy(image.Name, image, maxNeeding)
	for _, w := range needing {
		if len(f.workloads) < maxPodsNamed {
			f.workloads[w] = true
		}
	}
	labels := ownersOf(image)
	for i := range rows {
		row := &rows[i]
		row.NeededBy, row.Labels = needing, labels
		n := int32(0)
		if by != nil {
			row.Running = f.count(f.podsOf(by, row), by.complete, row)
			n = row.Running.Pods
		}
		key := [2]string{row.Before.word(), row.After.word()}
		if f.changes[key] == nil {
			f.changes[key] = &ImpactChange{Before: key[0], After: key[1]}
		}
		f.changes[key].References++
		f.changes[key].Pods += n
		f.status.Summary.References++
		f.status.Rows = append(f.status.Rows, *row)
	}
	if len(f.status.Rows) > 2*f.most+impactPage {
		f.cut()
	}
}

// runners are the pods that run an image.
type runners struct {
	// own are the server's own pods, as cluster/namespace/name.
	own        []string
	containers []runner
	complete   bool // no more than these run it
}

// runner is a container of a followed cluster.
type runner struct {
	Container
	// judged is the reference that its verdict is for; empty if it has none. names are all
	// references that it means.
	judged string
	names  []string
}

// runners finds what runs an image; nil if the caller may not see that.
func (f *projection) runners(ctx context.Context, image *imagev1.Image) (*runners, error) {
	if f.rights.listPods != "" {
		return nil, nil
	}
	n, complete := f.Use.Pods(image.Name, image)
	all := &runners{complete: complete}
	if n == 0 && f.spec.Delete == "" {
		return all, nil
	}
	for _, user := range f.Use.Users(image.Name, image, maxUsers) {
		if strings.HasPrefix(user, ownPods) {
			all.own = append(all.own, user)
		}
	}
	named := []string{image.Name}
	for _, m := range image.DockerImageManifests {
		named = append(named, m.Digest)
	}
	for _, tag := range f.tags[image.Name] {
		named = append(named, tag.ref.String())
	}
	seen := map[Container]bool{}
	for _, name := range named {
		containers, more, err := f.Containers.Naming(ctx, name, maxContainers)
		if err != nil {
			return nil, err
		}
		all.complete = all.complete && !more
		for _, c := range containers {
			if seen[c] {
				continue
			}
			seen[c] = true
			r, err := f.runner(ctx, c)
			if err != nil {
				return nil, err
			}
			all.containers = append(all.containers, r)
		}
	}
	return all, nil
}

// tags are references with a tag by which containers that run an image are judged.
func (r *runners) tags(digest string) (all []reference.Reference) {
	if r == nil {
		return nil
	}
	for _, c := range r.containers {
		if c.Digest != digest {
			continue
		}
		if ref, err := reference.Parse(c.judged); err == nil && ref.Tag != "" && !slices.Contains(all, ref) {
			all = append(all, ref)
		}
	}
	return all
}

// podsOf are the pods of a row: what their containers name decides.
func (f *projection) podsOf(by *runners, row *ImpactRow) map[string]bool {
	pods := map[string]bool{}
	for _, pod := range by.own {
		pods[pod] = true
	}
	var own []string // the namespaces that have rows of their own with the reference
	if ref, err := reference.Parse(row.Reference); err == nil && row.Effect == Judged {
		own = f.namespaces(ref)
	}
	for _, c := range by.containers {
		if slices.Contains(c.names, row.Reference) && (row.Namespace == c.Namespace || row.Namespace == "" && !slices.Contains(own, c.Namespace)) {
			pods[c.Cluster+"/"+c.Namespace+"/"+c.Pod] = true
		}
	}
	return pods
}

// runner finds out which references a container stands for: the one that its verdict is for, and
// the one that it names, if that is still to be pulled, or can no longer be where a tag goes.
func (f *projection) runner(ctx context.Context, c Container) (runner, error) {
	r := runner{Container: c}
	answer, err := f.before.Container(ctx, c.Namespace, c.Image, c.Digest)
	if err != nil {
		return r, err
	}
	if answer.Verdict != nil {
		r.judged = answer.Verdict.Reference
		r.names = append(r.names, r.judged)
	}
	if f.spec.Delete == "" && c.Digest != "" {
		return r, nil
	}
	if ref, bad := reference.Parse(c.Image); bad == nil && ref.Digest == "" {
		for _, candidate := range append([]reference.Reference{ref.Pulled()}, f.before.sourcesOf(ref.Pulled())...) {
			r.names = append(r.names, candidate.String())
		}
	}
	return r, nil
}

// count makes the Running of a row, and counts its pods among all.
func (f *projection) count(pods map[string]bool, complete bool, row *ImpactRow) *Running {
	r := &Running{Pods: int32(len(pods)), Complete: complete, Clusters: runningIn(maps.Keys(pods))}
	refused := row.After.Admission == admissionDenied && row.Before.Admission != admissionDenied
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

// ownerLabels are labels of a config that say whose the image is.
var ownerLabels = []string{"maintainer", "org.opencontainers.image.authors", "org.opencontainers.image.source", "org.opencontainers.image.vendor"}

// ownersOf are the labels of an Image, and those of its config that name owners.
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

// cut keeps as many rows as are asked for: what runs in most pods, then what workloads need, then
// by name.
func (f *projection) cut() {
	slices.SortStableFunc(f.status.Rows, func(a, b ImpactRow) int {
		return cmp.Or(-cmp.Compare(a.runs(), b.runs()), -cmp.Compare(len(a.NeededBy), len(b.NeededBy)), cmp.Compare(a.Reference, b.Reference), cmp.Compare(a.Namespace, b.Namespace))
	})
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

// finish sums up.
func (f *projection) finish() {
	f.cut()
	f.status.OmittedRows = int32(f.omitted)
	s := &f.status.Summary
	s.Images, s.Workloads = int32(f.images), int32(len(f.workloads))
	_, known := f.Use.Pods("", nil)
	if lacks := f.rights.listPods; lacks != "" {
		f.doubt("running", &unpermitted{lacks})
	} else {
		n := int32(len(f.pods))
		s.Pods, s.PodsComplete = &n, f.complete && known
		for _, refused := range f.pods {
			if refused {
				s.Denied++
			}
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(f.changes), func(a, b [2]string) int {
		return cmp.Or(-cmp.Compare(f.changes[a].Pods, f.changes[b].Pods), -cmp.Compare(f.changes[a].References, f.changes[b].References), slices.Compare(a[:], b[:]))
	}) {
		s.Changes = append(s.Changes, *f.changes[key])
	}
	for _, doubt := range f.Use.StaleReasons() {
		f.unknowns[UnknownPart{Part: "running", Reason: doubt}] = true
	}
	for _, doubt := range f.Use.WorkloadStaleReasons() {
		f.unknowns[UnknownPart{Part: "neededBy", Reason: doubt}] = true
	}
	f.status.Unknowns = slices.SortedFunc(maps.Keys(f.unknowns), func(a, b UnknownPart) int {
		return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Reason, b.Reason))
	})
}

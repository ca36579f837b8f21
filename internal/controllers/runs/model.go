package runs

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
)

// key identifies a stretch among the running stretches of a cluster.
type key struct {
	namespace, workload, container, image, ran, platform string
}

// run is a stretch. It may be without pods for a moment.
type run struct {
	key
	in     *cluster
	object imageruns.ImageRun
	pods   int
	begun  bool // its beginning and its name are final
	stored bool
	dirty  bool // it must be written
	grown  bool // only the number of its pods has changed
	judge  bool // its verdict must be read
	// versions are those of the policies by which it was judged last; nil if it was not yet, since
	// this server records.
	versions []string
}

// pod is what a pod runs.
type pod struct {
	runs []*run
	at   time.Time // of the last change
}

type podID struct{ namespace, name string }

// cluster is the state of recording a cluster.
type cluster struct {
	name    string
	current bool      // changes of pods arrive
	since   time.Time // since when
	missed  time.Time // since when nothing was seen or recorded; zero if it was never seen
	records clusters.ClusterRecords
	stored  clusters.ClusterRecords  // as they were read or written last
	tried   *clusters.ClusterRecords // may be stored, too: it is not known whether they were
	dirty   bool                     // its records must be written
	pods    map[podID]*pod
	runs    map[key]*run
	ended   []*run        // runs that have ended, and are not written yet or may continue
	changed map[*run]bool // runs that are to be written or judged
	// over has the ends of stretches that were stored after the time up to which records are complete.
	// The next stretch of the same key begins no earlier.
	over map[key]time.Time
}

func newCluster(name string) *cluster {
	return &cluster{name: name, pods: map[podID]*pod{}, runs: map[key]*run{}, changed: map[*run]bool{}}
}

// keyOf returns the key for a container of a pod; ok is false if it has not run yet.
func keyOf(namespace string, p *clusters.ClusterPodSpec, c *clusters.ClusterPodContainer) (k key, ok bool) {
	if c.ImageID == "" || c.Started == nil {
		return k, false
	}
	// The image in the spec may differ from the one that runs.
	ran := cmp.Or(podimages.ID(c.Image, c.ImageID), podimages.Runs(c.Image, c.ImageID).Digest, c.ImageID)
	return key{namespace, p.Workload, c.Name, c.Image, ran, p.Platform}, true
}

// set updates a pod; spec is nil if the pod is gone. recording is false while nothing is written.
func (c *cluster) set(id podID, spec *clusters.ClusterPodSpec, now time.Time, recording bool) {
	p := c.pods[id]
	if p == nil {
		if spec == nil {
			return
		}
		p = &pod{}
		if c.current {
			p.at = c.since
		}
		c.pods[id] = p
	}
	before, ended := p.runs, now
	p.runs = nil
	if spec != nil && spec.Finished == nil {
		for i := range spec.Containers {
			container := &spec.Containers[i]
			k, ok := keyOf(id.namespace, spec, container)
			if !ok || slices.ContainsFunc(p.runs, func(r *run) bool { return r.key == k }) {
				continue
			}
			r := c.runs[k]
			if r == nil || r.object.Status.Until != nil && now.Sub(r.object.Status.Until.Time) >= pause {
				r = c.begin(k, container)
			}
			p.runs = append(p.runs, r)
			if slices.Contains(before, r) {
				continue
			}
			c.join(r, c.when(p.at, container.Started.Time, now), recording)
		}
	} else if spec != nil && c.current {
		ended = c.when(p.at, spec.Finished.Time, now)
	}
	for _, r := range before {
		if !slices.Contains(p.runs, r) {
			if r.pods--; r.pods == 0 {
				c.leave(r, ended, recording)
			}
		}
	}
	if p.at = now; spec == nil {
		delete(c.pods, id)
	}
}

// lag is how late a change may arrive while a cluster is followed.
const lag = 10 * time.Second

// when returns the time of a change by the cluster's clock, limited to what is possible: not before
// before, when the change had not happened yet; not long ago if changes arrive as they happen; and
// not in the future.
func (c *cluster) when(before, told, now time.Time) time.Time {
	if earliest := now.Add(-lag); c.current && before.Before(earliest) {
		before = earliest
	}
	switch {
	case told.After(now):
		return now
	case told.Before(before):
		return before
	}
	return told
}

// begin creates a stretch without pods.
func (c *cluster) begin(k key, container *clusters.ClusterPodContainer) *run {
	r := &run{key: k, in: c, object: imageruns.ImageRun{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.namespace},
		Spec: imageruns.ImageRunSpec{
			Cluster: c.name, Workload: strings.Clone(k.workload), Container: k.container, Image: k.image, ImageID: container.ImageID,
			Digest: podimages.Runs(k.image, container.ImageID).Digest, Platform: k.platform,
		},
	}}
	if podimages.ID(k.image, container.ImageID) != "" && podimages.Runs("", container.ImageID).Digest == "" {
		r.object.Spec.Digest = "" // until it is known which image has the ID
	}
	c.runs[k] = r
	return r
}

// join adds a pod, which ran since a time, to a stretch.
func (c *cluster) join(r *run, since time.Time, recording bool) {
	r.pods++
	if int32(r.pods) > r.object.Status.MostPods {
		r.object.Status.MostPods = int32(r.pods)
		r.grown = true
		c.changed[r] = true
	}
	if !r.begun && (r.object.Spec.From.IsZero() || since.Before(r.object.Spec.From.Time)) {
		r.object.Spec.From = metav1.NewTime(since.Truncate(time.Second))
	}
	if r.object.Status.Until != nil { // it continues after all
		r.object.Status.Until, r.object.Status.Unseen = nil, nil
		r.dirty, r.judge = true, true
		c.changed[r] = true
	}
	if c.current && recording {
		c.settle(r)
	}
}

// settle makes the beginning of a stretch final.
func (c *cluster) settle(r *run) {
	if r.begun {
		return
	}
	r.begun, r.dirty, r.judge = true, true, true
	c.changed[r] = true
	sum := sha256.Sum256([]byte(strings.Join([]string{c.name, r.workload, r.container, r.image, r.ran, r.platform}, "\x00")))
	r.object.Name = fmt.Sprintf("%s-%s", r.object.Spec.From.UTC().Format("20060102t150405z"), hex.EncodeToString(sum[:6]))
}

// leave is called when the last pod of a stretch is gone. If the pod went while the cluster was not
// seen, the stretch ends only when the cluster is seen again, because until then another pod may
// appear.
func (c *cluster) leave(r *run, at time.Time, recording bool) {
	switch {
	case c.current && recording:
		c.end(r, at)
	case c.current || !r.begun: // nothing is recorded
		delete(c.runs, r.key)
	}
}

// end ends a stretch.
func (c *cluster) end(r *run, at time.Time) {
	if at = at.Truncate(time.Second); at.Before(r.object.Spec.From.Time) {
		at = r.object.Spec.From.Time
	}
	r.object.Status.Until = &metav1.Time{Time: at}
	r.object.Status.Unseen = c.records.UnseenIn(r.object.Spec.From.Time, at)
	r.dirty = true
	c.changed[r] = true
	if !slices.Contains(c.ended, r) {
		c.ended = append(c.ended, r)
	}
}

// resume is called when the cluster is seen and recorded again.
func (c *cluster) resume(now time.Time) {
	if c.records.Since.IsZero() {
		c.records.Since = metav1.NewTime(now)
	}
	if !c.missed.IsZero() {
		c.records.Miss(c.missed, now)
	}
	for _, r := range c.runs {
		switch {
		case r.pods == 0 && r.object.Status.Until == nil:
			c.end(r, now)
		case !r.begun:
			earliest := c.missed // it was not there before
			if at := c.over[r.key]; at.After(earliest) {
				earliest = at
			}
			if r.object.Spec.From.Time.Before(earliest) {
				r.object.Spec.From = metav1.NewTime(earliest)
			}
			c.settle(r)
		}
	}
	c.missed, c.over, c.dirty = time.Time{}, nil, true
}

// keyOfStored returns the key of a stored stretch.
func keyOfStored(stored *imageruns.ImageRun) key {
	s := &stored.Spec
	k, _ := keyOf(stored.Namespace, &clusters.ClusterPodSpec{Workload: s.Workload, Platform: s.Platform}, &clusters.ClusterPodContainer{Name: s.Container, Image: s.Image, ImageID: s.ImageID, Started: &s.From})
	return k
}

// adopt adds a stored stretch that has not ended.
func (c *cluster) adopt(stored *imageruns.ImageRun) {
	k := keyOfStored(stored)
	r := c.runs[k]
	if r == nil {
		r = &run{key: k, in: c}
		c.runs[k] = r
	}
	most := max(stored.Status.MostPods, int32(r.pods))
	r.object = *stored.DeepCopy()
	r.begun, r.stored, r.judge, r.versions = true, true, true, nil
	r.grown = most > stored.Status.MostPods
	r.object.Status.MostPods = most
	c.changed[r] = true
}

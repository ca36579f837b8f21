package usage

import (
	"slices"
	"unique"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Workloads are the workloads of one kind in one cluster, for their follower. They are used by one
// goroutine at a time.
type Workloads struct {
	index   *Index
	cluster string
	source  *source
}

// Workload is an object that needs images, whether or not it runs pods.
type Workload struct {
	Namespace, Name string
	// Images are references, as its pod template names them, or digests.
	Images []string
}

// Workloads returns the part of the index for workloads of one kind, named by its resource, such as
// deployments.
func (x *Index) Workloads(cluster, resource string) *Workloads {
	return &Workloads{x, cluster, &source{resource: resource}}
}

// Set records what a workload needs; nothing once it is gone.
func (w *Workloads) Set(one Workload) {
	var keys []string
	for _, image := range one.Images {
		if reference.IsDigest(image) {
			keys = append(keys, image)
			continue
		}
		keys = append(keys, podimages.Keys(image, "")...)
	}
	slices.Sort(keys)
	w.index.set(w.id(one), slices.Compact(keys), "", 0)
}

// Replace records what all workloads of the kind need. Others are gone.
func (w *Workloads) Replace(all []Workload) {
	alive := make(map[podID]struct{}, len(all))
	for _, one := range all {
		alive[w.id(one)] = struct{}{}
		w.Set(one)
	}
	w.index.retain(w.source, alive)
}

func (w *Workloads) id(one Workload) podID {
	return podID{unique.Make(podNamespace{w.source, w.cluster, one.Namespace}), one.Name}
}

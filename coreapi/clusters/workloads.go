package clusters

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

const (
	// discoverEvery is the time between two reads of the kinds of workloads that a cluster serves.
	discoverEvery = 30 * time.Second
	// discoverPatience bounds one answer to that.
	discoverPatience = 10 * time.Second
	// maxReference is longer than any reference.
	maxReference = 1024
	// workloadsPage is how many workloads are read at a time where a cluster does not stream them.
	workloadsPage = 100
)

// Workload is a kind whose objects need images, whether they run pods or not.
type Workload struct {
	// Group is the API group, such as argoproj.io, and empty for Kubernetes' core.
	Group string
	// Resource is the plural, such as rollouts.
	Resource string
	// Path leads to the pod template, such as spec.template. An asterisk in it matches each key or
	// item.
	Path string
}

// String is how kubectl names the kind: deployments.apps.
func (w Workload) String() string {
	return schema.GroupResource{Group: w.Group, Resource: w.Resource}.String()
}

// Workloads returns the kinds that are followed in every cluster that serves them, with rights to
// read them.
func Workloads() []Workload {
	return []Workload{
		{"", "replicationcontrollers", "spec.template"},
		{"apps", "deployments", "spec.template"},
		{"apps", "replicasets", "spec.template"}, // also what a Deployment is rolled back to
		{"apps", "statefulsets", "spec.template"},
		{"apps", "daemonsets", "spec.template"},
		// what a StatefulSet or DaemonSet is rolled back to
		{"apps", "controllerrevisions", "data.spec.template"},
		{"batch", "jobs", "spec.template"},
		{"batch", "cronjobs", "spec.jobTemplate.spec.template"},
		{"apps.openshift.io", "deploymentconfigs", "spec.template"},
		builds,
	}
}

// builds have no pod template: OpenShift makes it of the images that they name.
var builds = Workload{Group: "build.openshift.io", Resource: "buildconfigs"}

// buildPaths lead to the images of builds that registries have: builders, and images that files are
// copied from.
var buildPaths = []string{"spec.strategy.*.from", "spec.source.images.*.from"}

// templatePaths lead to the images of a pod template.
var templatePaths = []string{"spec.initContainers.*.image", "spec.containers.*.image", "spec.volumes.*.image.reference"}

// images returns the images that an object names.
func (w Workload) images(object map[string]any) (all []string) {
	add := func(image any) {
		if s, ok := image.(string); ok && s != "" && len(s) <= maxReference {
			all = append(all, s)
		}
	}
	if w == builds {
		for _, path := range buildPaths {
			each(object, strings.Split(path, "."), func(found any) {
				from, _ := found.(map[string]any)
				name, _ := from["name"].(string)
				switch from["kind"] {
				case "DockerImage":
					add(name)
				case "ImageStreamImage":
					// STREAM@DIGEST; what a tag of a stream leads to is needed anyway
					_, digest, _ := strings.Cut(name, "@")
					add(digest)
				}
			})
		}
	} else {
		each(object, strings.Split(w.Path, "."), func(template any) {
			for _, path := range templatePaths {
				each(template, strings.Split(path, "."), add)
			}
		})
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// each calls visit with each value that a path leads to.
func each(in any, path []string, visit func(any)) {
	if len(path) == 0 {
		visit(in)
		return
	}
	switch in := in.(type) {
	case map[string]any:
		if next, ok := in[path[0]]; ok {
			each(next, path[1:], visit)
		} else if path[0] == "*" {
			for _, next := range in {
				each(next, path[1:], visit)
			}
		}
	case []any:
		if path[0] == "*" {
			for _, next := range in {
				each(next, path[1:], visit)
			}
		}
	}
}

// workload has the parts of an object that are read. Only its needs are kept, by the index.
type workload struct{ usage.Workload }

// GetObjectMeta is part of metav1.ObjectMetaAccessor.
func (w *workload) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: w.Namespace, Name: w.Name}
}

// GetObjectKind and DeepCopyObject are part of runtime.Object.
func (*workload) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the same object: it never changes.
func (w *workload) DeepCopyObject() runtime.Object { return w }

// workloads follows one kind of a cluster. It is the store of a reflector, and keeps nothing but
// what the index has.
type workloads struct {
	Workload
	watchState
	follower *follower
	needs    *usage.Workloads
	version  string             // that is followed
	stop     context.CancelFunc // nil while it is not followed
	absent   bool               // the cluster does not serve the kind; guarded by the follower's mu
}

var _ cache.TransformingStore = &workloads{}

// Transformer is part of cache.TransformingStore.
func (w *workloads) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return w.reduce(obj), nil }
}

// reduce keeps what an object needs.
func (w *workloads) reduce(obj any) *workload {
	switch obj := obj.(type) {
	case *workload:
		return obj
	case *unstructured.Unstructured:
		return &workload{usage.Workload{Namespace: text(obj.GetNamespace()), Name: text(obj.GetName()), Images: w.images(obj.Object)}}
	}
	return &workload{}
}

// Add is part of cache.ReflectorStore.
func (w *workloads) Add(obj any) error {
	w.needs.Set(w.reduce(obj).Workload)
	return nil
}

// Update is part of cache.ReflectorStore.
func (w *workloads) Update(obj any) error { return w.Add(obj) }

// Delete is part of cache.ReflectorStore.
func (w *workloads) Delete(obj any) error {
	one := w.reduce(obj).Workload
	one.Images = nil
	w.needs.Set(one)
	return nil
}

// Replace is part of cache.ReflectorStore.
func (w *workloads) Replace(list []any, _ string) error {
	all := make([]usage.Workload, 0, len(list))
	for _, obj := range list {
		all = append(all, w.reduce(obj).Workload)
	}
	w.needs.Replace(all)
	w.follower.mu.Lock()
	defer w.follower.mu.Unlock()
	w.current = true
	return nil
}

// Resync is part of cache.ReflectorStore.
func (*workloads) Resync() error { return nil }

// staleReason returns why it is not known what the workloads need, or "". The caller holds the
// follower's mu.
func (w *workloads) staleReason(now time.Time) string {
	if w.absent || w.current && w.asOfNow(now) {
		return ""
	}
	why := ""
	if w.fault != nil {
		why = ": " + w.fault.Error()
	}
	return fmt.Sprintf("the %s of cluster %s are not known%s", w.Workload, w.follower.source.Name, why)
}

// workloadStaleReason returns why it is not known what the workloads of the cluster need. It
// returns "" if it is known, and while not even the cluster's pods are known.
func (f *follower) workloadStaleReason(now time.Time) string {
	if f.staleReason(now) != "" {
		return ""
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, w := range f.workloads {
		if doubt := w.staleReason(now); doubt != "" {
			all = append(all, doubt)
		}
	}
	if len(all) == 0 {
		return ""
	}
	more := ""
	if len(all) > 1 {
		more = " (and " + table.Quantity(len(all)-1, "other kind") + ")"
	}
	return all[0] + more + ". Allow the credential to list and watch workloads, or prune without them"
}

// followWorkloads follows what the cluster serves of the kinds until ctx is done.
func (f *follower) followWorkloads(ctx context.Context, config *restclient.Config, run func(func())) error {
	if len(f.workloads) == 0 {
		return nil
	}
	config = restclient.CopyConfig(config)
	// few ask at a time, and the cluster knows its own limits
	config.UserAgent, config.QPS = userAgent, -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	served, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	run(func() {
		for _, w := range f.workloads {
			w.stop = nil
		}
		for ctx.Err() == nil {
			wait := discoverEvery
			has := &catalog{served.RESTClient(), map[string][]string{"": {"v1"}}, map[string]map[string]bool{}}
			for _, w := range f.workloads {
				version, err := has.version(ctx, w.Workload)
				switch {
				case w.stop != nil && (err != nil || version == w.version):
				case err != nil:
					wait = tick
					f.closed(&w.watchState, fmt.Errorf("checking whether the cluster has them: %w", err))
				default:
					f.turn(ctx, w, version, client, run)
				}
			}
			if !sleep(ctx, f.clusters.clock, wait) {
				return
			}
		}
	})
	return nil
}

// turn follows a kind in a version, and in no other; an empty one is none.
func (f *follower) turn(ctx context.Context, w *workloads, version string, client dynamic.Interface, run func(func())) {
	if w.stop != nil {
		w.stop()
		w.stop = nil
	}
	f.mu.Lock()
	was := w.absent
	w.absent, w.current = version == "", false
	f.mu.Unlock()
	if version == "" {
		if !was {
			w.needs.Replace(nil)
		}
		return
	}
	slog.Debug("Following workloads of a cluster", "cluster", f.source.Name, "kind", w.Workload.String(), "version", version)
	ctx, w.stop = context.WithCancel(ctx)
	w.version = version
	resource := client.Resource(schema.GroupVersionResource{Group: w.Group, Version: version, Resource: w.Resource})
	lw := f.listWatch(&w.watchState,
		func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return w.list(ctx, resource, o)
		},
		func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return resource.Watch(ctx, o)
		},
	)
	reflector := cache.NewReflectorWithOptions(lw, &unstructured.Unstructured{}, w, cache.ReflectorOptions{Name: f.source.Name + "/" + w.Workload.String()})
	run(func() { reflector.RunWithContext(ctx) })
}

// list reads all objects, a page at a time, and keeps of each what it needs.
func (w *workloads) list(ctx context.Context, resource dynamic.ResourceInterface, o metav1.ListOptions) (runtime.Object, error) {
	pages := pager.New(pager.SimplePageFunc(func(o metav1.ListOptions) (runtime.Object, error) {
		found, err := resource.List(ctx, o)
		if err != nil {
			return nil, err
		}
		page := &internalversion.List{ListMeta: metav1.ListMeta{ResourceVersion: found.GetResourceVersion(), Continue: found.GetContinue()}}
		for i := range found.Items {
			page.Items = append(page.Items, w.reduce(&found.Items[i]))
		}
		return page, nil
	}))
	pages.PageSize = workloadsPage
	// Without the reflector's revision: with it, the watch cache would answer in one piece.
	all, _, err := pages.List(ctx, metav1.ListOptions{FieldSelector: o.FieldSelector})
	return all, err
}

// catalog lists the resources that a cluster serves. It reads a group only when it is needed.
type catalog struct {
	client restclient.Interface
	// by group, the preferred one first; none if it is not served
	versions  map[string][]string
	resources map[string]map[string]bool // by group/version, those that can be created
}

// version returns the version in which the cluster serves a kind; "" if it does not. A kind whose
// objects cannot be created there does not count: it has no objects of users, and another
// Tidewaiter lists its needed images with such a kind.
func (c *catalog) version(ctx context.Context, kind Workload) (string, error) {
	ctx, done := context.WithTimeout(ctx, discoverPatience)
	defer done()
	versions, known := c.versions[kind.Group]
	if !known {
		var group metav1.APIGroup
		err := c.get(ctx, "/apis/"+kind.Group, &group)
		if err != nil && !apierrors.IsNotFound(err) {
			return "", err
		}
		if err == nil {
			versions = []string{group.PreferredVersion.Version}
		}
		for _, v := range group.Versions {
			if v.Version != versions[0] {
				versions = append(versions, v.Version)
			}
		}
		c.versions[kind.Group] = versions
	}
	for _, version := range versions {
		path := "/apis/" + kind.Group + "/" + version
		if kind.Group == "" {
			path = "/api/" + version
		}
		resources, known := c.resources[path]
		if !known {
			var list metav1.APIResourceList
			if err := c.get(ctx, path, &list); err != nil && !apierrors.IsNotFound(err) {
				return "", err
			}
			resources = map[string]bool{}
			for _, r := range list.APIResources {
				if slices.Contains(r.Verbs, "create") {
					resources[r.Name] = true
				}
			}
			c.resources[path] = resources
		}
		if resources[kind.Resource] {
			return version, nil
		}
	}
	return "", nil
}

func (c *catalog) get(ctx context.Context, path string, into runtime.Object) error {
	return c.client.Get().AbsPath(path).Do(ctx).Into(into)
}

// watchState is the state of following one kind, pods or workloads. The follower's mu guards it.
type watchState struct {
	current bool      // all objects have been read since the cluster was away
	open    bool      // a watch is open
	watch   int       // which one: it counts them
	ended   time.Time // when the last one ended; zero for never
	fault   error     // why none is open
}

// asOfNow reports whether changes arrive: a watch is open, or about to be opened again.
func (w *watchState) asOfNow(now time.Time) bool { return w.open || now.Sub(w.ended) <= fresh }

// opened notes that a watch was opened. The caller calls closed when it ends.
func (f *follower) opened(of *watchState) (closed func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if of.fault != nil {
		f.changed()
	}
	of.open, of.fault = true, nil
	of.watch++
	watch := of.watch
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if of.open && of.watch == watch { // else another has been opened since
			of.open, of.ended = false, f.clusters.clock.Now()
		}
	}
}

// closed notes that a kind cannot be followed, and why.
func (f *follower) closed(of *watchState, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if of.open {
		of.open, of.ended = false, f.clusters.clock.Now()
	}
	if of.fault == nil {
		f.changed()
	}
	of.fault = errors.New(printable.Line(err.Error(), maxText))
}

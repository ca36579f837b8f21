package usage

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	api "k8s.io/kubernetes/pkg/apis/core"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

var (
	digestA = "sha256:" + strings.Repeat("a", 64)
	digestB = "sha256:" + strings.Repeat("b", 64)
)

// fakePods serves pages of pods and one watch at a time.
type fakePods struct {
	mu    sync.Mutex
	pages [][]api.Pod
	lists int
	watch *watch.FakeWatcher
	fail  error // of the next Watch
}

func (f *fakePods) NewList() apiruntime.Object { return &api.PodList{} }

func (f *fakePods) ConvertToTable(context.Context, apiruntime.Object, apiruntime.Object) (*metav1.Table, error) {
	return nil, fmt.Errorf("not asked")
}

func (f *fakePods) List(_ context.Context, opts *internalversion.ListOptions) (apiruntime.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	page := 0
	if opts.Continue != "" {
		if _, err := fmt.Sscan(opts.Continue, &page); err != nil {
			return nil, err
		}
	}
	list := &api.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	if page < len(f.pages) {
		list.Items = f.pages[page]
	}
	if page+1 < len(f.pages) {
		list.Continue = fmt.Sprint(page + 1)
	}
	return list, nil
}

func (f *fakePods) Watch(_ context.Context, opts *internalversion.ListOptions) (watch.Interface, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if opts.ResourceVersion != "7" {
		return nil, fmt.Errorf("watch from %q, not from the list's version", opts.ResourceVersion)
	}
	if err := f.fail; err != nil {
		f.fail = nil
		return nil, err
	}
	f.watch = watch.NewFake()
	return f.watch, nil
}

func (f *fakePods) listed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists
}

// send sends one event and waits until it has been followed.
func (f *fakePods) send(t watch.EventType, obj apiruntime.Object) {
	f.mu.Lock()
	w := f.watch
	f.mu.Unlock()
	w.Action(t, obj)
	synctest.Wait()
}

// read is a Source's Read for these pods.
func read(obj apiruntime.Object) (Pod, error) {
	in, ok := obj.(*api.Pod)
	if !ok {
		return Pod{}, fmt.Errorf("%T is not a pod", obj)
	}
	pod := Pod{Cluster: Local, Namespace: in.Namespace, Name: in.Name, Since: in.CreationTimestamp.Time}
	for i, c := range in.Spec.Containers {
		id := ""
		if i < len(in.Status.ContainerStatuses) {
			id = in.Status.ContainerStatuses[i].ImageID
		}
		pod.Keys = append(pod.Keys, podimages.Keys(c.Image, id)...)
	}
	return pod, nil
}

func pod(name string, images ...string) api.Pod {
	p := api.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	for i, image := range images {
		p.Spec.Containers = append(p.Spec.Containers, api.Container{Name: fmt.Sprint("c", i), Image: image})
	}
	return p
}

func runs(p api.Pod, imageID string) *api.Pod {
	p.Status.ContainerStatuses = []api.ContainerStatus{{Name: "c0", ImageID: imageID}}
	return &p
}

func TestIndexFollowsPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := &fakePods{pages: [][]api.Pod{{pod("a", "app:1")}, {pod("b", "app:1", "app@"+digestB)}}}
		index := NewIndex(Source{pods, read})
		var changes [][]string
		cancel := index.Subscribe(func(digests []string) { changes = append(changes, digests) })
		if index.Synced() {
			t.Error("synced before it ran")
		}
		ctx, stop := context.WithCancel(t.Context())
		go index.Run(ctx)
		synctest.Wait()
		if !index.Synced() {
			t.Fatal("not synced")
		}
		count := func(digest string, refs ...string) int {
			var parsed []reference.Reference
			for _, s := range refs {
				parsed = append(parsed, podimages.Parse(s))
			}
			return index.PodsUsing([]string{digest}, parsed)
		}
		expect := func(when string, got, want int) {
			t.Helper()
			if got != want {
				t.Errorf("%s: %d pods, want %d", when, got, want)
			}
		}
		expect("by tag, over two pages", count("", "docker.io/library/app:1"), 2)
		expect("by digest in the spec", count(digestB), 1)
		expect("by both, a pod counts once", count(digestB, "index.docker.io/library/app:1", "app@"+digestA, "::"), 2)
		expect("unknown", count(digestA, "app:2"), 0)
		expect("by two digests", index.PodsUsing([]string{digestA, digestB}, nil), 1)
		digests, references := index.InUse()
		if !slices.Equal(digests, []string{digestB}) || !slices.Equal(references, []string{"docker.io/library/app:1"}) {
			t.Errorf("in use are %q and %q", digests, references)
		}

		changes = nil
		pods.send(watch.Modified, runs(pod("a", "app:1"), "docker.io/library/app@"+digestA))
		expect("a digest in the status replaces the tag", count("", "app:1"), 1)
		expect("a digest in the status counts", count(digestA), 1)
		want := [][]string{{digestA}}
		if diff := cmp.Diff(want, changes); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}

		changes = nil
		pods.send(watch.Modified, runs(pod("a", "app:1"), "docker.io/library/app@"+digestA))
		pods.send(watch.Bookmark, &api.Pod{})
		if len(changes) != 0 {
			t.Errorf("told of %v when nothing changed", changes)
		}
		p := pod("a", "app:1")
		pods.send(watch.Deleted, &p)
		expect("after deletion", count(digestA), 0)
		cancel()

		// A watch that is too old is started again from a fresh list.
		pods.mu.Lock()
		pods.pages = [][]api.Pod{{pod("c", "app:2")}}
		lists := pods.lists
		pods.fail = apierrors.NewResourceExpired("too old")
		pods.mu.Unlock()
		expired := apierrors.NewResourceExpired("too old").Status()
		pods.send(watch.Error, &expired)
		synctest.Wait()
		for pods.listed() < lists+2 { // the first attempt meets the failing Watch
			waitASecond(t)
		}
		synctest.Wait()
		expect("pods that went away unseen", count(digestB, "app:1"), 0)
		expect("pods that came unseen", count("", "app:2"), 1)

		stop()
		synctest.Wait()
		if len(index.pods) != 1 || len(index.images) != 1 || index.named != 1 {
			t.Errorf("index keeps %v, %v and %d named for one pod with one image", index.pods, index.images, index.named)
		}
	})
}

// A pod counts for the image that an index lists for the platform of its node, and where that is
// not known for each of them.
func TestPlatformsOfNodes(t *testing.T) {
	x := NewIndex(Source{nil, read})
	var used []string
	x.OnUse(func(p Pod) { used = append(used, p.Name+" "+p.Platform) })
	follow := func(name, platform string) {
		x.follows(x.sources[0], Pod{Cluster: "prod", Namespace: "team-" + name, Name: name, Platform: platform, Keys: []string{digestA}})
	}
	expect := func(when string, want ...int) {
		t.Helper()
		for i, digests := range [][]string{{digestA}, {digestA + "@linux/arm64"}, {digestA + "@linux/amd64"}, {digestA + "@linux/arm64", digestA + "@linux/amd64"}} {
			if got := x.PodsUsing(digests, nil); got != want[i] {
				t.Errorf("%s: %d pods use %v, want %d", when, got, digests, want[i])
			}
		}
	}
	follow("a", "linux/arm64")
	follow("b", "linux/arm64")
	follow("c", "linux/amd64")
	expect("three nodes are known", 3, 2, 1, 3)
	follow("d", "")
	expect("one is not", 4, 3, 2, 4)
	if got, want := x.UsedBy([]string{digestA + "@linux/amd64"}, nil), []string{"prod", "prod/team-c", "prod/team-d"}; !slices.Equal(got, want) {
		t.Errorf("used by %q, want %q", got, want)
	}
	follow("d", "linux/amd64")
	follow("d", "linux/amd64")
	expect("it becomes known", 4, 2, 2, 4)
	if want := []string{"a linux/arm64", "b linux/arm64", "c linux/amd64", "d ", "d linux/amd64"}; !slices.Equal(used, want) {
		t.Errorf("told of %q, want %q", used, want)
	}
	x.retain(x.sources[0], nil)
	expect("all are gone", 0, 0, 0, 0)
	if len(x.pods)+len(x.images)+len(x.on) != 0 {
		t.Errorf("the index keeps %v, %v and %v", x.pods, x.images, x.on)
	}
}

// Pods that use an image are named, as many as are asked for, and each once; those on another
// platform are not.
func TestUsersAreNamed(t *testing.T) {
	x := NewIndex()
	s := &source{}
	use := func(cluster, name, platform string, keys ...string) {
		x.set(s.id(Pod{Cluster: cluster, Namespace: "team", Name: name}), keys, platform, 0)
	}
	use("prod", "a", "linux/amd64", digestA, digestB)
	use("prod", "b", "linux/arm64", digestA)
	use(Local, "c", "", "registry.example.com/app:1")
	ref := []reference.Reference{{Host: "registry.example.com", Repository: "app", Tag: "1"}}
	for _, tt := range []struct {
		digests []string
		want    []string
	}{
		{[]string{digestA, digestB}, []string{"local/team/c", "prod/team/a", "prod/team/b"}},
		{[]string{digestA + "@linux/arm64"}, []string{"local/team/c", "prod/team/b"}},
		{nil, []string{"local/team/c"}},
	} {
		if got := x.Users(tt.digests, ref, 9); !slices.Equal(got, tt.want) {
			t.Errorf("%v is used by %v, want %v", tt.digests, got, tt.want)
		}
	}
	if got := x.Users([]string{digestA, digestB}, ref, 2); len(got) != 2 {
		t.Errorf("of two there are %v", got)
	}
	use("prod", "a", "linux/amd64") // is gone
	if got := x.Users([]string{digestB}, nil, 9); len(got) != 0 {
		t.Errorf("of a pod that is gone there is %v", got)
	}
}

// Who names a tag without a digest is found by the tag and by the ID that a runtime tells, with the
// time of the oldest pod, until the pod says what it runs.
func TestNamedTags(t *testing.T) {
	x := NewIndex()
	s := &source{}
	use := func(name string, since int64, keys ...string) {
		x.set(s.id(Pod{Cluster: "prod", Namespace: "team", Name: name}), keys, "linux/arm64", since)
	}
	told := digestA
	x.Subscribe(func(digests []string) { told = strings.Join(digests, " ") })
	use("pending", 30, "registry.example.com/app:1")
	use("older", 20, "registry.example.com/app:1")
	if told != digestA {
		t.Errorf("told of %q for tags", told)
	}
	use("loaded", 10, "registry.example.com/app:1?"+digestB)
	if told != digestB {
		t.Errorf("told of %q for an ID", told)
	}
	all, version := x.Named(0)
	slices.SortFunc(all, func(a, b Named) int { return strings.Compare(a.ID, b.ID) })
	want := []Named{{Tag: "registry.example.com/app:1", Since: 20}, {Tag: "registry.example.com/app:1", ID: digestB, Since: 10}}
	if !slices.Equal(all, want) || all[1].Key() != "registry.example.com/app:1?"+digestB {
		t.Errorf("named are %v, want %v", all, want)
	}
	if again, _ := x.Named(version); again != nil {
		t.Errorf("nothing has changed, and there is %v", again)
	}
	if got := x.Telling(digestB); !slices.Equal(got, []string{all[1].Key()}) {
		t.Errorf("the ID is told by %q", got)
	}
	for _, key := range []string{all[1].Key(), all[1].Key() + "@linux/arm64"} {
		if got := x.PodsUsing([]string{key, key + "@linux/s390x"}, nil); got != 1 {
			t.Errorf("%d pods have the key %s", got, key)
		}
	}
	use("pending", 40, "registry.example.com/app:1") // made again
	use("older", 0)
	if all, now := x.Named(version); now == version || !slices.Contains(all, Named{Tag: "registry.example.com/app:1", Since: 40}) {
		t.Errorf("after the pod was made again named are %v", all)
	}
	for name, since := range map[string]int64{"named": 50, "named again": 40} {
		use(name, since, digestB)
		x.tagged.set(s.id(Pod{Cluster: "prod", Namespace: "team", Name: name}), []Tagged{{"registry.example.com/app:1", digestB}, {"registry.example.com/app:2", digestA}})
	}
	if got, want := x.Reporting([]string{digestA, digestB}), []Named{{Tag: "registry.example.com/app:1", ID: digestB, Since: 40}}; !slices.Equal(got, want) {
		t.Errorf("the digest is told by %v, want %v", got, want)
	}
	use("loaded", 10, digestA)
	if got := x.Telling(digestB); len(got) != 0 || len(x.ids) != 0 {
		t.Errorf("the ID is told by %q once the pod tells a digest", got)
	}
}

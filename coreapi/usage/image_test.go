package usage

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

var (
	digestA = "sha256:" + strings.Repeat("a", 64)
	digestB = "sha256:" + strings.Repeat("b", 64)
)

func TestParseImageID(t *testing.T) {
	for _, test := range []struct{ name, id, key, pull string }{
		{"containerd and CRI-O", "registry.example.com:5000/team/app@" + digestA, digestA, "registry.example.com:5000/team/app@" + digestA},
		{"cri-dockerd", "docker-pullable://nginx@" + digestA, digestA, "docker.io/library/nginx@" + digestA},
		{"bare digest", digestA, digestA, ""},
		{"image ID of a Docker node", "docker://" + digestA, "", ""},
		{"tag", "nginx:1", "", ""},
		{"empty", "", "", ""},
		{"upper-case digest", "sha256:" + strings.Repeat("A", 64), "", ""},
		{"short digest", "nginx@sha256:abc", "", ""},
		{"garbage", "docker-pullable://@@", "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := parseImageID(test.id)
			pull := got.String()
			if got.Repository == "" {
				pull = ""
			}
			if key(got) != test.key || pull != test.pull {
				t.Errorf("got key %q, pull %q; want %q, %q", key(got), pull, test.key, test.pull)
			}
		})
	}
}

func TestImagesOfAPod(t *testing.T) {
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init", Image: "registry.example.com/init@" + digestB}},
			Containers: []corev1.Container{
				{Name: "runs", Image: "registry.example.com/app:1"},
				{Name: "bare", Image: "registry.example.com/bare:1"},
				{Name: "waits", Image: "nginx"},
				{Name: "same", Image: "docker.io/library/nginx:latest"},
				{Name: "broken", Image: "NOT A REFERENCE"},
			},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "busybox:1.36"}}},
		},
		Status: corev1.PodStatus{
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "bare", ImageID: digestB},
				{Name: "runs", ImageID: "registry.example.com/app@" + digestA},
				{Name: "waits", ImageID: ""},
				{Name: "unknown", ImageID: "registry.example.com/other@" + digestA},
			},
			EphemeralContainerStatuses: []corev1.ContainerStatus{{Name: "debug", ImageID: "docker://" + digestA}},
		},
	}
	wantKeys := []string{"docker.io/library/busybox:1.36", "docker.io/library/nginx:latest", "registry.example.com/bare:1", digestA, digestB}
	if diff := cmp.Diff(wantKeys, keys(images(pod))); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	wantPull := []string{
		"docker.io/library/busybox:1.36", "docker.io/library/nginx:latest",
		"registry.example.com/app@" + digestA, "registry.example.com/bare:1", "registry.example.com/init@" + digestB,
	}
	if diff := cmp.Diff(wantPull, texts(Images(pod))); diff != "" {
		t.Errorf("references to pull (-want +got):\n%s", diff)
	}
}

func texts(refs []reference.Reference) (out []string) {
	for _, ref := range refs {
		out = append(out, ref.String())
	}
	return out
}

// Whatever a pod says its images are, its keys are sorted and distinct, and a
// reference to pull reads back as the image it came from.
func FuzzImages(f *testing.F) {
	f.Add("nginx", "docker-pullable://nginx@"+digestA)
	f.Add("registry.example.com:5000/a/b:c@"+digestB, "")
	f.Add("app@"+digestA, digestB)
	f.Add("[::1]:5000/x", "docker://"+digestA)
	f.Add("", "@")
	f.Fuzz(func(t *testing.T, spec, id string) {
		pod := &corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: spec}, {Name: "b", Image: id}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
				{Name: "a", ImageID: id},
			}},
		}
		found := keys(images(pod))
		if !slices.IsSorted(found) || len(slices.Compact(slices.Clone(found))) != len(found) || slices.Contains(found, "") {
			t.Errorf("keys %q are not sorted, distinct and present", found)
		}
		for _, ref := range Images(pod) {
			if back := parseImage(ref.String()); back != ref || !slices.Contains(found, key(back)) {
				t.Errorf("reference %q reads back as %q, not among %q", ref, key(back), found)
			}
		}
	})
}

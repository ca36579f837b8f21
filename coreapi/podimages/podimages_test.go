package podimages

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

var (
	digestA = "sha256:" + strings.Repeat("a", 64)
	digestB = "sha256:" + strings.Repeat("b", 64)
)

func TestParseImageID(t *testing.T) {
	for _, test := range []struct{ name, id, key, pull string }{
		{"containerd and CRI-O", "registry.example.com:5000/team/app@" + digestA, digestA, "registry.example.com:5000/team/app@" + digestA},
		{"cri-dockerd", "docker-pullable://nginx@" + digestA, digestA, "docker.io/library/nginx@" + digestA},
		{"bare digest", digestA, "", ""},
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
			if Key(got) != test.key || pull != test.pull {
				t.Errorf("got key %q, pull %q; want %q, %q", Key(got), pull, test.key, test.pull)
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
	wantKeys := []string{"docker.io/library/busybox:1.36?" + digestA, "docker.io/library/nginx:latest", "registry.example.com/bare:1?" + digestB, digestA, digestB}
	if diff := cmp.Diff(wantKeys, keysOf(pod)); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	wantPull := []string{
		"docker.io/library/busybox:1.36", "docker.io/library/nginx:latest",
		"registry.example.com/app@" + digestA, "registry.example.com/bare:1", "registry.example.com/init@" + digestB,
	}
	if diff := cmp.Diff(wantPull, texts(Pullable(pod))); diff != "" {
		t.Errorf("references to pull (-want +got):\n%s", diff)
	}
}

// A volume that is an image is used as a container's image is, by what its status tells or else by
// its reference.
func TestImageVolumesAreUsed(t *testing.T) {
	image := func(name, reference string) corev1.Volume {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: reference}}}
	}
	mount := func(volume, ref string) corev1.VolumeMountStatus {
		return corev1.VolumeMountStatus{Name: volume, VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: ref}}}
	}
	pod := &corev1.Pod{
		Spec: corev1.PodSpec{Volumes: []corev1.Volume{
			image("mounted", "registry.example.com/model:1"), image("waits", "registry.example.com/data:1"), image("later", ""), {Name: "empty"},
			image("early", "registry.example.com/early:1"),
		}},
		Status: corev1.PodStatus{
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "init", VolumeMounts: []corev1.VolumeMountStatus{mount("early", "registry.example.com/early@"+digestB)}}},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "first", VolumeMounts: []corev1.VolumeMountStatus{{Name: "mounted"}, {Name: "empty"}}},
				{Name: "second", VolumeMounts: []corev1.VolumeMountStatus{mount("mounted", "registry.example.com/model@"+digestA)}},
			},
		},
	}
	if diff := cmp.Diff([]string{"registry.example.com/data:1", digestA, digestB}, keysOf(pod)); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	var names []string
	Containers(pod, func(name, _ string, _ corev1.ContainerStatus) { names = append(names, name) })
	if diff := cmp.Diff([]string{"volume/mounted", "volume/waits", "volume/early"}, names); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
}

// The ID that a runtime tells instead of a manifest's digest is part of the key, unless the spec
// has the digest.
func TestKeysOfIDs(t *testing.T) {
	for _, tt := range []struct {
		image, imageID string
		want           []string
	}{
		{"nginx", digestA, []string{"docker.io/library/nginx:latest?" + digestA}},
		{"nginx", "docker://" + digestA, []string{"docker.io/library/nginx:latest?" + digestA}},
		{"nginx", "docker-pullable://" + digestA, []string{"docker.io/library/nginx:latest?" + digestA}},
		{"nginx", "sha256:abc123", []string{"docker.io/library/nginx:latest"}},
		// loaded from a file, or pulled by another name
		{"nginx", "docker.io/library/import-2024@" + digestA, []string{digestA, "docker.io/library/nginx:latest?" + digestA}},
		{"nginx", "docker.io/library/nginx@" + digestA, []string{digestA}},
		{"nginx", "docker-pullable://nginx@" + digestA, []string{digestA}},
		// what the spec names is needed, whatever the status tells
		{"nginx@" + digestB, "docker.io/library/import-2024@" + digestA, []string{digestA, digestB}},
		{"nginx:1@" + digestB, "docker.io/library/nginx@" + digestA, []string{digestA, digestB}},
		{"nginx@" + digestB, digestA, []string{digestB, "?" + digestA}},
		{"nginx@" + digestA, digestA, []string{digestA}},
		{"NOT A REFERENCE", digestA, []string{"?" + digestA}},
		{digestA, digestA, []string{"?" + digestA}},
		{"NOT A REFERENCE", "", nil},
	} {
		if got := Keys(tt.image, tt.imageID); !slices.Equal(got, tt.want) {
			t.Errorf("%s with the status %q has the keys %q, want %q", tt.image, tt.imageID, got, tt.want)
		}
	}
}

func keysOf(pod *corev1.Pod) (keys []string) {
	Containers(pod, func(_, image string, status corev1.ContainerStatus) {
		keys = append(keys, Keys(image, status.ImageID)...)
	})
	slices.Sort(keys)
	return slices.Compact(keys)
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
		found := keysOf(pod)
		for _, key := range found {
			tag, id, told := CutUnsettled(key)
			if key == "" || told && !reference.IsDigest(id) || !told && !reference.IsDigest(key) && Parse(key).Digest != "" || tag != "" && !reference.IsDigest(tag) && Key(Parse(tag)) != tag {
				t.Errorf("%q is no key", key)
			}
		}
		for _, ref := range Pullable(pod) {
			if back := Parse(ref.String()); back != ref || !slices.ContainsFunc(found, func(key string) bool { key, _, _ = CutUnsettled(key); return key == Key(back) }) {
				t.Errorf("reference %q reads back as %q, not among %q", ref, Key(back), found)
			}
		}
	})
}

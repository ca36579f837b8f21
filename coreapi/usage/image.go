package usage

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// key is what an image is looked up by: the digest where it is known, else the
// reference to pull it by. It is empty for what refers to nothing.
func key(ref reference.Reference) string {
	if ref.Digest != "" {
		return ref.Digest
	}
	return ref.String()
}

// parseImage reads what a container's spec says; the zero Reference where it is no
// reference.
func parseImage(s string) reference.Reference {
	ref, err := reference.Parse(s)
	if err != nil {
		return reference.Reference{}
	}
	return ref.Pulled()
}

// parseImageID reads status.containerStatuses[].imageID as runtimes write it:
// "registry/repo@sha256:…", with "docker-pullable://" before it, or a bare
// "sha256:…", which comes back without host and repository: see Runs. Docker's
// "docker://sha256:…" names an image on a node and no manifest, so it says nothing
// here.
func parseImageID(id string) reference.Reference {
	if strings.HasPrefix(id, "docker://") {
		return reference.Reference{}
	}
	id = strings.TrimPrefix(id, "docker-pullable://")
	if reference.IsDigest(id) {
		return reference.Reference{Digest: id}
	}
	ref := parseImage(id)
	if ref.Digest == "" {
		return reference.Reference{}
	}
	return ref
}

// Runs returns what a container runs whose spec names image and whose status has
// imageID: the digest that the status tells, else what the spec says; the zero
// Reference where neither refers to anything.
//
// A digest without a repository does not tell: containerd and CRI-O write so what
// they call an image that they know no manifest of, which is the digest of its
// config. It is returned, without a repository, only where the spec says nothing.
func Runs(image, imageID string) reference.Reference {
	want, runs := parseImage(image), parseImageID(imageID)
	if runs.Repository == "" && want.Repository != "" {
		return want
	}
	return runs
}

// Uses returns what a container counts for: what Runs says, and a digest without a
// repository beside that, as some runtime may mean a manifest.
func Uses(image, imageID string) []reference.Reference {
	uses := []reference.Reference{Runs(image, imageID)}
	if bare := parseImageID(imageID); bare.Repository == "" && bare.Digest != "" && bare != uses[0] {
		uses = append(uses, bare)
	}
	return uses
}

// Containers calls yield with each container of a pod, in the order init, regular,
// ephemeral: its name, the image of its spec, and its status, which is empty until there
// is one.
func Containers(pod *corev1.Pod, yield func(name, image string, status corev1.ContainerStatus)) {
	yieldContainer := func(name, image string, statuses []corev1.ContainerStatus) {
		var status corev1.ContainerStatus
		for _, s := range statuses {
			if s.Name == name {
				status = s
			}
		}
		yield(name, image, status)
	}
	for _, c := range pod.Spec.InitContainers {
		yieldContainer(c.Name, c.Image, pod.Status.InitContainerStatuses)
	}
	for _, c := range pod.Spec.Containers {
		yieldContainer(c.Name, c.Image, pod.Status.ContainerStatuses)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		yieldContainer(c.Name, c.Image, pod.Status.EphemeralContainerStatuses)
	}
}

// images returns what the pod's containers use, for each container that says so,
// in the order init, regular, ephemeral.
func images(pod *corev1.Pod) []reference.Reference {
	var found []reference.Reference
	Containers(pod, func(_, image string, status corev1.ContainerStatus) {
		for _, use := range Uses(image, status.ImageID) {
			if key(use) != "" {
				found = append(found, use)
			}
		}
	})
	return found
}

// keys returns the sorted, distinct keys of a pod's images.
func keys(images []reference.Reference) []string {
	var found []string
	for _, i := range images {
		if k := key(i); k != "" {
			found = append(found, k)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// Images returns the references by which the images that the pod's containers
// run can be pulled, distinct and sorted by their text: with the digest that runs
// where the pod's status tells it, else as the pod's spec has it.
func Images(pod *corev1.Pod) []reference.Reference {
	found := slices.DeleteFunc(images(pod), func(ref reference.Reference) bool { return ref.Repository == "" })
	slices.SortFunc(found, func(a, b reference.Reference) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(found)
}

// Package podimages reads from a pod which images it uses.
package podimages

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// Key is the key of an image: the digest if it is known, else the reference to pull it
// by. It is empty for a zero reference.
func Key(ref reference.Reference) string {
	if ref.Digest != "" {
		return ref.Digest
	}
	return ref.String()
}

// Parse reads the image of a container's spec; a text that is not a reference is the
// zero Reference.
func Parse(s string) reference.Reference {
	ref, err := reference.Parse(s)
	if err != nil {
		return reference.Reference{}
	}
	return ref.Pulled()
}

// parseImageID reads status.containerStatuses[].imageID as runtimes write it:
// "registry/repo@sha256:…", with or without "docker-pullable://" before it, or a bare
// "sha256:…", which is returned without host and repository: see Runs. Docker's
// "docker://sha256:…" names an image on a node and no manifest, so it is ignored.
func parseImageID(id string) reference.Reference {
	if strings.HasPrefix(id, "docker://") {
		return reference.Reference{}
	}
	id = strings.TrimPrefix(id, "docker-pullable://")
	if reference.IsDigest(id) {
		return reference.Reference{Digest: id}
	}
	ref := Parse(id)
	if ref.Digest == "" {
		return reference.Reference{}
	}
	return ref
}

// Runs returns what a container runs whose spec names image and whose status has imageID:
// the digest of the status, else the image of the spec; the zero Reference if neither
// refers to anything.
//
// A digest without a repository does not count: containerd and CRI-O write so the digest
// of the config of an image whose manifest they do not know. It is returned, without a
// repository, only if the spec has no reference.
func Runs(image, imageID string) reference.Reference {
	want, runs := Parse(image), parseImageID(imageID)
	if runs.Repository == "" && want.Repository != "" {
		return want
	}
	return runs
}

// Uses returns the images that a container counts for: the one of Runs, and a digest
// without a repository as well, which some runtime may mean as a manifest.
func Uses(image, imageID string) []reference.Reference {
	uses := []reference.Reference{Runs(image, imageID)}
	if bare := parseImageID(imageID); bare.Repository == "" && bare.Digest != "" && bare != uses[0] {
		uses = append(uses, bare)
	}
	return uses
}

// Containers calls yield with each container of a pod, in the order init, regular,
// ephemeral: its name, the image of its spec, and its status, which is empty until there
// is one. Then it calls yield with each volume that is an image, as if it were a container
// with the name volume/NAME, which no container can have.
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
	for _, v := range pod.Spec.Volumes {
		if v.Image != nil && v.Image.Reference != "" {
			yield("volume/"+v.Name, v.Image.Reference, corev1.ContainerStatus{ImageID: mounted(pod, v.Name)})
		}
	}
}

// mounted returns what the status of a pod says that an image volume is; "" if no container tells.
func mounted(pod *corev1.Pod, volume string) string {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range statuses {
			for _, m := range statuses[i].VolumeMounts {
				if m.Name == volume && m.VolumeStatus != nil && m.VolumeStatus.Image != nil {
					return m.VolumeStatus.Image.ImageRef
				}
			}
		}
	}
	return ""
}

// Of returns the images of the pod's containers and volumes that name one, in the order of
// [Containers].
func Of(pod *corev1.Pod) []reference.Reference {
	var found []reference.Reference
	Containers(pod, func(_, image string, status corev1.ContainerStatus) {
		for _, use := range Uses(image, status.ImageID) {
			if Key(use) != "" {
				found = append(found, use)
			}
		}
	})
	return found
}

// Keys returns the sorted, distinct keys of a pod's images.
func Keys(images []reference.Reference) []string {
	var found []string
	for _, i := range images {
		if k := Key(i); k != "" {
			found = append(found, k)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// Pullable returns the references by which the images that the pod uses can be pulled, distinct and
// sorted by their text: with the digest of the pod's status, else as the pod's spec has it.
func Pullable(pod *corev1.Pod) []reference.Reference {
	found := slices.DeleteFunc(Of(pod), func(ref reference.Reference) bool { return ref.Repository == "" })
	slices.SortFunc(found, func(a, b reference.Reference) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(found)
}

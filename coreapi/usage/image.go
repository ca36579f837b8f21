package usage

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/util/parsers"
)

// image is what a container uses: a repository with a digest or a tag. An
// imageID may be a bare digest without repository.
type image struct {
	repository string // with its registry, such as docker.io/library/nginx
	tag        string
	digest     string // such as sha256:…
}

// key is what an image is looked up by: the digest where it is known.
func (i image) key() string {
	switch {
	case i.digest != "":
		return i.digest
	case i.repository != "" && i.tag != "":
		return i.repository + ":" + i.tag
	}
	return ""
}

// pull is the reference to pull the image by, empty when it is not known.
func (i image) pull() string {
	switch {
	case i.repository == "":
		return ""
	case i.digest != "":
		return i.repository + "@" + i.digest
	}
	return i.repository + ":" + i.tag
}

// parseReference reads an image reference by Kubernetes' rule; the zero image
// says that it is not one.
func parseReference(ref string) image {
	repository, tag, digest, err := parsers.ParseImageName(ref)
	if err != nil {
		return image{}
	}
	return image{repository: repository, tag: tag, digest: digest}
}

// parseImageID reads status.containerStatuses[].imageID as runtimes write it:
// "registry/repo@sha256:…", with "docker-pullable://" before it, or a bare
// "sha256:…". Docker's "docker://sha256:…" names an image on a node and no
// manifest, so it says nothing here.
func parseImageID(id string) image {
	if strings.HasPrefix(id, "docker://") {
		return image{}
	}
	id = strings.TrimPrefix(id, "docker-pullable://")
	if isDigest(id) {
		return image{digest: id}
	}
	i := parseReference(id)
	if i.digest == "" {
		return image{}
	}
	return i
}

// isDigest says whether s is a lower-case SHA-256 or SHA-512 digest
// (OCI image spec, descriptor.md, "Registered Algorithms").
func isDigest(s string) bool {
	algorithm, hex, ok := strings.Cut(s, ":")
	if !ok || !(algorithm == "sha256" && len(hex) == 64 || algorithm == "sha512" && len(hex) == 128) {
		return false
	}
	return strings.Trim(hex, "0123456789abcdef") == ""
}

// images returns what the pod's containers use, one for each container that
// says so, in the order init, regular, ephemeral.
func images(pod *corev1.Pod) []image {
	var found []image
	add := func(name, spec string, statuses []corev1.ContainerStatus) {
		want := parseReference(spec)
		for _, s := range statuses {
			if s.Name != name {
				continue
			}
			if runs := parseImageID(s.ImageID); runs.digest != "" {
				if runs.repository == "" {
					runs.repository = want.repository
				}
				want = runs
			}
		}
		if want.key() != "" {
			found = append(found, want)
		}
	}
	for _, c := range pod.Spec.InitContainers {
		add(c.Name, c.Image, pod.Status.InitContainerStatuses)
	}
	for _, c := range pod.Spec.Containers {
		add(c.Name, c.Image, pod.Status.ContainerStatuses)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		add(c.Name, c.Image, pod.Status.EphemeralContainerStatuses)
	}
	return found
}

// keys returns the sorted, distinct keys of the pod's images.
func keys(pod *corev1.Pod) []string {
	var found []string
	for _, i := range images(pod) {
		found = append(found, i.key())
	}
	slices.Sort(found)
	return slices.Clip(slices.Compact(found))
}

// Images returns the references by which the images that the pod's containers
// run can be pulled, sorted and distinct: with the digest that runs where the
// pod's status tells it, else as the pod's spec has it.
func Images(pod *corev1.Pod) []string {
	var found []string
	for _, i := range images(pod) {
		if ref := i.pull(); ref != "" {
			found = append(found, ref)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

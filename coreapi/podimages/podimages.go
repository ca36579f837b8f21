// Package podimages reads from a pod which images it uses.
package podimages

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/reference"
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
// "registry/repo@sha256:…", with or without "docker-pullable://" before it. Else it is the zero
// Reference: see [ID].
func parseImageID(id string) reference.Reference {
	ref := Parse(strings.TrimPrefix(id, "docker-pullable://"))
	if ref.Digest == "" {
		return reference.Reference{}
	}
	return ref
}

// ID returns the digest of an imageID that need not be a manifest's of the repository that the spec
// names: "sha256:…", "docker://sha256:…", or one below another repository's name. It is "" for any
// other imageID. A runtime writes it if it does not know the manifest of an image, such as one that
// was loaded from a file: then it is the digest of the image's config, or of a manifest that the
// runtime made, as `kind load` shows. Some mean the manifest.
func ID(image, imageID string) string { return read(image, imageID).id }

// told is the image in the spec and in the status of a container, each parsed once.
type told struct {
	spec, runs reference.Reference // runs is what [Runs] returns
	id         string              // what [ID] returns
}

func read(image, imageID string) told {
	t := told{spec: Parse(image), runs: parseImageID(imageID)}
	digest := imageID
	for _, prefix := range []string{"docker://", "docker-pullable://"} {
		digest = strings.TrimPrefix(digest, prefix)
	}
	switch {
	case reference.IsDigest(digest):
		t.id = digest
	case t.runs.Digest != "" && t.namesTag() && t.spec.Bare() != t.runs.Bare():
		t.id = t.runs.Digest
	}
	if t.runs.Digest == "" {
		t.runs = t.spec
	}
	return t
}

// namesTag reports whether the spec names a tag and no digest.
func (t told) namesTag() bool { return t.spec.Tag != "" && t.spec.Digest == "" }

// Runs returns what a container runs whose spec names image and whose status has imageID: the
// digest of the status, if it has a repository, else the image of the spec; the zero Reference if
// neither refers to anything. What the spec names need not run if the status has an [ID].
func Runs(image, imageID string) reference.Reference {
	if runs := parseImageID(imageID); runs.Digest != "" {
		return runs
	}
	return Parse(image)
}

// Manifest returns the digest of the manifest that a container runs; "" if only an [ID] is known,
// or nothing.
func Manifest(image, imageID string) string {
	if t := read(image, imageID); t.runs.Digest != t.id || t.spec.Digest != "" {
		return t.runs.Digest
	}
	return ""
}

// Keys returns the keys of the image that a container uses: its digest, or else the reference with
// a tag that the spec names. If the spec names another digest, that is a key, too. If the status
// has an [ID], the key has it: see [Unsettled].
func Keys(image, imageID string) []string { return read(image, imageID).keys() }

func (t told) keys() []string {
	switch {
	case t.id == "" && t.spec.Digest != "" && t.spec.Digest != t.runs.Digest:
		return []string{t.runs.Digest, t.spec.Digest}
	case t.id == "":
		return slices.DeleteFunc([]string{Key(t.runs)}, func(key string) bool { return key == "" })
	case t.runs.Digest == "":
		return []string{Unsettled(Key(t.runs), t.id)}
	case t.runs.Digest == t.id && t.namesTag():
		return []string{t.id, Unsettled(Key(t.spec), t.id)}
	case t.runs.Digest == t.id:
		return []string{t.id}
	}
	return []string{t.runs.Digest, Unsettled("", t.id)}
}

// unsettled is between the tag and the ID of a key. It is in no reference.
const unsettled = "?"

// Unsettled is the key of an image by the ID that a runtime reports and the tag that the pod names;
// tag is "" if the pod names none. If the image with the ID is known, the pod uses it. Otherwise
// the pod uses an image that the tag has led to at some time.
func Unsettled(tag, id string) string { return tag + unsettled + id }

// CutUnsettled takes apart what [Unsettled] has put together.
func CutUnsettled(key string) (tag, id string, ok bool) { return strings.Cut(key, unsettled) }

// Value is the value of the field "image" of pods in lists for those that use an image by a key. A
// pod that names a tag has the tag as a value, whatever it runs, and this one if it does not tell
// that.
func Value(key string) string {
	if _, _, ok := CutUnsettled(key); ok || key == "" {
		return key
	}
	if digest, _, _ := strings.Cut(key, "@"); reference.IsDigest(digest) {
		return key
	}
	return Unsettled(key, "")
}

// Container is what a container of a pod runs.
type Container struct {
	Cluster, Namespace, Pod, Name string
	// Image is the reference in the pod's spec, and ImageID the image ID in its status.
	Image, ImageID string
	// Since is when the pod was created.
	Since metav1.Time
}

// Known describes a container's image, as far as it is known.
type Known struct {
	// Digest is the digest of the running image; "" if it is not known.
	Digest string
	// Verified is the verdict for the reference that the container names, for its namespace. Reason
	// and Message explain it.
	Verified, Reason, Message string
	// NotImported is why the image could not be imported; "" before that was tried.
	NotImported string
	// Now is what the tag leads to that the container names, if the container runs something else.
	Now string
	// OutdatedUnknown is why it is not known whether it does; "" if it is.
	OutdatedUnknown string
}

// Values are the values of the field "image" in lists for a container whose spec names image and
// whose status has imageID: what it runs, what it names, and the repositories of both.
func Values(image, imageID string) (all []string) {
	t := read(image, imageID)
	if t.runs.Repository != "" {
		all = append(all, t.runs.Name())
	}
	for _, key := range t.keys() {
		all = append(all, Value(key))
	}
	all = append(all, t.id)
	if ref, err := reference.Parse(image); err == nil {
		pulled := ref.Pulled()
		pulled.Digest = ""
		if pulled.Tag != "" {
			all = append(all, pulled.String())
		}
		all = append(all, ref.Name())
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(value string) bool { return value == "" })
}

// Wanted returns a wanted value of the field "image" as it is stored. The wanted one may end with
// an @ and a platform. on reports whether it is for nodes of a platform, "" for one that is not
// known.
func Wanted(value, platform string) (stored string, on bool) {
	stored, only, _ := strings.Cut(value, "@")
	return stored, only == "" || platform == "" || platform == only
}

// Selected reports whether one of the wanted values of the field "image" is among a container's
// values, on a node of a platform: see [Wanted].
func Selected(wanted, values []string, platform string) bool {
	return slices.ContainsFunc(wanted, func(value string) bool {
		stored, on := Wanted(value, platform)
		return on && slices.Contains(values, stored)
	})
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

// mounted returns the image of an image volume according to the pod's status; "" if no container
// reports it.
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

// Of returns what the pod's containers and volumes run that name an image, in the order of
// [Containers]: see [Runs].
func Of(pod *corev1.Pod) []reference.Reference {
	var found []reference.Reference
	Containers(pod, func(_, image string, status corev1.ContainerStatus) {
		if runs := Runs(image, status.ImageID); Key(runs) != "" {
			found = append(found, runs)
		}
	})
	return found
}

// Pullable returns the references by which the images that the pod uses can be pulled, distinct and
// sorted by their text: with the digest in the pod's status or, without one, as in the pod's spec.
func Pullable(pod *corev1.Pod) []reference.Reference {
	found := slices.DeleteFunc(Of(pod), func(ref reference.Reference) bool { return ref.Repository == "" })
	slices.SortFunc(found, func(a, b reference.Reference) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(found)
}

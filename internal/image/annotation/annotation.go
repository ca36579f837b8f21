// Package annotation has the names of Tidewaiter's annotations on Images, and reads and writes
// structured ones. Clients may write any annotation, so one that cannot be read counts as absent.
package annotation

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Annotations that an import writes.
const (
	// References holds a JSON array of the canonical references under which the
	// image was imported, each once, the longest known first; see [Known].
	References = "tidewaiter.dev/references"
	// Gone holds a JSON object: references that the registry no longer has, with the time
	// (RFC 3339) at which this was found; see [Missing]. A tag in it is not in References; a
	// reference that comes back to the registry is removed from it. Nothing removes an Image for
	// being gone.
	Gone = "tidewaiter.dev/gone-from-registry"
	// Layers is LayersVerified once the layers were read and checked.
	Layers         = "tidewaiter.dev/layers"
	LayersVerified = "verified"
	// Limited is on an image about which less is known than about others. Its only value is
	// LimitedSchema1: no config, no layer sizes, no diff IDs.
	Limited        = "tidewaiter.dev/limited"
	LimitedSchema1 = "docker-schema1"
	// LeftOut names content that the Image cannot hold: JSON, a manifest.LeftOut. The Image's writer
	// sets it. The server knows that a left-out manifest has the Image's name as its digest. It knows
	// that a left-out config is the one that the manifest names, if the Image has the manifest.
	// Everything else in such an Image is the writer's claim.
	LeftOut = "tidewaiter.dev/left-out"
)

// AllowDelete lists the reasons to ignore when an Image is deleted: the words TaggedReason and the
// others below, separated by commas. Every user who may update the Image may write it.
const (
	AllowDelete = "tidewaiter.dev/allow-delete"
	// TaggedReason: a tag leads to the image, or to an index that lists it.
	TaggedReason = "tagged"
	// UsedReason: pods use it.
	UsedReason = "used"
	// UnknownReason: it is not known whether pods use it, or whether a tag leads to it.
	UnknownReason = "unknown"
	// NeededReason: workloads need it, whether or not they run pods now.
	NeededReason = "needed"
	// ClustersReason: no cluster is followed, so it is not known whether pods elsewhere use it.
	ClustersReason = "clusters"
	// WorkloadsReason: it is not known whether workloads need it.
	WorkloadsReason = "workloads"
)

// Platform holds os/architecture[/variant] of an image, which docker10.DockerImage
// cannot: it has an architecture only. The server writes it.
const Platform = "tidewaiter.dev/platform"

// ArtifactType marks an object of kind Image that is not an image but an artifact in the same
// format: a signature, an attestation, a chart. Its value is manifest.Manifest.TypeOfArtifact. The
// server writes it, and takes it off images.
const ArtifactType = "tidewaiter.dev/artifact-type"

// AttestationManifests are the digests of BuildKit's attestations that an index lists, separated by
// commas. It is there if the registry keeps the index's manifest
// (image.openshift.io/manifestBlobStored), as dockerImageManifests has only images. The server
// writes it.
const AttestationManifests = "tidewaiter.dev/attestation-manifests"

// Facts of a config that docker10.DockerImage has no field for. The server writes them.
const (
	// OSVersion is the version of the operating system that an image needs. It distinguishes Windows
	// images of one platform.
	OSVersion = "tidewaiter.dev/os-version"
	// RunConfig is a JSON object with Healthcheck, StopSignal, StopTimeout, Shell and ArgsEscaped
	// from the config, as far as each is well-formed; it is absent if it would be longer than 4
	// KiB.
	RunConfig = "tidewaiter.dev/run-config"
)

// MaxReferences bounds the references that are written to References and to Gone, and read from
// References. If there are more, Gone loses the oldest, and References those that SetKnown drops.
// Package tags records all tags, so the field selectors references= of images and image= of
// imagetags still find them.
const MaxReferences = 256

// MoreReferences is "true" on an Image that has had more references than References shows.
const MoreReferences = "tidewaiter.dev/more-references"

// Known returns the references in an Image's annotations, each once, the longest
// known first.
func Known(annotations map[string]string) []reference.Reference {
	var texts []string
	if json.Unmarshal([]byte(annotations[References]), &texts) != nil {
		return nil
	}
	var known []reference.Reference
	for _, s := range texts[:min(len(texts), MaxReferences)] {
		if ref, err := reference.Parse(s); err == nil && !slices.Contains(known, ref.Pulled()) {
			known = append(known, ref.Pulled())
		}
	}
	return known
}

// SetKnown records references in an Image's annotations, which must not be nil. It keeps each once,
// and removes the annotation if there are none. If there are too many, it keeps the first, and at
// least one of each repository. So adding a reference again for which there was no room changes
// nothing.
func SetKnown(annotations map[string]string, references []reference.Reference) {
	var distinct []reference.Reference
	seen, of := map[reference.Reference]bool{}, map[reference.Reference]int{}
	for _, ref := range references {
		if !seen[ref] {
			seen[ref] = true
			of[ref.Bare()]++
			distinct = append(distinct, ref)
		}
	}
	if len(distinct) == 0 {
		delete(annotations, References)
		return
	}
	if len(distinct) > MaxReferences {
		annotations[MoreReferences] = "true"
	}
	for i := len(distinct) - 1; i >= 0 && len(distinct) > MaxReferences; i-- {
		if repository := distinct[i].Bare(); of[repository] > 1 {
			of[repository]--
			distinct = slices.Delete(distinct, i, i+1)
		}
	}
	texts := make([]string, min(len(distinct), MaxReferences))
	for i := range texts {
		texts[i] = distinct[i].String()
	}
	b, _ := json.Marshal(texts) // strings always marshal
	annotations[References] = string(b)
}

// Leave removes references from those that an Image is known by, and reports whether it had one.
// annotations may be nil.
func Leave(annotations map[string]string, references ...reference.Reference) (changed bool) {
	known := Known(annotations)
	left := slices.DeleteFunc(slices.Clone(known), func(ref reference.Reference) bool { return slices.Contains(references, ref) })
	if len(left) == len(known) {
		return false
	}
	SetKnown(annotations, left)
	return true
}

// IsOld reports whether references are stored in another form than the canonical one: in an Image's
// annotations, or as its dockerImageReference. Importers once wrote index.docker.io for Docker Hub,
// and null when the last tag had gone.
func IsOld(annotations map[string]string, dockerImageReference string) bool {
	var known []string
	if json.Unmarshal([]byte(annotations[References]), &known) != nil {
		known = nil
	}
	var gone map[string]string
	if json.Unmarshal([]byte(annotations[Gone]), &gone) != nil {
		gone = nil
	}
	if text, ok := annotations[References]; ok && (text == "null" || text == "[]") {
		return true
	}
	isOld := func(s string) bool { return Renewed(s) != s }
	return isOld(dockerImageReference) || slices.ContainsFunc(known, isOld) || slices.ContainsFunc(slices.Collect(maps.Keys(gone)), isOld)
}

// Renewed returns the canonical form of a stored reference whose host has another form. A reference
// without a host stays as it is: a client wrote it so.
func Renewed(s string) string {
	host, _, ok := strings.Cut(s, "/")
	if canonical, err := reference.ParseHost(host); !ok || err != nil || canonical == host {
		return s
	}
	ref, err := reference.Parse(s)
	if err != nil {
		return s
	}
	return ref.String()
}

// Missing returns the references in an Image's annotations that the registry no
// longer has, with the time at which this was found.
func Missing(annotations map[string]string) map[reference.Reference]string {
	missing, texts := map[reference.Reference]string{}, map[string]string{}
	if json.Unmarshal([]byte(annotations[Gone]), &texts) != nil {
		return missing
	}
	for s, at := range texts {
		if ref, err := reference.Parse(s); err == nil {
			missing[ref.Pulled()] = max(at, missing[ref.Pulled()])
		}
	}
	return missing
}

// SetMissing records references that the registry no longer has in an Image's
// annotations, which must not be nil, and removes the annotation if there are none.
func SetMissing(annotations map[string]string, missing map[reference.Reference]string) {
	if len(missing) == 0 {
		delete(annotations, Gone)
		return
	}
	texts := make(map[string]string, len(missing))
	for ref, at := range missing {
		texts[ref.String()] = at
	}
	latestFirst := slices.SortedFunc(maps.Keys(texts), func(a, b string) int {
		return cmp.Or(cmp.Compare(texts[b], texts[a]), cmp.Compare(b, a))
	})
	for _, oldest := range latestFirst[min(MaxReferences, len(latestFirst)):] {
		delete(texts, oldest)
	}
	b, _ := json.Marshal(texts) // strings always marshal
	annotations[Gone] = string(b)
}

// GoneFrom returns the repositories whose registry no longer has the image of a digest there,
// sorted: it cannot be pulled by its digest.
func GoneFrom(annotations map[string]string, digest string) (all []reference.Reference) {
	if _, ok := annotations[Gone]; !ok {
		return nil
	}
	for ref := range Missing(annotations) {
		if ref.Digest == digest && ref.Tag == "" {
			all = append(all, ref.Bare())
		}
	}
	slices.SortFunc(all, compare)
	return all
}

package importer

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

// record stores the result of a search of one repository in image, as that repository's. err is why
// the search ended early, if it did.
func record(image *imagev1.Image, repository reference.Reference, found []imagev1.ImageSignature, annotations map[string]string, err error) {
	if image.Annotations == nil {
		image.Annotations = map[string]string{}
	}
	r := annotation.Repository{Unread: annotations[annotation.Unread], Unusable: annotations[annotation.Unusable], Cut: annotations[annotation.Cut] != ""}
	if err != nil {
		// Earlier results stay: all that is known is that not everything was read.
		r.Unread = pull.Clean(err.Error())
		setFound(image, repository, r)
		return
	}
	image.Signatures = slices.Clone(found)
	// In another order than the registry's: when there are too many for one request, small ones are
	// first.
	slices.SortFunc(image.Signatures, func(a, b imagev1.ImageSignature) int {
		return cmp.Or(cmp.Compare(len(a.Content), len(b.Content)), cmp.Compare(a.Name, b.Name))
	})
	for _, s := range image.Signatures {
		r.Signatures = append(r.Signatures, uniquePart(s.Name))
	}
	if text := annotations[annotation.Attestations]; text != "" {
		r.Attestations = json.RawMessage(text)
	}
	// the finder's own, an array of strings
	_ = json.Unmarshal([]byte(annotations[annotation.Warnings]), &r.Warnings)
	_ = json.Unmarshal([]byte(annotations[annotation.Manifests]), &r.Manifests)
	setFound(image, repository, r)
	for key, value := range annotations {
		switch key {
		case annotation.Attestations, annotation.Documents, annotation.Warnings, annotation.Manifests, annotation.Unread, annotation.Unusable, annotation.Cut:
			continue
		}
		if _, own := image.Annotations[key]; !own {
			image.Annotations[key] = value
		}
	}
}

func setFound(image *imagev1.Image, repository reference.Reference, r annotation.Repository) {
	annotation.SetFound(image.Annotations, map[string]annotation.Repository{repository.Bare().String(): r})
}

// uniquePart is the part of a signature's name that tells it from others of its image.
func uniquePart(name string) string {
	_, part, _ := strings.Cut(name, "@")
	return part
}

// mergeFound adds to merged, a copy of the stored Image, the signatures that the search in fresh
// has found in repository. It removes those that an earlier search of the repository found and this
// one did not, unless another repository has them, a client wrote them, or this search could not
// read everything.
//
// It returns the signatures that it added: as many as there is room for in a request. more says
// that there are others, for the next request. The server judges what it is offered, holds what
// counts and leaves out the rest. offered are the signatures of earlier requests.
func mergeFound(merged, fresh *imagev1.Image, repository string, offered []string) (added []string, more bool) {
	all := annotation.Found(merged.Annotations)
	_, recorded := merged.Annotations[annotation.Repositories]
	now, before := annotation.Found(fresh.Annotations)[repository], all[repository]
	after := annotation.Repository{Attestations: now.Attestations, Warnings: now.Warnings, Manifests: now.Manifests, Unread: now.Unread, Unusable: now.Unusable, Cut: now.Cut}
	if now.Unread != "" || now.Cut {
		after.Signatures = slices.Clone(before.Signatures)
		after.Manifests = slices.Compact(slices.Sorted(slices.Values(slices.Concat(before.Manifests, now.Manifests))))
		if len(after.Attestations) == 0 {
			after.Attestations = before.Attestations
		}
	}
	stamp, clients, room := annotation.JudgedBy(merged.Annotations[annotation.Policy], merged.Annotations[annotation.NamespacePolicy]), all[annotation.Clients], -1
	var unheld []imagev1.ImageSignature // for which no room is left
	for _, s := range fresh.Signatures {
		part := uniquePart(s.Name)
		i := slices.IndexFunc(merged.Signatures, func(have imagev1.ImageSignature) bool { return have.Name == s.Name })
		switch {
		case i >= 0:
			// Before there were records, signatures had no owner; a client's has a UID if it was
			// posted.
			if isClients := recorded || merged.Signatures[i].UID != ""; isClients && !isFound(all, part) {
				clients.Signatures = append(clients.Signatures, part)
			}
			if !slices.Contains(after.Signatures, part) {
				after.Signatures = append(after.Signatures, part)
			}
			continue
		case slices.Contains(offered, part), before.LeftOutBy == stamp && slices.Contains(*before.LeftOutOf(isAttestation(s)), part):
			list := after.LeftOutOf(isAttestation(s))
			*list, after.LeftOutBy = append(*list, part), stamp
			continue
		}
		if room < 0 {
			room = max(0, roomFor(merged))
		}
		if encodedSize(s) > room {
			unheld = append(unheld, s)
			continue
		}
		room -= encodedSize(s)
		merged.Signatures = append(merged.Signatures, s)
		after.Signatures, added = append(after.Signatures, part), append(added, part)
	}
	if len(added) == 0 && len(unheld) > 0 { // later requests have no room, either
		for _, s := range unheld {
			list := after.LeftOutOf(isAttestation(s))
			*list, after.LeftOutBy = append(*list, uniquePart(s.Name)), stamp
		}
		unheld = nil
	}
	all[annotation.Clients], all[repository] = clients, after
	merged.Signatures = slices.DeleteFunc(merged.Signatures, func(s imagev1.ImageSignature) bool {
		part := uniquePart(s.Name)
		return slices.Contains(before.Signatures, part) && !isFound(all, part)
	})
	if len(merged.Signatures) == 0 {
		merged.Signatures = nil
	}
	annotation.SetFound(merged.Annotations, all)
	return added, len(unheld) > 0
}

func isAttestation(s imagev1.ImageSignature) bool { return s.Type == verdicts.TypeAttestation }

func isFound(all map[string]annotation.Repository, part string) bool {
	for _, r := range all {
		if slices.Contains(r.Signatures, part) {
			return true
		}
	}
	return false
}

// maxOffered bounds an Image that is offered to the server, in bytes of JSON. The server takes
// requests of 3 MiB. Content is at most 1 MiB, and held signatures that are not trusted are at most
// 256 KiB in base64, so any single signature can be offered.
const maxOffered = 11 << 18

// encodedSize is about how many bytes a signature takes in an Image: base64 and what surrounds it.
func encodedSize(s imagev1.ImageSignature) int { return len(s.Content)*4/3 + 512 }

// roomFor returns how many bytes of signatures can be added to an Image.
func roomFor(image *imagev1.Image) int {
	b, err := json.Marshal(image)
	if err != nil {
		return 0
	}
	return maxOffered - len(b)
}

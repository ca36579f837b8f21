package record

import (
	"encoding/json"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

// UniquePart returns the part of a signature's name that is unique within its image.
func UniquePart(name string) string {
	_, part, _ := strings.Cut(name, "@")
	return part
}

// mergeFound adds to merged, a copy of the stored Image, the signatures that the search in fresh
// has found in repository. It removes those that an earlier search of the repository found and this
// one did not, unless another repository has them, a client wrote them, or this search could not
// read everything.
//
// It returns the signatures that it added: as many as fit into a request. more is true if others
// are left for the next request. The server judges the signatures, keeps those that count and
// leaves out the rest. offered are the signatures of earlier requests.
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
	var unheld []imagev1.ImageSignature // those for which no room is left
	for _, s := range fresh.Signatures {
		part := UniquePart(s.Name)
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
			*list, after.LeftOutBy = append(*list, UniquePart(s.Name)), stamp
		}
		unheld = nil
	}
	all[annotation.Clients], all[repository] = clients, after
	merged.Signatures = slices.DeleteFunc(merged.Signatures, func(s imagev1.ImageSignature) bool {
		part := UniquePart(s.Name)
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
// requests of 3 MiB. Content is at most 1.25 MiB, and held signatures that are not trusted are at
// most 256 KiB in base64, so any single signature can be offered.
const maxOffered = 23 << 17

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

package annotation

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Annotations with results for each repository of an image. The key of a repository is its
// canonical reference: host and path.
const (
	// Repositories has the result of the last search of each repository: JSON, an object that maps a
	// repository to a Repository. Importers write it. Each repository has its own result, which the
	// results of others do not change.
	Repositories = "tidewaiter.dev/repositories"
	// Verdicts has the verdict on the image in each repository that a policy covers: JSON, an object
	// that maps a repository to a Verdict. The server writes it, whatever a client sends.
	Verdicts = "tidewaiter.dev/verdicts"
	// NamespaceVerdicts has the verdicts on the image for the pods of namespaces with their own
	// policies, for repositories that no policy of the cluster covers: JSON, an object that maps a key
	// from InNamespace to a Verdict. The server writes it, whatever a client sends.
	NamespaceVerdicts = "tidewaiter.dev/namespace-verdicts"
	// TagVerdicts has the verdicts for tags that differ from the verdict for the digest: JSON, an
	// object that maps a key from InNamespace, for the repository with the tag, to a Verdict. Tags
	// that are scopes of policies are in Verdicts instead. The server writes it, whatever a client
	// sends.
	TagVerdicts = "tidewaiter.dev/tag-verdicts"
	// Policy lists the policies with which the verdicts were computed, as "<name>@<hash>", separated
	// by commas. If it is present, the server set the conditions of signatures, and not an
	// administrator. If a client changes it, the server judges the image again.
	Policy = "tidewaiter.dev/signature-policy"
	// NamespacePolicy is the same for NamespaceVerdicts.
	NamespacePolicy = "tidewaiter.dev/namespace-policy"
	// Recheck is the time, in RFC 3339, at which a verdict may change without another cause.
	Recheck = "tidewaiter.dev/signature-recheck"
)

// Parts of Repositories that an importer keeps of a search for signatures in one repository.
const (
	// Attestations is a JSON array of the other artifacts that are attached to the image.
	Attestations = "tidewaiter.dev/attestations"
	// Warnings lists what the search left out: JSON, an array of strings.
	Warnings = "tidewaiter.dev/signature-warnings"
	// Documents are the SBOMs and VEX documents among what is attached: JSON, an array of
	// [Document]. An importer reads them, and does not keep this.
	Documents = "tidewaiter.dev/documents"
	// Manifests are the manifests that hold signatures: JSON, an array of digests.
	Manifests = "tidewaiter.dev/signature-manifests"
	// Unread is the reason why some sources of signatures could not be read.
	Unread = "tidewaiter.dev/signatures-unread"
	// Unusable describes a possible signature that cannot be used: it is too large, damaged or gone,
	// or there are too many.
	Unusable = "tidewaiter.dev/signatures-unusable"
	// Cut is "true" if the search reached a bound and left some artifacts out.
	Cut = "tidewaiter.dev/signatures-cut"
)

// Document is an SBOM or a VEX document that a search found.
type Document struct {
	// Type is the predicate type of the statement that has the document, or its media type.
	Type string `json:"type"`
	// Manifest is the digest of the manifest that contains the document, Blob the document's own
	// digest, and Size its size in bytes, if known.
	Manifest string `json:"manifest"`
	Blob     string `json:"blob"`
	Size     int64  `json:"size,omitempty"`
	// Signed is true if the document is in an envelope with a signature. Signature is the second half
	// of that signature's name, if the document can be judged.
	Signed    bool   `json:"signed,omitempty"`
	Signature string `json:"signature,omitempty"`
	// Repository is where the document is, if that is not the image's repository.
	Repository string `json:"repository,omitempty"`
}

// Clients is the key of signatures that a client has written and that are in a repository as well:
// they stay when they leave the repository.
const Clients = ""

// NotJudged is the key of the verdict on all repositories and tags whose verdicts have no place.
// The verdict is Unknown. In NamespaceVerdicts it is InNamespace(NotJudged, NotJudged).
const NotJudged = "*"

// MaxRepositories bounds the verdicts in Verdicts.
const MaxRepositories = 32

// Bounds of Repositories.
const (
	maxDetails = 3 << 10 // bytes of the attestations of one repository
	maxLeftOut = 64      // signatures, and manifests, that are named as left out
	// bytes of all annotations; Kubernetes allows 256 KiB, including those of users
	maxTotal = 160 << 10
)

// Repository is the result of the last search of one repository.
type Repository struct {
	// Signatures are the second halves of the names of those found signatures that the image holds,
	// sorted.
	Signatures []string `json:"signatures,omitempty"`
	// LeftOut are the found signatures that are too many, or too large, to be stored. LeftOutBy
	// identifies the policies that judged them, see JudgedBy: until these change, the signatures need
	// not be read again.
	LeftOut   []string `json:"leftOut,omitempty"`
	LeftOutBy string   `json:"leftOutBy,omitempty"`
	// AttestationsLeftOut is the same for attestations.
	AttestationsLeftOut []string `json:"attestationsLeftOut,omitempty"`
	// Attestations is a JSON array of the other attached artifacts.
	Attestations json.RawMessage `json:"attestations,omitempty"`
	Warnings     []string        `json:"warnings,omitempty"`
	// Manifests are the digests of the manifests that hold signatures, sorted: a deleted manifest no
	// longer shows which image it was about.
	Manifests []string `json:"manifests,omitempty"`
	// Unread is why the search could not read everything. Earlier findings are kept then.
	Unread string `json:"unread,omitempty"`
	// Unusable is why a possible signature cannot be used. Every user who may push to the repository
	// can cause that.
	Unusable string `json:"unusable,omitempty"`
	// Cut is true if the search reached a bound and left some artifacts out. Then earlier findings
	// stay, too.
	Cut bool `json:"cut,omitempty"`
}

// JudgedBy joins the annotations Policy and NamespacePolicy, which identify the policies that
// judged signatures.
func JudgedBy(policy, namespacePolicy string) string {
	if namespacePolicy == "" {
		return policy
	}
	return policy + "#" + namespacePolicy
}

// LeftOutOf is the list of signatures, or of attestations, that are left out.
func (r *Repository) LeftOutOf(attestations bool) *[]string {
	if attestations {
		return &r.AttestationsLeftOut
	}
	return &r.LeftOut
}

// Holders are the digests of the manifests in the repository that hold signatures and attestations
// of the image, sorted, as far as they are known.
func (r Repository) Holders() []string {
	all := slices.Clone(r.Manifests)
	var attached []struct{ Digest string }
	_ = json.Unmarshal(r.Attestations, &attached) // an unreadable list has no digests
	for _, a := range attached {
		if reference.IsDigest(a.Digest) {
			all = append(all, a.Digest)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (r Repository) isEmpty() bool {
	return len(r.Signatures) == 0 && len(r.LeftOut) == 0 && len(r.AttestationsLeftOut) == 0 && len(r.Attestations) == 0 && len(r.Warnings) == 0 && len(r.Manifests) == 0 && r.Unread == "" && r.Unusable == ""
}

// Found returns the record of each repository. The caller may change the map.
func Found(annotations map[string]string) map[string]Repository {
	text, ok := annotations[Repositories]
	if !ok {
		return map[string]Repository{}
	}
	var texts map[string]Repository
	if json.Unmarshal([]byte(text), &texts) != nil {
		return map[string]Repository{}
	}
	found := make(map[string]Repository, len(texts))
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		r := texts[name]
		if ref, err := reference.ParseRepository(name); err == nil {
			name = ref.String()
		} else if name != Clients {
			continue
		}
		if other, ok := found[name]; ok { // stored under two names that are now the same
			r = r.with(other)
		}
		found[name] = r
	}
	return found
}

// with joins the results of two searches of one repository.
func (r Repository) with(other Repository) Repository {
	union := func(a, b []string) []string {
		all := slices.Concat(a, b)
		slices.Sort(all)
		return slices.Compact(all)
	}
	r.Signatures, r.Manifests, r.Warnings = union(r.Signatures, other.Signatures), union(r.Manifests, other.Manifests), union(r.Warnings, other.Warnings)
	r.LeftOut, r.AttestationsLeftOut = union(r.LeftOut, other.LeftOut), union(r.AttestationsLeftOut, other.AttestationsLeftOut)
	if r.LeftOutBy != other.LeftOutBy {
		r.LeftOutBy = "" // so that they are read again
	}
	if len(r.Attestations) == 0 {
		r.Attestations = other.Attestations
	}
	r.Unread, r.Unusable, r.Cut = max(r.Unread, other.Unread), max(r.Unusable, other.Unusable), r.Cut || other.Cut
	return r
}

// SetFound stores the results of the search in each repository, except empty ones.
func SetFound(annotations map[string]string, found map[string]Repository) {
	texts := make(map[string]Repository, len(found))
	for name, r := range found {
		if r.isEmpty() {
			continue
		}
		slices.Sort(r.Signatures)
		for _, list := range []*[]string{&r.LeftOut, &r.AttestationsLeftOut} {
			slices.Sort(*list)
			*list = (*list)[:min(len(*list), maxLeftOut)]
		}
		slices.Sort(r.Manifests)
		r.Manifests = r.Manifests[:min(len(r.Manifests), maxLeftOut)]
		r.Attestations = shorten(r.Attestations)
		texts[name] = r
	}
	if len(texts) == 0 {
		delete(annotations, Repositories)
		return
	}
	set(annotations, Repositories, texts)
	for total(annotations) > maxTotal && reduceLargest(texts) {
		set(annotations, Repositories, texts)
	}
}

// reduceLargest reduces the largest record to the names of its signatures. It reports whether it
// could.
func reduceLargest(texts map[string]Repository) bool {
	largest, size := "", 0
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		r := texts[name]
		r.Signatures, r.Unread, r.Unusable = nil, "", ""
		if b, _ := json.Marshal(r); len(b) > max(size, 256) {
			largest, size = name, len(b)
		}
	}
	if size == 0 {
		return false
	}
	const why = "the rest is not listed: the repositories together have too many"
	r := texts[largest]
	if len(r.LeftOut)+len(r.AttestationsLeftOut) > 0 { // these may be the ones that a policy demands
		r.Unusable = cmp.Or(r.Unusable, why)
	}
	texts[largest] = Repository{Signatures: r.Signatures, Unread: r.Unread, Unusable: r.Unusable, Warnings: []string{why}}
	return true
}

// shorten keeps the first items of a JSON array, as many as there is room for.
func shorten(array json.RawMessage) json.RawMessage {
	if len(array) <= maxDetails {
		return array
	}
	var items, kept []json.RawMessage
	if json.Unmarshal(array, &items) != nil {
		return nil
	}
	size := 2
	for _, item := range items {
		if size += len(item) + 1; size > maxDetails {
			break
		}
		kept = append(kept, item)
	}
	b, _ := json.Marshal(kept) // JSON always marshals
	return b
}

func total(annotations map[string]string) (n int) {
	for key, value := range annotations {
		n += len(key) + len(value)
	}
	return n
}

func set(annotations map[string]string, key string, value any) {
	b, _ := json.Marshal(value) // strings always marshal
	annotations[key] = string(b)
}

// Verdict sums up the signatures in one repository.
type Verdict struct {
	// Verified is True, False, Unknown, Unsigned, ByIndex, Excepted or NoPolicy.
	Verified string `json:"verified"`
	// Reason and Message say why.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Policy is the name of the policy that covers the repository. If several do, it is all their
	// names, separated by commas.
	Policy string `json:"policy,omitempty"`
	// Unmet are the names of the policies that are not met, if some of several policies are met.
	Unmet []string `json:"unmet,omitempty"`
	// Spared are the names of the policies that the image does not meet, and need not meet because it
	// meets an alternative to each.
	Spared []string `json:"spared,omitempty"`
	// Signers are the signers of trusted signatures, sorted.
	Signers []string `json:"signers,omitempty"`
	// Index is the digest of the index through which the image is verified.
	Index string `json:"index,omitempty"`
	// Until is the end of the exception that lets the image through, in RFC 3339, if Verified is
	// Excepted.
	Until string `json:"until,omitempty"`
	// Vouches are the SBOMs and VEX documents in the repository that a trusted signer signed: it maps
	// the digest of a signed statement to the signer.
	Vouches map[string]string `json:"vouches,omitempty"`
	// Attested is the verdict on the attestations in the repository, with the words of Verified; it is
	// "" if there are none and none is demanded.
	Attested string `json:"attested,omitempty"`
}

// HeldVerdict is a verdict of an Image that applies in all namespaces.
type HeldVerdict struct {
	// Place is the repository in canonical form, or a reference with a tag that is the scope of a
	// policy.
	Place string
	// Covered is true if a policy covers it.
	Covered bool
	Verdict
}

// Judged returns the verdicts in an Image's annotations, by repository.
func Judged(annotations map[string]string) map[string]Verdict { return judged(annotations, Verdicts) }

// JudgedFor returns the stored verdict for a reference: the tag's, if a policy has the tag as its
// scope, otherwise the repository's. ok is false if no policy covers it. If there was no place for
// the verdict, JudgedFor returns the one of [NotJudged].
func JudgedFor(annotations map[string]string, asked reference.Reference) (v Verdict, ok bool) {
	all := Judged(annotations)
	if asked.Tag != "" {
		if v, ok = all[asked.Name()+":"+asked.Tag]; ok {
			return v, ok
		}
	}
	if v, ok = all[asked.Name()]; !ok {
		v, ok = all[NotJudged]
	}
	return v, ok
}

// JudgedInNamespaces returns the verdicts for pods of namespaces in an Image's annotations. Its
// keys are those of InNamespace.
func JudgedInNamespaces(annotations map[string]string) map[string]Verdict {
	return judged(annotations, NamespaceVerdicts)
}

// JudgedTags returns the verdicts for tags that differ from the digest's. The keys are those of
// InNamespace.
func JudgedTags(annotations map[string]string) map[string]Verdict {
	return judged(annotations, TagVerdicts)
}

// JudgedAnywhere returns the verdicts of Judged and of JudgedInNamespaces, which have no keys in
// common.
func JudgedAnywhere(annotations map[string]string) map[string]Verdict {
	all, more := Judged(annotations), JudgedInNamespaces(annotations)
	if len(more) == 0 {
		return all
	}
	if all == nil {
		return more
	}
	maps.Copy(all, more)
	return all
}

// InNamespace returns the key of the verdict on a repository, or on a tag in it, for the pods of a
// namespace; "" stands for all namespaces.
func InNamespace(key, namespace string) string {
	if namespace == "" {
		return key
	}
	return key + "#" + namespace
}

// IsOf reports whether key is the key of a repository, in any namespace.
func IsOf(key, repository string) bool {
	of, _, _ := strings.Cut(key, "#")
	return of == repository
}

func judged(annotations map[string]string, key string) map[string]Verdict {
	text, ok := annotations[key]
	if !ok {
		return nil
	}
	var verdicts map[string]Verdict
	if json.Unmarshal([]byte(text), &verdicts) != nil {
		return nil
	}
	return verdicts
}

// In returns the repositories of an image, as canonical references without tag and digest: first
// the one of its own reference, then the others by name. It leaves out those that the image has
// left, unless it has left all.
func In(annotations map[string]string, own, digest string) []reference.Reference {
	var all []reference.Reference
	if ref, err := reference.Parse(own); err == nil {
		all = append(all, ref.Bare())
	}
	others := map[reference.Reference]bool{}
	for _, ref := range Known(annotations) {
		others[ref.Bare()] = true
	}
	if _, ok := annotations[Repositories]; ok {
		for name := range Found(annotations) {
			if ref, err := reference.ParseRepository(name); err == nil {
				others[ref] = true
			}
		}
	}
	all = append(all, slices.SortedFunc(maps.Keys(others), compare)...)
	if len(all) > 1 {
		all = slices.Concat(all[:1], slices.DeleteFunc(all[1:], func(r reference.Reference) bool { return r == all[0] }))
	}
	if _, ok := annotations[Gone]; !ok {
		return all
	}
	missing := Missing(annotations)
	present := slices.DeleteFunc(slices.Clone(all), func(r reference.Reference) bool {
		_, gone := missing[r.WithDigest(digest)]
		return gone
	})
	if len(present) == 0 {
		return all
	}
	return present
}

// WasIn reports whether an image is, or was, known to be in a repository. own is the image's own
// reference. Importers record a repository only after they have read the image there.
func WasIn(annotations map[string]string, own string, repository reference.Reference) bool {
	if ref, err := reference.Parse(own); err == nil && ref.Bare() == repository {
		return true
	}
	if slices.ContainsFunc(Known(annotations), func(known reference.Reference) bool { return known.Bare() == repository }) {
		return true
	}
	_, found := Found(annotations)[repository.String()]
	return found
}

func compare(a, b reference.Reference) int {
	switch {
	case a.String() < b.String():
		return -1
	case a.String() > b.String():
		return 1
	}
	return 0
}

package signatures

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// verdictScope is the scope of one verdict on an image: a repository that the image is in, or a tag
// there if a policy has that tag as its scope. With a namespace, the verdict is only for the pods
// of that namespace.
type verdictScope struct {
	repository string // canonical; "" if the image's reference is invalid
	tag        string // set if the verdict is for a tag
	namespace  string // set if the verdict is for the pods of a namespace
	ref        reference.Reference
	policies   []*policy.Policy // all must be met; empty if none covers the scope
	err        error            // why no policy could be chosen
	found      annotation.Repository
}

func (p verdictScope) covered() bool { return len(p.policies) > 0 || p.err != nil }

// key is the name under which the scope's verdict is recorded.
func (p verdictScope) key() string {
	key := p.repository
	if p.tag != "" {
		key += ":" + p.tag
	}
	return annotation.InNamespace(key, p.namespace)
}

// policyNames are the names of the policies, separated by commas.
func (p verdictScope) policyNames() string {
	var names []string
	for _, p := range p.policies {
		names = append(names, p.ID())
	}
	return strings.Join(names, ",")
}

// scopesOf returns the scopes of an image, the repository of its own reference first. If there are
// too many, those that a policy covers have priority (see share), and more is how many covered
// scopes are left out. known are the references in the annotations.
func scopesOf(image *imagev1.Image, set *policy.Set, found map[string]annotation.Repository, known []reference.Reference) (scopes []verdictScope, more int) {
	own, unfit := referenceOf(Image{Digest: image.Name, Reference: image.DockerImageReference})
	for i, repository := range annotation.In(image.Annotations, image.DockerImageReference, image.Name) {
		p := verdictScope{repository: repository.String(), ref: repository.WithDigest(image.Name), found: found[repository.String()]}
		if i == 0 && (own.Host == "" || own.Bare() == repository) {
			p.ref, p.err = own, unfit
		}
		p.policies, p.err = cover(p.ref, p.err, set)
		scopes = append(scopes, p)
	}
	if set.ForTags() {
		for _, ref := range known {
			name := ref.Name()
			isHere := slices.ContainsFunc(scopes, func(p verdictScope) bool { return p.repository == name })
			if ref.Tag != "" && isHere && set.HasScope(ref) {
				scopes = append(scopes, verdictScope{repository: name, tag: ref.Tag, ref: ref, policies: set.For(ref), found: found[name]})
			}
		}
	}
	if len(scopes) == 0 { // the image's reference is not a reference
		p := verdictScope{ref: own}
		p.policies, p.err = cover(own, unfit, set)
		scopes = append(scopes, p)
	}
	if len(scopes) <= annotation.MaxRepositories {
		return scopes, 0
	}
	rest := share(scopes[1:], func(p verdictScope) string { return project(p.repository) })
	slices.SortStableFunc(rest, func(a, b verdictScope) int { return -cmp.Compare(btoi(a.covered()), btoi(b.covered())) })
	scopes = slices.Concat(scopes[:1], rest)
	for _, p := range scopes[annotation.MaxRepositories:] {
		more += btoi(p.covered())
	}
	return scopes[:annotation.MaxRepositories], more
}

// share orders scopes so that the first scope of each owner comes before any owner's second. who
// returns the owner of a scope.
func share(scopes []verdictScope, who func(verdictScope) string) []verdictScope {
	turns, of := make([]int, len(scopes)), map[string]int{}
	order := make([]int, len(scopes))
	for i, p := range scopes {
		order[i], turns[i] = i, of[who(p)]
		of[who(p)]++
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(turns[a], turns[b]) })
	shared := make([]verdictScope, len(scopes))
	for i, at := range order {
		shared[i] = scopes[at]
	}
	return shared
}

// project returns a repository's host and the first element of its path, which often identifies the
// owner.
func project(repository string) string {
	host, path, _ := strings.Cut(repository, "/")
	first, _, _ := strings.Cut(path, "/")
	return host + "/" + first
}

// maxNamespaced bounds the scopes with a namespace in which one image is judged.
const maxNamespaced = 32

// inNamespaces returns the scopes in which policies of namespaces judge an image. Such a policy
// judges only references that no policy of the cluster covers. If there are too many, namespaces
// share the places, repositories have priority over tags, and more is how many scopes are left out.
func inNamespaces(set *policy.Set, scopes []verdictScope, known []reference.Reference) (namespaced []verdictScope, more int) {
	if !set.ForNamespaces() {
		return nil, 0
	}
	add := func(p verdictScope, in map[string][]*policy.Policy) {
		for _, namespace := range slices.Sorted(maps.Keys(in)) {
			p.namespace, p.policies = namespace, in[namespace]
			if p.tag == "" || slices.ContainsFunc(p.policies, func(by *policy.Policy) bool { return by.HasScope(p.ref) }) {
				namespaced = append(namespaced, p)
			}
		}
	}
	for _, p := range scopes {
		if p.tag != "" || p.covered() {
			continue
		}
		add(p, set.InNamespaces(p.ref))
		for _, ref := range known {
			if ref.Tag != "" && ref.Name() == p.repository {
				tagged := p
				tagged.tag, tagged.ref = ref.Tag, ref
				add(tagged, set.InNamespaces(ref))
			}
		}
	}
	slices.SortFunc(namespaced, func(a, b verdictScope) int {
		return cmp.Or(cmp.Compare(btoi(a.tag != ""), btoi(b.tag != "")), cmp.Compare(a.key(), b.key()))
	})
	namespaced = share(namespaced, func(p verdictScope) string { return p.namespace })
	more = max(0, len(namespaced)-maxNamespaced)
	return namespaced[:len(namespaced)-more], more
}

// judging has the scopes in which an image is judged.
type judging struct {
	scopes, namespaced         []verdictScope
	moreScopes, moreNamespaced int // scopes that are left out
}

func judgingOf(image *imagev1.Image, set *policy.Set, found map[string]annotation.Repository) (j judging) {
	var known []reference.Reference
	if set.ForTags() || set.ForNamespaces() {
		known = annotation.Known(image.Annotations)
	}
	j.scopes, j.moreScopes = scopesOf(image, set, found, known)
	j.namespaced, j.moreNamespaced = inNamespaces(set, j.scopes, known)
	return j
}

// stamp and namespaceStamp are the values of annotation.Policy and annotation.NamespacePolicy.
func (j judging) stamp() string          { return stampOf(j.scopes, j.moreScopes) }
func (j judging) namespaceStamp() string { return stampOf(j.namespaced, j.moreNamespaced) }

// all returns the scopes without a namespace, and those with one.
func (j judging) all() []verdictScope { return slices.Concat(j.scopes, j.namespaced) }

// maxTags bounds the tags for which one image is judged beside its digest.
const maxTags = 64

// tagsOf returns up to maxTags references with a tag under which an image is known. The server
// notices when the verdict for one of these turns.
func tagsOf(image *imagev1.Image) (all []reference.Reference) {
	for _, ref := range annotation.Known(image.Annotations) {
		if ref.Tag != "" && len(all) < maxTags {
			all = append(all, ref)
		}
	}
	return all
}

// tags returns the scopes for tags that the policies of the tag's repository may judge otherwise
// than the digest there. Tags that are scopes themselves are not among them.
func (j judging) tags(image *imagev1.Image, set *policy.Set) (all []verdictScope) {
	looks := func(by *policy.Policy) bool { return by.LooksAtTags() }
	in := slices.DeleteFunc(j.all(), func(p verdictScope) bool {
		return p.tag == "" && (p.err != nil || !slices.ContainsFunc(p.policies, looks))
	})
	if len(in) == 0 {
		return nil
	}
	for _, ref := range tagsOf(image) {
		for _, p := range in {
			if p.tag != "" || p.repository != ref.Name() || slices.ContainsFunc(in, func(other verdictScope) bool {
				return other.repository == p.repository && other.tag == ref.Tag && other.namespace == p.namespace
			}) || !slices.Equal(PoliciesFor(ref, p.namespace, set), p.policies) {
				continue
			}
			p.ref = ref
			all = append(all, p)
		}
	}
	return all
}

// notJudged is the verdict for the scopes that are left out.
func notJudged(more int, of string) annotation.Verdict {
	return annotation.Verdict{
		Verified: verdicts.VerifiedUnknown, Reason: string(ReasonNotJudged),
		Message: fmt.Sprintf("%d more %s that policies cover are judged only on request", more, of),
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// sigID is the second half of a signature's name, which is unique within its image.
func sigID(name string) string {
	_, h, _ := strings.Cut(name, "@")
	return h
}

// holders has the repositories in which each signature was found, by sigID. A signature without a
// repository was written by a client, and counts in all repositories.
type holders map[string][]string

func holdersOf(found map[string]annotation.Repository) holders {
	h := holders{}
	for _, repository := range slices.Sorted(maps.Keys(found)) {
		for _, name := range found[repository].Signatures {
			h[name] = append(h[name], repository)
		}
	}
	return h
}

// count reports whether a signature counts in a repository.
func (h holders) count(s *imagev1.ImageSignature, repository string) bool {
	in, ok := h[sigID(s.Name)]
	return !ok || slices.Contains(in, repository) || slices.Contains(in, annotation.Clients)
}

// counter counts the signatures that are judged in each scope, and separately the attestations.
type counter struct {
	holders
	seen map[string]int
}

// count reports whether a signature counts in a scope, and whether it exceeds the bound there.
func (c counter) count(p verdictScope, s *imagev1.ImageSignature) (counts, tooMany bool) {
	if !c.holders.count(s, p.repository) {
		return false, false
	}
	key := p.key()
	if isAttestation(s) {
		key += "@"
	}
	c.seen[key]++
	return true, c.seen[key] > maxJudged
}

// dropOfFormer drops the signatures of repositories that the image has left.
func dropOfFormer(image *imagev1.Image, found map[string]annotation.Repository) {
	in := annotation.In(image.Annotations, image.DockerImageReference, image.Name)
	for repository := range found {
		if repository != annotation.Clients && !slices.ContainsFunc(in, func(r reference.Reference) bool { return r.String() == repository }) {
			drop(image, found, repository, found[repository].Signatures)
			delete(found, repository)
		}
	}
}

// drop removes signatures from a repository's record. It also removes them from the image, unless
// another repository has them, too.
func drop(image *imagev1.Image, found map[string]annotation.Repository, repository string, names []string) {
	r := found[repository]
	r.Signatures = slices.DeleteFunc(slices.Clone(r.Signatures), func(name string) bool { return slices.Contains(names, name) })
	found[repository] = r
	left := holdersOf(found)
	image.Signatures = slices.DeleteFunc(slices.Clone(image.Signatures), func(s imagev1.ImageSignature) bool {
		return slices.Contains(names, sigID(s.Name)) && len(left[sigID(s.Name)]) == 0
	})
}

// Bounds of the signatures from repositories in one image. Signatures that clients write do not
// count.
const (
	maxHeld      = 128     // signatures and attestations
	maxHeldBytes = 5 << 18 // bytes of their content: 1.25 MiB
	// bytes of untrusted signatures; the rest is reserved for trusted ones
	maxUntrusted = 256 << 10
	maxRecorded  = 1024 // names of signatures in the records of all repositories
)

// Ranks of a signature in a repository, the lowest first.
const (
	untrusted = iota
	trusted
	meetingThere // meets a policy of a namespace, or one of the policy's demands of attestations
	meeting      // the same for a policy of the cluster
)

// counted is a signature in a repository.
type counted struct{ name, repository string }

// ranks returns the ranks of trusted signatures. For each policy, and each of its demands, the
// smallest signature that meets it ranks above other trusted signatures.
func ranks(scopes []verdictScope, judged map[string][]judgement) map[counted]int {
	ranks := map[counted]int{}
	for _, p := range scopes {
		first := map[[2]string]judgement{} // by policy and demand
		for _, j := range judged[p.key()] {
			if !j.Trusted() {
				continue
			}
			c := counted{j.name, p.repository}
			ranks[c] = max(ranks[c], trusted)
			meets := j.Meets
			if !j.attestation {
				meets = []string{""}
			}
			for _, demand := range meets {
				key := [2]string{j.by, demand}
				if f, ok := first[key]; !ok || cmp.Or(cmp.Compare(j.size, f.size), cmp.Compare(j.name, f.name)) < 0 {
					first[key] = j
				}
			}
		}
		rank := meeting
		if p.namespace != "" {
			rank = meetingThere // displaces no signature that meets a policy of the cluster
		}
		for _, j := range first {
			c := counted{j.name, p.repository}
			ranks[c] = max(ranks[c], rank)
		}
	}
	return ranks
}

// bound drops signatures if one repository, or all together, have too many. A signature that meets
// a policy does not count against its repository's bound. The priority is: signatures that meet a
// policy, then trusted ones; signatures before attestations; each project's first before any
// project's second, and likewise for repositories; small ones before large ones. So the order in
// which a registry lists signatures does not decide which stay.
func bound(image *imagev1.Image, found map[string]annotation.Repository, stamp string, ranks map[counted]int) {
	type candidate struct {
		counted
		rank, size, position, turn int
		attestation                bool
	}
	sizes, attestations := make(map[string]int, len(image.Signatures)), map[string]bool{}
	for i := range image.Signatures {
		name := sigID(image.Signatures[i].Name)
		sizes[name] = len(image.Signatures[i].Content)
		if isAttestation(&image.Signatures[i]) {
			attestations[name] = true
		}
	}
	var all []candidate
	for repository, r := range found {
		if repository == annotation.Clients {
			continue
		}
		var own []candidate
		for _, name := range r.Signatures {
			if size, ok := sizes[name]; ok {
				c := counted{name, repository}
				own = append(own, candidate{counted: c, rank: ranks[c], size: size, attestation: attestations[name]})
			}
		}
		slices.SortFunc(own, func(a, b candidate) int {
			return cmp.Or(-cmp.Compare(a.rank, b.rank), cmp.Compare(a.size, b.size), cmp.Compare(a.name, b.name))
		})
		position := map[bool]int{} // signatures and attestations are counted separately
		for i := range own {
			own[i].position = position[own[i].attestation]
			position[own[i].attestation]++
		}
		all = append(all, own...)
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(-cmp.Compare(a.rank, b.rank), cmp.Compare(btoi(a.attestation), btoi(b.attestation)), cmp.Compare(a.position, b.position),
			cmp.Compare(a.size, b.size), cmp.Compare(a.name, b.name), cmp.Compare(a.repository, b.repository))
	})
	turns := map[string]map[string]int{} // by project and the name of a signature
	for i := range all {
		c := &all[i]
		of := project(c.repository)
		if turns[of] == nil {
			turns[of] = map[string]int{}
		}
		if _, ok := turns[of][c.name]; !ok {
			turns[of][c.name] = len(turns[of])
		}
		c.turn = turns[of][c.name]
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(-cmp.Compare(a.rank, b.rank), cmp.Compare(btoi(a.attestation), btoi(b.attestation)), cmp.Compare(a.turn, b.turn))
	})
	held, bytes, waste, full := map[string]bool{}, 0, 0, false
	for _, c := range all {
		if !held[c.name] {
			full = full || len(held) == maxHeld || bytes+c.size > maxHeldBytes || c.rank == untrusted && waste+c.size > maxUntrusted
		}
		if (c.position < MaxStored || c.rank >= meetingThere) && (held[c.name] || !full) {
			if !held[c.name] {
				held[c.name], bytes = true, bytes+c.size
				if c.rank == untrusted {
					waste += c.size
				}
			}
			continue
		}
		r := found[c.repository]
		if list := r.LeftOutOf(c.attestation); !slices.Contains(*list, c.name) {
			*list = append(slices.Clone(*list), c.name)
		}
		r.LeftOutBy = stamp
		found[c.repository] = r
		drop(image, found, c.repository, []string{c.name})
	}
	boundRecords(image, found)
}

// boundRecords keeps the records of all repositories small enough for an annotation. It empties the
// records with the most signatures first, and notes that in them.
func boundRecords(image *imagev1.Image, found map[string]annotation.Repository) {
	total := 0
	for _, r := range found {
		total += len(r.Signatures)
	}
	for total > maxRecorded {
		largest := ""
		for _, repository := range slices.Sorted(maps.Keys(found)) {
			if repository != annotation.Clients && (largest == "" || len(found[repository].Signatures) > len(found[largest].Signatures)) {
				largest = repository
			}
		}
		if largest == "" || len(found[largest].Signatures) == 0 {
			return
		}
		total -= len(found[largest].Signatures)
		drop(image, found, largest, found[largest].Signatures)
		r := found[largest]
		r.Unusable = "there are too many signatures in all repositories of the image"
		found[largest] = r
	}
}

// judgement is a policy's verdict on a signature in a repository.
type judgement struct {
	name        string
	size        int
	attestation bool
	by          string // the policy's name
	Verdict
}

// retained returns the judgements on signatures that the image still holds. A signature that was
// judged and then left out must not affect a verdict, because the next judgement will not see it.
func retained(image *imagev1.Image, judged []judgement) []judgement {
	return slices.DeleteFunc(slices.Clone(judged), func(j judgement) bool {
		return !slices.ContainsFunc(image.Signatures, func(s imagev1.ImageSignature) bool { return sigID(s.Name) == j.name })
	})
}

// leftOut describes the signatures of a repository that the image does not hold.
type leftOut struct {
	signatures, attestations int
	byOthers                 bool // they were judged by other policies than the present ones
}

// leftOutOf returns the leftOut of a repository. judgedBy identifies the present policies.
func leftOutOf(r annotation.Repository, judgedBy string) leftOut {
	return leftOut{signatures: len(r.LeftOut), attestations: len(r.AttestationsLeftOut), byOthers: r.LeftOutBy != judgedBy}
}

// count returns how many of the left-out items could meet a policy: signatures or, if the policy
// demands these, attestations.
func (l leftOut) count(attestations bool) int {
	if attestations {
		return l.attestations
	}
	return l.signatures
}

// summarize combines the verdicts on the signatures in a repository into one. If requirements are
// not met and a policy of each has an exception for the image's digest, the verdict is Excepted; if
// only some have, it names the policies of the others. again is when the first relevant exception
// ends; zero if there is none.
func (p verdictScope) summarize(judged []judgement, leftOut leftOut, indexes Indexes, image *imagev1.Image, now time.Time) (v annotation.Verdict, again time.Time) {
	v = p.bySignatures(judged, leftOut, indexes)
	v.Vouches = vouched(judged)
	if verdicts.IsVerified(v.Verified) {
		return v, again
	}
	var unmet, by []string
	for _, alternatives := range policy.Requirements(p.policies) {
		if !isUnmet(v, alternatives[0]) {
			continue
		}
		var of *policy.Policy // with the exception that ends last
		var e policy.Exception
		var until time.Time
		for _, one := range alternatives {
			if its, ends, ok := one.Excepted(p.ref, image.Name, now); ok && ends.After(until) {
				of, e, until = one, its, ends
			}
		}
		if of == nil {
			for _, one := range alternatives {
				unmet = append(unmet, one.ID())
			}
			continue
		}
		by = append(by, fmt.Sprintf("policy %q excepts it until %s, by %s: %s", of.ID(), until.Format(time.RFC3339), e.By, e.Reason))
		if again.IsZero() || until.Before(again) {
			again = until
		}
	}
	if said := p.misnamed(image, unmet, now); said != "" {
		v.Message = printable.Line(cmp.Or(v.Message, "it has no signature in "+p.repository)+"; "+said, maxMessage)
	}
	switch {
	case len(by) == 0:
	case len(unmet) > 0:
		v.Unmet = unmet
	default:
		v.Message = printable.Line(fmt.Sprintf("%s; without that it is %s", strings.Join(by, "; "), v.Verified), maxMessage)
		v.Verified, v.Reason, v.Until = verdicts.Excepted, string(ReasonExcepted), again.Format(time.RFC3339)
	}
	return v, again
}

// misnamed returns a hint if an exception of an unmet policy names the digest of the image's config
// instead of the image's own, as `docker images` shows it; "" otherwise.
func (p verdictScope) misnamed(image *imagev1.Image, unmet []string, now time.Time) string {
	for _, of := range p.policies {
		if !of.ExceptsDigests() || !slices.Contains(unmet, of.ID()) {
			continue
		}
		m, err := manifest.Of(image)
		if err != nil || m.Kind != manifest.KindImage || m.Config == nil {
			return "" // an index has no config, and other messages report an unreadable one
		}
		if _, _, ok := of.Excepted(p.ref.Bare().WithDigest(m.Config.Digest), m.Config.Digest, now); ok {
			return fmt.Sprintf("an exception of policy %q names %s, the digest of its config: name %s instead", of.ID(), m.Config.Digest, image.Name)
		}
	}
	return ""
}

// bySignatures combines the verdicts on the signatures in a repository into one. One trusted
// signature is enough to meet a policy, and one of its alternatives to meet a group. Of several
// requirements, the one with the worst result decides. If they are not all met, an index may vouch
// for the image, see verifiedIndex. If the repository could not be searched completely, the verdict
// is Unknown, not Unsigned. leftOut are the signatures that are left out.
func (p verdictScope) bySignatures(judged []judgement, leftOut leftOut, indexes Indexes) annotation.Verdict {
	var all []required
	for _, alternatives := range policy.Requirements(p.policies) {
		all = append(all, p.require(alternatives, judged, leftOut))
	}
	if len(p.policies) == 0 { // no policy can be chosen
		all = append(all, p.require(policy.Requirement{nil}, judged, leftOut))
	}
	v := p.combine(all)
	if v.Verified != verdicts.VerifiedTrue {
		v = p.byIndex(v, all, indexes)
	}
	v.Attested = ""
	for _, r := range all {
		v.Attested = verdicts.Worse(v.Attested, r.attested())
	}
	if v.Attested == "" {
		v.Attested = p.attested(judged)
	}
	if (p.found.Unread != "" || p.found.Unusable != "") && v.Attested != verdicts.VerifiedTrue {
		v.Attested = verdicts.VerifiedUnknown
	}
	if verdicts.IsVerified(v.Verified) || v.Reason == string(ReasonIndexUnreadable) {
		return v
	}
	for _, incomplete := range []struct {
		why    string
		reason evidence.Reason
	}{{p.found.Unusable, ReasonSignaturesUnusable}, {p.found.Unread, ReasonSearchIncomplete}} {
		if incomplete.why != "" {
			v.Verified, v.Reason = verdicts.VerifiedUnknown, string(incomplete.reason)
			v.Message = printable.Line(fmt.Sprintf("in %s: not all signatures could be read: %s", p.repository, incomplete.why), maxSummary)
		}
	}
	return v
}

// combine combines the results of requirements. It does not set v.Attested.
func (p verdictScope) combine(all []required) (v annotation.Verdict) {
	var unmet, spared, signers []string
	for i, r := range all {
		next := r.best()
		if r.isMet() {
			spared = append(spared, r.ids(func(o outcome) bool { return !o.isMet() })...)
		} else {
			unmet = append(unmet, r.ids(func(outcome) bool { return true })...)
		}
		for _, o := range r {
			signers = append(signers, o.Signers...)
		}
		if verdicts.Worse(v.Verified, next.Verified) != v.Verified || i == 0 {
			v = next
		}
	}
	v.Policy, v.Spared, v.Signers = p.policyNames(), spared, nil
	if v.Verified == verdicts.VerifiedTrue {
		slices.Sort(signers)
		signers = slices.Compact(signers)
		v.Signers = signers[:min(len(signers), maxSigners)]
		return v
	}
	if len(unmet) < len(p.policies) {
		v.Unmet = unmet
	}
	return v
}

// byIndex returns the verdict if an index vouches for the image; if none does, it returns v. It
// marks the policies that are met by the index.
func (p verdictScope) byIndex(v annotation.Verdict, all []required, indexes Indexes) annotation.Verdict {
	index, err := p.verifiedIndex(all, indexes)
	if err != nil {
		v.Verified, v.Reason = verdicts.VerifiedUnknown, string(ReasonIndexUnreadable)
		v.Message = printable.Line(fmt.Sprintf("in %s: whether an index vouches for it could not be read: %v", p.repository, err), maxSummary)
		return v
	}
	if index == nil {
		return v
	}
	by := annotation.JudgedAnywhere(index.Annotations)[p.key()]
	v.Unmet, v.Spared = nil, nil
	for _, r := range all {
		for i := range r {
			r[i].byIndex = p.meetsByIndex(r[i], by)
		}
		v.Spared = append(v.Spared, r.ids(func(o outcome) bool { return !o.isMet() })...)
	}
	v.Verified, v.Index, v.Signers = verdicts.ByIndex, index.Name, by.Signers
	v.Reason = string(ReasonIndexVerified)
	v.Message = fmt.Sprintf("in %s: listed by the index %s, which is verified there", p.repository, index.Name)
	return v
}

// takesIndexes reports whether a signature of an index that lists the image can meet a policy. It
// cannot if the policy demands a signature of each platform, or attestations, whose subject must be
// the image itself. Nor can it if the signature must name the tag, because the index's signature
// names another tag.
func (p verdictScope) takesIndexes(by *policy.Policy) bool {
	return by != nil && p.tag == "" && isForPlatforms(by) && !(p.ref.Tag != "" && by.Identity.LooksAtTags())
}

// meetsByIndex reports whether an index meets the policy of an outcome for the image. v is the
// verdict of the index.
func (p verdictScope) meetsByIndex(o outcome, v annotation.Verdict) bool {
	return p.takesIndexes(o.by) && !slices.Contains(v.Spared, o.by.ID())
}

// verifiedIndex finds an index that vouches for the image. The policies that cover the image must
// have verified the index, because other policies may trust other signers. For each requirement
// that the image does not meet itself, the index must meet a policy that takes indexes.
func (p verdictScope) verifiedIndex(must []required, indexes Indexes) (*imagev1.Image, error) {
	meets := func(takes func(outcome) bool) bool {
		return !slices.ContainsFunc(must, func(r required) bool {
			return !slices.ContainsFunc(r, func(o outcome) bool { return o.isMet() || takes(o) })
		})
	}
	if !meets(func(o outcome) bool { return p.takesIndexes(o.by) }) {
		return nil, nil
	}
	all, err := indexes(p.key())
	if err != nil {
		return nil, err
	}
	for _, index := range all {
		v := annotation.JudgedAnywhere(index.Annotations)[p.key()]
		if v.Policy == p.policyNames() && meets(func(o outcome) bool { return p.meetsByIndex(o, v) }) {
			return index, nil
		}
	}
	return nil, nil
}

// met combines the verdicts of one policy. If several are equal, the reason comes from the most
// informative one, whatever their order: a signature by a signer whom the policy names is more
// informative than one by a stranger. rank is how informative it is.
func met(judged []judgement, by string) (v annotation.Verdict, rank int) {
	v.Verified = verdicts.Unsigned
	for _, j := range judged {
		if j.by != by || j.attestation {
			continue
		}
		state := j.state()
		if decides(state, v.Verified) || state == v.Verified && j.informs() > rank {
			trusted, _ := j.Condition(verdicts.Trusted)
			v.Verified, v.Reason, v.Message = state, string(trusted.Reason), printable.Line(trusted.Message, maxSummary)
			rank = j.informs()
		}
		if state == verdicts.VerifiedTrue && j.IssuedTo != nil {
			v.Signers = append(v.Signers, j.signers()...)
		}
	}
	return v, rank
}

// Bounds of the record of one repository's verdict.
const (
	maxSummary = 300 // bytes of a message
	maxSigners = 4
)

// Covered is a policy that covers an image in a repository or for a tag.
type Covered struct {
	*policy.Policy
	// Repository is where it covers the image, or a tag of it.
	Repository string
	// Unmet is true if, by the stored verdict, the image does not meet the policy there, nor an
	// alternative to it. Spared is true if it meets only an alternative.
	Unmet, Spared bool
}

// Covering returns the policies that cover an image, once for each scope.
func Covering(image *imagev1.Image, set *policy.Set) (all []Covered) {
	held := annotation.JudgedAnywhere(image.Annotations)
	for _, p := range judgingOf(image, set, nil).all() {
		v := held[p.key()]
		for _, of := range p.policies {
			unmet := (v.Verified == verdicts.VerifiedFalse || v.Verified == verdicts.Unsigned) && isUnmet(v, of)
			all = append(all, Covered{of, p.repository, unmet, slices.Contains(v.Spared, of.ID())})
		}
	}
	return all
}

// Vouches reports whether an index is verified under a verdict's key, so that it vouches there for
// the images that it lists.
func Vouches(index *imagev1.Image, key string) bool {
	return index.DockerImageManifest != "" && verdicts.IsVerified(annotation.JudgedAnywhere(index.Annotations)[key].Verified)
}

package signatures

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Condition is a condition without its times.
type Condition struct {
	Type    imagev1.SignatureConditionType
	Status  corev1.ConditionStatus
	Reason  evidence.Reason
	Message string
}

// Verdict is the judgement on one signature of one image.
type Verdict struct {
	// Policy is the name of the policy that was applied; "" if none covers the image or if the format
	// is unknown.
	Policy string
	// Repository is the repository that the verdict is about, "" if no policy was applied.
	Repository string
	// Conditions are Trusted, ForImage and, when they are True, Expired and Revoked, in this order.
	Conditions []Condition
	// NotAfter is when the verdict will change because something expires; zero for never.
	NotAfter time.Time

	// PredicateType is the type that an attestation claims, even if no trusted signer vouches for it;
	// "" for signatures. Statement is the digest of its statement, which identifies what was judged.
	// Meets are the names of the policy's demands that it meets.
	PredicateType, Statement string
	Meets                    []string

	// ImageIdentity and the fields below are fields of an ImageSignature about the signed content and
	// the signer. They are empty unless a root of trust vouches for them. IssuedBy is set only when
	// the signature is trusted, because `oc describe image` prints "Verified" for every signature that
	// has it.
	ImageIdentity string
	SignedClaims  map[string]string
	Created       *metav1.Time
	IssuedBy      *imagev1.SignatureIssuer
	IssuedTo      *imagev1.SignatureSubject
}

// Condition returns the condition of the given type.
func (v *Verdict) Condition(t imagev1.SignatureConditionType) (Condition, bool) {
	i := slices.IndexFunc(v.Conditions, func(c Condition) bool { return c.Type == t })
	if i < 0 {
		return Condition{}, false
	}
	return v.Conditions[i], true
}

// Trusted reports whether the signature is trusted and is for the image.
func (v *Verdict) Trusted() bool {
	t, _ := v.Condition(verdicts.Trusted)
	f, _ := v.Condition(verdicts.ForImage)
	return t.Status == corev1.ConditionTrue && f.Status == corev1.ConditionTrue
}

// state returns the verdict as a word: True, False or Unknown.
func (v *Verdict) state() string {
	t, _ := v.Condition(verdicts.Trusted)
	f, _ := v.Condition(verdicts.ForImage)
	switch {
	case v.Trusted():
		return verdicts.VerifiedTrue
	case t.Status == corev1.ConditionFalse || f.Status == corev1.ConditionFalse:
		return verdicts.VerifiedFalse
	}
	return verdicts.VerifiedUnknown
}

// signers returns the names by which a trusted signature is found.
func (v *Verdict) signers() []string {
	return namesOf(cmp.Or(v.IssuedTo.CommonName, v.IssuedTo.PublicKeyID), v.SignedClaims)
}

// namesOf returns a signer's name and, if the certificate has another one, the repository that was
// built, such as the caller of a reusable workflow.
func namesOf(signer string, claims map[string]string) []string {
	if source := evidence.SourceRepository(claims, signer); source != "" {
		return []string{signer, source}
	}
	return []string{signer}
}

// decides reports whether one verdict takes precedence over another: trusted over not trusted, and
// not trusted over not judged.
func decides(state, before string) bool {
	order := []string{verdicts.Unsigned, verdicts.VerifiedUnknown, verdicts.VerifiedFalse, verdicts.VerifiedTrue}
	return slices.Index(order, state) > slices.Index(order, before)
}

// goodness orders verdicts on one signature, the worst first.
func (v *Verdict) goodness() int {
	return slices.Index([]string{verdicts.VerifiedFalse, verdicts.VerifiedUnknown, verdicts.VerifiedTrue}, v.state())
}

// informs orders the verdicts of several policies on one signature, the least informative first.
func (v *Verdict) informs() int {
	f, _ := v.Condition(verdicts.ForImage)
	switch {
	case v.Trusted():
		return 2
	case f.Status != corev1.ConditionUnknown:
		return 1
	}
	return 0
}

// Reason is the reason of the Trusted condition.
func (v *Verdict) Reason() evidence.Reason {
	c, _ := v.Condition(verdicts.Trusted)
	return c.Reason
}

func (v *Verdict) add(c Condition) {
	v.Conditions = append(v.Conditions, c)
	slices.SortStableFunc(v.Conditions, func(a, b Condition) int {
		return slices.Index(verdicts.Conditions, a.Type) - slices.Index(verdicts.Conditions, b.Type)
	})
}

func (v *Verdict) set(t imagev1.SignatureConditionType, status bool, reason evidence.Reason, message string) {
	s := corev1.ConditionFalse
	if status {
		s = corev1.ConditionTrue
	}
	v.add(Condition{t, s, reason, v.message(message)})
}

func (v *Verdict) setUnknown(t imagev1.SignatureConditionType, reason evidence.Reason, message string) {
	v.add(Condition{t, corev1.ConditionUnknown, reason, v.message(message)})
}

func (v *Verdict) setForImage(content signedContent, image Image) {
	if content.covers(image.Digest) {
		v.set(verdicts.ForImage, true, ReasonDigestMatches, "the signature is over the image's digest")
		return
	}
	v.set(verdicts.ForImage, false, ReasonDigestMismatch,
		fmt.Sprintf("the signature is over %s, the image is %s", content.signedDigest(), image.Digest))
}

const maxMessage = 1024

// message puts the policy's name before a text. Parts of the text may come from an attacker, so
// message makes it safe for terminals and storage: one line, bounded.
func (v *Verdict) message(text string) string {
	if v.Policy != "" {
		text = fmt.Sprintf("policy %q for %s: %s", v.Policy, v.Repository, text)
	}
	return printable.Line(text, maxMessage)
}

// unjudged is the verdict on a signature that could not be judged.
func unjudged(reason evidence.Reason, message string) Verdict {
	var v Verdict
	v.setUnknown(verdicts.Trusted, reason, message)
	v.setUnknown(verdicts.ForImage, reason, message)
	return v
}

func noPolicy(ref reference.Reference) Verdict {
	return unjudged(ReasonNoMatchingPolicy, fmt.Sprintf("no policy covers %s", ref))
}

// Bounds of the texts that are copied from a signature into an Image.
const (
	maxClaims     = 64
	maxClaimBytes = 1024
)

// describe fills in the contents and the signer of the signature, for which e vouches.
func (v *Verdict) describe(content signedContent, e *evidence.Evidence, p *policy.Policy) {
	created := e.Time
	claims := map[string]string{}
	switch {
	case content.simple != nil:
		v.ImageIdentity = printable.Line(content.simple.Reference, maxClaimBytes)
		for key, value := range content.simple.Optional {
			claims["optional."+key] = value
		}
		claims["critical.type"] = content.simple.Type
		claims["critical.image.docker-manifest-digest"] = content.simple.Digest
		claims["critical.identity.docker-reference"] = content.simple.Reference
		if !content.simple.Timestamp.IsZero() {
			created = content.simple.Timestamp
		}
	case content.statement != nil:
		for key, value := range content.statement.Annotations(content.signedDigest()) {
			claims["optional."+key] = value
		}
		claims["predicateType"] = content.statement.PredicateType
		claims["subject.digest"] = content.signedDigest()
	default:
		claims["subject.digest"] = content.signedDigest()
	}
	maps.Copy(claims, e.Claims)
	if e.Log != nil {
		claims["rekor.logID"] = e.Log.ID
		claims["rekor.logIndex"] = strconv.FormatInt(e.Log.Index, 10)
		if !e.Log.Time.IsZero() {
			claims["rekor.integratedTime"] = e.Log.Time.Format(time.RFC3339)
		}
	}
	v.SignedClaims = boundClaims(claims)
	if !created.IsZero() {
		t := metav1.NewTime(created.UTC().Truncate(time.Second))
		v.Created = &t
	}
	v.IssuedTo = &imagev1.SignatureSubject{PublicKeyID: e.KeyID}
	v.IssuedTo.CommonName, v.IssuedTo.Organization = printable.Line(e.Subject, maxClaimBytes), printable.Line(e.SubjectOrganization, maxClaimBytes)
	if e.Subject == "" { // a bare key has no owner: use the policy's name
		v.IssuedTo.CommonName = p.ID()
	}
}

// issue fills in the issuer: the CA, the OpenPGP key or, for a bare key, the policy itself.
func (v *Verdict) issue(e *evidence.Evidence, p *policy.Policy) {
	v.IssuedBy = &imagev1.SignatureIssuer{}
	v.IssuedBy.CommonName, v.IssuedBy.Organization = printable.Line(e.IssuerCommonName, maxClaimBytes), printable.Line(e.IssuerOrganization, maxClaimBytes)
	if e.IssuerCommonName == "" && e.IssuerOrganization == "" {
		v.IssuedBy.CommonName, v.IssuedBy.Organization = p.ID(), "ClusterImagePolicy"
	}
}

// boundClaims bounds the claims that one signature can put into an Image. If it leaves out claims,
// it adds a claim with their number. It does not shorten claims, because a shortened claim would be
// another claim.
func boundClaims(claims map[string]string) map[string]string {
	kept := map[string]string{}
	omitted := 0
	for _, key := range slices.Sorted(maps.Keys(claims)) {
		if len(kept) >= maxClaims || len(key)+len(claims[key]) > maxClaimBytes || !printable.IsYAML(key) || !printable.IsYAML(claims[key]) {
			omitted++
			continue
		}
		kept[key] = claims[key]
	}
	if omitted > 0 {
		kept["tidewaiter.dev/omitted"] = strconv.Itoa(omitted)
	}
	return kept
}

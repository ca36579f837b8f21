package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/nearest"
	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// AdmissionAnnotation and UnknownAnnotation are annotations of a policy. They set what happens to a
// pod whose image does not meet the policy. MaxTagAgeAnnotation bounds the time since a registry
// last confirmed a tag. ImmutableTagsAnnotation has patterns of tags that must not move.
const (
	AdmissionAnnotation     = "tidewaiter.dev/admission"
	UnknownAnnotation       = "tidewaiter.dev/admission-unknown"
	MaxTagAgeAnnotation     = "tidewaiter.dev/max-tag-age"
	ImmutableTagsAnnotation = "tidewaiter.dev/immutable-tags"
)

// minTagAge is the smallest MaxTagAge. With a smaller one, each pod would wait for a registry.
const minTagAge = 10 * time.Second

// Admission sets what happens to a pod that names an image which does not meet a policy. It is not
// part of a policy's Hash, because no verdict on signatures depends on it.
type Admission struct {
	// Mode is enforce, warn or audit: the pod is refused, its creator is warned, or the audit log
	// has it. Empty is enforce.
	Mode string `json:"tidewaiter.dev/admission,omitempty"`
	// Unknown is allow, warn or deny: what happens to a pod if it is unknown whether its image meets
	// the policy. Empty is deny. Mode limits it: a policy that does not enforce refuses no pod.
	Unknown string `json:"tidewaiter.dev/admission-unknown,omitempty"`
	// MaxTagAge is a duration. If the last time that a registry confirmed a tag is longer ago than
	// this, it is unknown whether the tag's image meets the policy. Empty means no bound.
	MaxTagAge string `json:"tidewaiter.dev/max-tag-age,omitempty"`
	// ImmutableTags are patterns, separated by commas, of tags that must not move. An image to which
	// such a tag is moved does not meet the policy. Empty means that all tags may move.
	ImmutableTags TagPatterns `json:"tidewaiter.dev/immutable-tags,omitempty"`
	_             struct{}    `json:"-"` // makes decodeDocument ignore other annotations
}

// The values of Admission.
const (
	ModeEnforce  = "enforce"
	ModeWarn     = "warn"
	ModeAudit    = "audit"
	UnknownAllow = "allow"
	UnknownWarn  = "warn"
	UnknownDeny  = "deny"
)

// NewAdmission reads the annotations of an object. An error is an *Error that names the annotation.
// The returned Admission then has the valid annotations, and the strictest value in place of an
// invalid one.
func NewAdmission(annotations map[string]string) (Admission, error) {
	a := Admission{
		Mode: annotations[AdmissionAnnotation], Unknown: annotations[UnknownAnnotation],
		MaxTagAge: annotations[MaxTagAgeAnnotation], ImmutableTags: TagPatterns(annotations[ImmutableTagsAnnotation]),
	}
	wrong, err := a.validate()
	if value, has := annotations[MaxTagAgeAnnotation]; has && value == "" {
		a.MaxTagAge = minTagAge.String()
	}
	if value, has := annotations[ImmutableTagsAnnotation]; has && (value == "" || a.ImmutableTags.check() != nil) {
		a.ImmutableTags = "*"
	}
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if err := checkAnnotation(key, annotations[key] == ""); err != nil {
			return a, &Error{Field: "metadata.annotations." + printable.Line(key, maxAnnotation), Err: err}
		}
	}
	if err != nil {
		return a, &Error{Field: wrong, Err: err}
	}
	return a, nil
}

// CheckLabels returns an *Error about a label of a policy whose key is meant as an annotation.
func CheckLabels(labels map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if err := checkLabel(key); err != nil {
			return &Error{Field: "metadata.labels." + printable.Line(key, maxAnnotation), Err: err}
		}
	}
	return nil
}

// FileAnnotation names the file whose policy an object shows.
const FileAnnotation = "tidewaiter.dev/policy-file"

// known are the annotations of policies that this program reads, and examples are values of those
// that people write.
var (
	known    = []string{AdmissionAnnotation, UnknownAnnotation, MaxTagAgeAnnotation, ImmutableTagsAnnotation, FileAnnotation}
	examples = map[string]string{
		AdmissionAnnotation: ModeEnforce + ", " + ModeWarn + " or " + ModeAudit,
		UnknownAnnotation:   UnknownAllow + ", " + UnknownWarn + " or " + UnknownDeny,
		MaxTagAgeAnnotation: "a duration such as 10m", ImmutableTagsAnnotation: "patterns of tags, such as v*, *-release",
	}
)

const (
	project = "tidewaiter"
	domain  = project + ".dev"
	// maxAnnotation bounds how much of a key is compared, in bytes: Kubernetes' own are shorter.
	maxAnnotation = 320
	// misspelt is up to how many changes a key may differ from one of known to count as a misspelling
	// of it.
	misspelt = 3
)

// checkAnnotation refuses an unknown key that is meant for this program, and a known one without a
// value: such a bound would have no effect.
func checkAnnotation(key string, empty bool) error {
	if slices.Contains(known, key) {
		if example, ok := examples[key]; ok && empty {
			return fmt.Errorf("is empty: write %s, or leave the annotation out", example)
		}
		return nil
	}
	near := meant(key)
	if near == "" {
		return nil
	}
	return fmt.Errorf("has no meaning in a policy; did you mean %s? Known are %s, %s, %s and %s", near, AdmissionAnnotation, UnknownAnnotation, MaxTagAgeAnnotation, ImmutableTagsAnnotation)
}

// checkLabel refuses a key that is meant as an annotation.
func checkLabel(key string) error {
	near := meant(key)
	if near == "" {
		return nil
	}
	return fmt.Errorf("has no meaning as a label: write %s under metadata.annotations", near)
}

// meant returns the known annotation that a key most likely means; "" for a key that is not meant
// for this program. Keys of this program's domain and its subdomains are meant for it. So is a key
// with the name of a known annotation and a misspelt prefix or none.
func meant(key string) string {
	key = strings.ToLower(key[:min(len(key), maxAnnotation)])
	near, n := nearest.Of(key, known)
	prefix, name, hasPrefix := strings.Cut(key, "/")
	if !hasPrefix {
		prefix, name = "", key
	}
	of := nearestName(name)
	isOurs := prefix == domain || strings.HasSuffix(prefix, "."+domain)
	looksLikeOurs := prefix == "" || slices.ContainsFunc(strings.Split(prefix, "."), func(label string) bool { return nearest.Likely(label, []string{project}) != "" })
	switch {
	case n <= misspelt:
		return near
	case of != "" && looksLikeOurs:
		return of
	case isOurs:
		near, _ = nearest.Of(domain+"/"+name, known)
		return near
	}
	return ""
}

// nearestName returns the known annotation whose name without its prefix equals name, except for
// separators and at most one mistake; "" if there is none.
func nearestName(name string) string {
	joined := strings.NewReplacer("-", "", "_", "", ".", "").Replace
	for _, key := range known {
		if nearest.Distance(joined(name), joined(strings.TrimPrefix(key, domain+"/"))) <= 1 {
			return key
		}
	}
	return ""
}

// Annotations returns the annotations from which NewAdmission reads a.
func (a Admission) Annotations() map[string]string {
	annotations := map[string]string{}
	if a.Mode != "" {
		annotations[AdmissionAnnotation] = a.Mode
	}
	if a.Unknown != "" {
		annotations[UnknownAnnotation] = a.Unknown
	}
	if a.MaxTagAge != "" {
		annotations[MaxTagAgeAnnotation] = a.MaxTagAge
	}
	if a.ImmutableTags != "" {
		annotations[ImmutableTagsAnnotation] = string(a.ImmutableTags)
	}
	return annotations
}

// validate returns an error about an invalid field, and the field's name.
func (a Admission) validate() (field string, err error) {
	switch a.Mode {
	case "", ModeEnforce, ModeWarn, ModeAudit:
	default:
		return "metadata.annotations." + AdmissionAnnotation, fmt.Errorf("is %.64q, must be %s, %s or %s", a.Mode, ModeEnforce, ModeWarn, ModeAudit)
	}
	switch a.Unknown {
	case "", UnknownAllow, UnknownWarn, UnknownDeny:
	default:
		return "metadata.annotations." + UnknownAnnotation, fmt.Errorf("is %.64q, must be %s, %s or %s", a.Unknown, UnknownAllow, UnknownWarn, UnknownDeny)
	}
	if d, err := time.ParseDuration(a.MaxTagAge); a.MaxTagAge != "" && (err != nil || d < minTagAge) {
		return "metadata.annotations." + MaxTagAgeAnnotation, fmt.Errorf("is %.64q, must be a duration of at least %v, such as 10m", a.MaxTagAge, minTagAge)
	}
	if err := a.ImmutableTags.check(); err != nil {
		return "metadata.annotations." + ImmutableTagsAnnotation, err
	}
	return "", nil
}

// IsTooOld reports whether age exceeds MaxTagAge. An invalid MaxTagAge counts as the smallest that
// is allowed.
func (a Admission) IsTooOld(age time.Duration) bool {
	if a.MaxTagAge == "" {
		return false
	}
	most, err := time.ParseDuration(a.MaxTagAge)
	if err != nil {
		most = minTagAge
	}
	return age > most
}

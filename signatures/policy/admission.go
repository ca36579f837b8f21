package policy

import (
	"fmt"
	"time"
)

// AdmissionAnnotation and UnknownAnnotation are annotations of a policy. They say what becomes of a
// pod whose image does not meet the policy. MaxTagAgeAnnotation says how long ago the registry may
// have been asked where a tag leads.
const (
	AdmissionAnnotation = "tidewaiter.dev/admission"
	UnknownAnnotation   = "tidewaiter.dev/admission-unknown"
	MaxTagAgeAnnotation = "tidewaiter.dev/max-tag-age"
)

// minTagAge is the least MaxTagAge. With less each pod would wait for a registry.
const minTagAge = 10 * time.Second

// Admission says what becomes of a pod that names an image which does not meet a policy. It is not
// part of a policy's Hash: no verdict on signatures depends on it.
type Admission struct {
	// Mode is enforce, warn or audit: the pod is refused, its creator is warned, or the audit log
	// has it. Empty is enforce.
	Mode string `json:"tidewaiter.dev/admission,omitempty"`
	// Unknown is allow, warn or deny: what happens to a pod if it is unknown whether its image
	// meets the policy. Empty is deny. Mode bounds it: a policy that does not enforce refuses
	// nothing.
	Unknown string `json:"tidewaiter.dev/admission-unknown,omitempty"`
	// MaxTagAge is a duration. If the registry last confirmed longer ago where a tag leads, it is
	// not known whether what is asked for by the tag meets the policy. Empty means no bound.
	MaxTagAge string   `json:"tidewaiter.dev/max-tag-age,omitempty"`
	_         struct{} `json:"-"` // makes decodeDocument read over other annotations
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
func NewAdmission(annotations map[string]string) (Admission, error) {
	a := Admission{Mode: annotations[AdmissionAnnotation], Unknown: annotations[UnknownAnnotation], MaxTagAge: annotations[MaxTagAgeAnnotation]}
	field, err := a.validate()
	if err != nil {
		return Admission{}, &Error{Field: field, Err: err}
	}
	return a, nil
}

// Annotations are those that NewAdmission reads.
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
	return annotations
}

// validate returns what is wrong, and with which field.
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
	return "", nil
}

// IsTooOld reports whether MaxTagAge does not allow knowledge of a tag of an age.
func (a Admission) IsTooOld(age time.Duration) bool {
	most, err := time.ParseDuration(a.MaxTagAge)
	return err == nil && age > most
}

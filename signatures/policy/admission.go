package policy

import "fmt"

// AdmissionAnnotation and UnknownAnnotation are annotations of a policy. They say what becomes of a pod whose image does
// not meet the policy.
const (
	AdmissionAnnotation = "tidewaiter.dev/admission"
	UnknownAnnotation   = "tidewaiter.dev/admission-unknown"
)

// Admission says what becomes of a pod that names an image which does not meet a policy. It is not part of a policy's Hash:
// no verdict depends on it.
type Admission struct {
	// Mode is enforce, warn or audit: the pod is refused, its creator is warned, or the audit log has it. Empty is enforce.
	Mode string `json:"tidewaiter.dev/admission,omitempty"`
	// Unknown is allow, warn or deny: what becomes of the pod where it is not known whether its image meets the policy.
	// Empty is deny. Mode bounds it: a policy that does not enforce refuses nothing.
	Unknown string   `json:"tidewaiter.dev/admission-unknown,omitempty"`
	_       struct{} `json:"-"` // makes decodeDocument read over other annotations
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
	a := Admission{Mode: annotations[AdmissionAnnotation], Unknown: annotations[UnknownAnnotation]}
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
	return "", nil
}

package image

import (
	"fmt"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

// SplitSignatureName splits the name of a signature, image "@" signature, in two.
func SplitSignatureName(name string) (image, signature string, err error) {
	image, signature, ok := strings.Cut(name, "@")
	if !ok || image == "" || signature == "" || strings.Contains(signature, "@") {
		return "", "", fmt.Errorf("must be of the form <image name>@<signature name>")
	}
	return image, signature, nil
}

func validateSignatures(signatures []imagev1.ImageSignature, fldPath *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := make(map[string]bool, len(signatures))
	for i := range signatures {
		s := &signatures[i]
		errs = append(errs, validateSignature(s, fldPath.Index(i))...)
		if s.Name != "" && seen[s.Name] {
			errs = append(errs, field.Duplicate(fldPath.Index(i).Child("metadata", "name"), s.Name))
		}
		seen[s.Name] = true
	}
	return errs
}

// validateSignature checks one signature. fldPath is nil for an ImageSignature on its own.
func validateSignature(s *imagev1.ImageSignature, fldPath *field.Path) field.ErrorList {
	var errs field.ErrorList
	metadata := fldPath.Child("metadata")
	if len(s.Labels) > 0 {
		errs = append(errs, field.Forbidden(metadata.Child("labels"), "signatures cannot have labels"))
	}
	if len(s.Annotations) > 0 {
		errs = append(errs, field.Forbidden(metadata.Child("annotations"), "signatures cannot have annotations"))
	}
	if _, _, err := SplitSignatureName(s.Name); err != nil {
		errs = append(errs, field.Invalid(metadata.Child("name"), s.Name, err.Error()))
	}
	if s.Type == "" {
		errs = append(errs, field.Required(fldPath.Child("type"), ""))
	}
	if len(s.Content) == 0 {
		errs = append(errs, field.Required(fldPath.Child("content"), ""))
	}
	if len(s.Content) > verdicts.MaxContent {
		errs = append(errs, field.TooLong(fldPath.Child("content"), "", verdicts.MaxContent))
	}
	return append(errs, validateVerdict(s, fldPath)...)
}

// validateVerdict checks that the conditions agree with each other and with the other claims of the
// signature. Conditions may have any order; of one type, the one probed last counts.
func validateVerdict(s *imagev1.ImageSignature, fldPath *field.Path) field.ErrorList {
	var errs field.ErrorList
	trusted, forImage := newestCondition(s, verdicts.Trusted), newestCondition(s, verdicts.ForImage)
	switch {
	case trusted != nil && forImage == nil:
		errs = append(errs, field.Invalid(fldPath.Child("conditions"), field.OmitValueType{}, fmt.Sprintf("missing %q condition type", verdicts.ForImage)))
	case trusted == nil && forImage != nil:
		errs = append(errs, field.Invalid(fldPath.Child("conditions"), field.OmitValueType{}, fmt.Sprintf("missing %q condition type", verdicts.Trusted)))
	}
	if trusted != nil && trusted.Status != corev1.ConditionUnknown {
		return errs
	}
	const message = "must be unset for unknown signature state"
	if s.ImageIdentity != "" {
		errs = append(errs, field.Invalid(fldPath.Child("imageIdentity"), s.ImageIdentity, message))
	}
	if len(s.SignedClaims) > 0 {
		errs = append(errs, field.Invalid(fldPath.Child("signedClaims"), field.OmitValueType{}, message))
	}
	if s.IssuedBy != nil {
		errs = append(errs, field.Invalid(fldPath.Child("issuedBy"), field.OmitValueType{}, message))
	}
	if s.IssuedTo != nil {
		errs = append(errs, field.Invalid(fldPath.Child("issuedTo"), field.OmitValueType{}, message))
	}
	return errs
}

// newestCondition returns the condition of type t that was probed last; nil when there is none.
func newestCondition(s *imagev1.ImageSignature, t imagev1.SignatureConditionType) *imagev1.SignatureCondition {
	var newest *imagev1.SignatureCondition
	for i := range s.Conditions {
		c := &s.Conditions[i]
		if c.Type == t && (newest == nil || !c.LastProbeTime.Before(&newest.LastProbeTime)) {
			newest = c
		}
	}
	return newest
}

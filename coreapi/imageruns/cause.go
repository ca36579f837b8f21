package imageruns

import (
	"cmp"
	"slices"
	"strings"
)

// Reasons of verdicts that depend on the tag that a container names: it must not have moved as it
// has, or no registry has confirmed for too long where it leads.
const (
	ReasonTagMoved  = "TagMoved"
	ReasonTagTooOld = "TagTooOld"
)

// Verdicts that causes depend on.
const (
	unknownVerdict  = "Unknown"
	falseVerdict    = "False"
	unsignedVerdict = "Unsigned"
	byIndexVerdict  = "ByIndex"
)

// Reasons of verdicts on images whose signers counted until their keys or certificates ended.
const (
	reasonCertificateExpired = "CertificateExpired"
	reasonKeyExpired         = "KeyExpired"
	reasonKeyRevoked         = "KeyRevoked"
)

// By is what had a verdict read when it was found to have changed. It is the cause of the change
// if the two verdicts show no other.
type By string

// What has verdicts read.
const (
	BySweep   By = "a sweep of the stored images judged it again"
	ByWrite   By = "its image was written, by an import or another client"
	ByTag     By = "what is known of its tag changed"
	ByReading By = "a sweep of what runs found it"
	ByAbsence By = "it changed while it was not recorded"
	BySeveral By = "not known: several things had it judged within a second"
	ByUnknown By = "not known: the server did not record it"
)

// Cause returns why a verdict followed another one, or nil. If policies have changed, it names them
// before what else the two verdicts show.
func Cause(before *RunVerdict, v RunVerdict, by By) string {
	if before == nil {
		return "it began to run"
	}
	shown, changed := shownCause(before, v), changedPolicies(before, v)
	if len(changed) == 0 {
		return cmp.Or(shown, string(by))
	}
	cause := "the policy " + changed[0] + " changed"
	if len(changed) > 1 {
		cause = "the policies " + strings.Join(changed, ", ") + " changed"
	}
	if shown != "" {
		cause += ": " + shown
	}
	return cause
}

// changedPolicies returns the policies that covered an image before and after, with other versions.
func changedPolicies(before *RunVerdict, v RunVerdict) (changed []string) {
	if len(before.PolicyVersions) != len(before.Policies) || len(v.PolicyVersions) != len(v.Policies) {
		return nil // an older server recorded one of them
	}
	for i, name := range v.Policies {
		if was := slices.Index(before.Policies, name); was >= 0 && before.PolicyVersions[was] != v.PolicyVersions[i] {
			changed = append(changed, name)
		}
	}
	return changed
}

// shownCause returns the cause that two verdicts show; "" if they show none.
func shownCause(before *RunVerdict, v RunVerdict) string {
	lacks := func(all, of []string) bool {
		return slices.ContainsFunc(of, func(one string) bool { return !slices.Contains(all, one) })
	}
	switch {
	case before.ExceptionUntil != "" && v.ExceptionUntil == "":
		return "an exception ended"
	case before.ExceptionUntil == "" && v.ExceptionUntil != "":
		return "an exception began"
	case v.Verified == unknownVerdict && len(v.Policies) == 0:
		return "it is no longer known"
	case before.Verified == unknownVerdict && len(before.Policies) == 0:
		return "it became known"
	case lacks(before.Policies, v.Policies), lacks(v.Policies, before.Policies):
		return "other policies cover it"
	case before.Reason != v.Reason && v.Reason == ReasonTagMoved:
		return "its tag moved, and must not"
	case before.Reason != v.Reason && before.Reason == ReasonTagMoved:
		return "its tag may lead to it now"
	case before.Reason != v.Reason && v.Reason == ReasonTagTooOld:
		return "no registry has confirmed its tag for too long"
	case before.Reason != v.Reason && before.Reason == ReasonTagTooOld:
		return "its tag is no longer too old"
	case v.Verified == unknownVerdict:
		return "it is no longer known"
	case before.Verified != byIndexVerdict && v.Verified == byIndexVerdict:
		return "an index that lists it is verified"
	case lacks(before.Signers, v.Signers):
		return "a signature counts that did not"
	case lacks(v.Signers, before.Signers) && v.Reason == reasonKeyExpired:
		return "a key expired"
	case lacks(v.Signers, before.Signers) && v.Reason == reasonKeyRevoked:
		return "a key was revoked"
	case lacks(v.Signers, before.Signers) && v.Reason == reasonCertificateExpired:
		return "a certificate expired"
	case before.Verified == byIndexVerdict && v.Verified != byIndexVerdict:
		return "no index that lists it is verified any longer"
	case lacks(v.Signers, before.Signers):
		return "a signature no longer counts"
	case before.Verified == unknownVerdict:
		return "it became known"
	case before.Verified == unsignedVerdict && v.Verified == falseVerdict:
		return "a signature came that does not count"
	case before.Verified == falseVerdict && v.Verified == unsignedVerdict:
		return "its signatures are gone"
	}
	return ""
}

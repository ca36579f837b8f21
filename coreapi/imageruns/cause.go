package imageruns

import "slices"

// Reasons of verdicts that depend on the tag that a container names: it must not have moved as it
// has, or no registry has confirmed for too long where it leads.
const (
	ReasonTagMoved  = "TagMoved"
	ReasonTagTooOld = "TagTooOld"
)

// Reasons of verdicts on images whose signers counted until their keys or certificates ended.
const (
	reasonCertificateExpired = "CertificateExpired"
	reasonKeyExpired         = "KeyExpired"
	reasonKeyRevoked         = "KeyRevoked"
)

// Cause returns why a verdict followed another one, or nil, as far as it can be seen from the two.
func Cause(before *RunVerdict, v RunVerdict) string {
	lacks := func(all, of []string) bool {
		return slices.ContainsFunc(of, func(one string) bool { return !slices.Contains(all, one) })
	}
	switch {
	case before == nil:
		return "it began to run"
	case before.ExceptionUntil != "" && v.ExceptionUntil == "":
		return "an exception ended"
	case before.ExceptionUntil == "" && v.ExceptionUntil != "":
		return "an exception began"
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
	case lacks(before.Signers, v.Signers):
		return "a signature counts that did not"
	case lacks(v.Signers, before.Signers) && v.Reason == reasonKeyExpired:
		return "a key expired"
	case lacks(v.Signers, before.Signers) && v.Reason == reasonKeyRevoked:
		return "a key was revoked"
	case lacks(v.Signers, before.Signers) && v.Reason == reasonCertificateExpired:
		return "a certificate expired"
	case lacks(v.Signers, before.Signers):
		return "a signature no longer counts"
	case before.Verified == unknownVerdict:
		return "it became known"
	default:
		return "it was judged again"
	}
}

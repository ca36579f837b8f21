package imageruns

import "slices"

// Cause says why a verdict followed another one, nil for none, as far as the two tell.
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
	case v.Verified == unknownVerdict:
		return "it is no longer known"
	case lacks(before.Signers, v.Signers):
		return "a signature counts that did not"
	case lacks(v.Signers, before.Signers):
		return "a signature no longer counts"
	case before.Verified == unknownVerdict:
		return "it became known"
	default:
		return "it was judged again"
	}
}

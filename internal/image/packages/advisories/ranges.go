package advisories

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/image/packages/versions"
)

// Reasons why it is unknown for every version whether it is affected.
var (
	errCommits = errors.New("it names git commits alone, which SBOMs do not have")
	errNothing = errors.New("it names neither versions nor ranges of versions")
)

// unusable returns an error if it is unknown for every version whether it is affected.
func (a *Affected) unusable() error {
	if len(a.Versions) > 0 || slices.ContainsFunc(a.Ranges, func(r Range) bool { return r.Type != "GIT" }) {
		return nil
	}
	if len(a.Ranges) > 0 {
		return errCommits
	}
	return errNothing
}

// has reports whether a version of a type of package, as package URLs name it, is affected, by the
// algorithm of the format (https://ossf.github.io/osv-schema/#evaluation): it is in the list of
// versions, or in a range. fixed is the first fixed version after it, if one is named. An error
// means that this is unknown.
func (a *Affected) has(typ, version string) (is bool, fixed string, err error) {
	if version == "" {
		return false, "", errors.New("the version is not known")
	}
	is = slices.ContainsFunc(a.Versions, func(v string) bool { return v == version || typ == "golang" && v == strings.TrimPrefix(version, "v") })
	err = a.unusable()
	for i := range a.Ranges {
		r := &a.Ranges[i]
		if r.Type == "GIT" {
			continue
		}
		in, first, unknown := r.has(typ, version)
		err = cmp.Or(err, unknown)
		is, fixed = is || in, cmp.Or(fixed, first)
	}
	if is {
		err = nil
	}
	return is, fixed, err
}

// has reports whether a version is in a range: the last event up to it introduced the
// vulnerability, and it is before one of the limits, if there are any.
func (r *Range) has(typ, version string) (is bool, fixed string, err error) {
	if r.Type == "SEMVER" && !versions.Orders(typ) {
		typ = versions.SemVer
	}
	// order compares with the version of an event: 0 comes before all others, and * after them
	order := func(a, b string) int {
		switch {
		case a == b:
			return 0
		case b == "0" || a == "*":
			return 1
		case a == "0" || b == "*":
			return -1
		}
		n, unknown := versions.Compare(typ, a, b)
		err = cmp.Or(err, unknown)
		return n
	}
	last, after, limited, within := "", false, false, false // after is set if the last event comes after its version
	for _, e := range r.Events {
		at, reached, introduces := "", false, false
		switch {
		case e.Introduced != "":
			at, introduces = e.Introduced, true
			reached = order(version, at) >= 0
		case e.Fixed != "":
			at = e.Fixed
			if reached = order(version, at) >= 0; !reached && (fixed == "" || order(at, fixed) < 0) {
				fixed = at
			}
		case e.LastAffected != "":
			at = e.LastAffected
			reached = order(version, at) > 0
		case e.Limit != "":
			limited = true
			within = within || order(version, e.Limit) < 0
		}
		if !reached {
			continue
		}
		n := 1
		if last != "" {
			n = order(at, last)
		}
		if n > 0 || n == 0 && (!after || e.LastAffected != "") {
			last, is, after = at, introduces, e.Introduced == "" && e.Fixed == ""
		}
	}
	if err != nil {
		return false, "", fmt.Errorf("it is not known whether it is in a range: %w", err)
	}
	if is = is && (within || !limited); !is {
		return false, "", nil
	}
	return true, fixed, nil
}

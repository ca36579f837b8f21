package verdicts

import (
	"slices"
	"testing"
)

func TestCell(t *testing.T) {
	covered := func(words ...string) (all []Verdict) {
		for _, word := range words {
			all = append(all, Verdict{Verified: word, Reason: "SearchIncomplete", Covered: true})
		}
		return all
	}
	free := func(words ...string) (all []Verdict) {
		for _, word := range words {
			all = append(all, Verdict{Verified: word, Reason: "NoMatchingPolicy"})
		}
		return all
	}
	for _, tt := range []struct {
		all  []Verdict
		want string
	}{
		{nil, ""},
		{covered("True"), "True"},
		{covered("True", "True"), "True"},
		{covered("True", "False", "True"), "False (1 of 3)"},
		{covered("ByIndex", "True"), "ByIndex (1 of 2)"},
		{covered("Unsigned", "Unknown"), "Unsigned (1 of 2)"},
		{covered("False", "made up"), "False (1 of 2)"},
		{covered("Unknown"), "Unknown:Unread"},
		{covered("Excepted"), "Excepted"},
		{covered("Excepted", "True"), "Excepted (1 of 2)"},
		{[]Verdict{{Verified: Excepted, Covered: true, Until: "2026-12-31T10:00:00Z"}}, "Excepted:2026-12-31"},
		{slices.Concat(free("NoPolicy"), covered("Excepted")), "Excepted (1 of 2)"},
		{covered("Excepted", "Unknown"), "Unknown (1 of 2)"},
		{free("NoPolicy"), "NoPolicy"},
		{free("NoPolicy", "Unknown"), "Unknown (1 of 2)"},
		// The worst verdict is among the places that a policy covers; the others only count in the total.
		{slices.Concat(free("NoPolicy"), covered("True")), "True (1 of 2)"},
		{slices.Concat(free("Unknown", "NoPolicy"), covered("ByIndex")), "ByIndex (1 of 3)"},
		{slices.Concat(covered("Unsigned"), free("NoPolicy")), "Unsigned (1 of 2)"},
		{covered(slices.Concat(slices.Repeat([]string{"Unsigned"}, 10), slices.Repeat([]string{"True"}, 22))...), "Unsigned (10 of 32)"},
	} {
		got := Cell(tt.all)
		if got != tt.want {
			t.Errorf("%v is %q, want %q", tt.all, got, tt.want)
		}
		if len(got) > maxCell {
			t.Errorf("%q has %d bytes", got, len(got))
		}
	}
	if got := (Verdict{Verified: VerifiedUnknown, Reason: "AVeryLongReasonOfSomebody"}).Word(); len(got) > maxCell+len("…") || got[:10] != "Unknown:AV" {
		t.Errorf("a long reason is %q", got)
	}
	if got := (Verdict{Verified: VerifiedUnknown}).Word(); got != "Unknown:NotJudged" {
		t.Errorf("no reason is %q", got)
	}
}

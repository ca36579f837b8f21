package imageevents

import (
	"slices"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// One event says where an image is now trusted, and one where it is not; the other verdicts have
// none.
func TestEventsOfTurned(t *testing.T) {
	t.Parallel()
	turned := func(place, verified, message string, signers ...string) signatures.Change {
		return signatures.Change{HeldVerdict: annotation.HeldVerdict{Place: place, Verdict: annotation.Verdict{Verified: verified, Message: message, Signers: signers}}}
	}
	for name, tt := range map[string]struct {
		turned []signatures.Change
		want   []event
	}{
		"nothing":       {nil, nil},
		"other words":   {[]signatures.Change{turned("r/a", "Unsigned", ""), turned("r/b", "NoPolicy", "")}, nil},
		"one tag":       {[]signatures.Change{turned("r/a:v1", "False", "signed by bob")}, []event{{true, "SignatureRejected", "No signature is trusted in r/a:v1: signed by bob"}}},
		"no message":    {[]signatures.Change{turned("r/a#team", "False", "")}, []event{{true, "SignatureRejected", "No signature is trusted in r/a, for the pods of namespace team"}}},
		"some and some": {[]signatures.Change{turned("r/a", "True", "", "ann", "bob"), turned("r/a:v2", "False", ""), turned("r/b", "True", "")}, []event{{false, "SignatureVerified", "Signed by ann, bob, in r/a, and 1 other place"}, {true, "SignatureRejected", "No signature is trusted in r/a:v2"}}},
		"not known":     {[]signatures.Change{turned("r/a:v1", "Unknown", "checked 20m ago")}, []event{{true, "VerdictUnknown", "It is not known whether it is verified in r/a:v1: checked 20m ago"}}},
		"a moved tag":   {[]signatures.Change{{HeldVerdict: annotation.HeldVerdict{Place: "r/a:v1", Verdict: annotation.Verdict{Verified: "False", Reason: "TagMoved", Message: "it must not move"}}}}, []event{{true, "SignatureRejected", "It is not verified in r/a:v1: it must not move"}}},
		"nobody known":  {[]signatures.Change{turned("r/a", "True", ""), turned("r/b", "True", ""), turned("r/c", "True", "")}, []event{{false, "SignatureVerified", "A signature is trusted, in r/a, and 2 other places"}}},
	} {
		if got := eventsOf(tt.turned); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tt.want)
		}
	}
}

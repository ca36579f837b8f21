package main

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// When the signers no longer count, the reason may say why. The reasons are those of signatures.
func TestCauseOfAKeyThatEnded(t *testing.T) {
	before := imageruns.RunVerdict{Verified: verdicts.VerifiedTrue, Policies: []string{"signed"}, Signers: []string{"key a"}}
	for reason, want := range map[evidence.Reason]string{
		evidence.KeyExpired: "a key expired", evidence.KeyRevoked: "a key was revoked", evidence.CertificateExpired: "a certificate expired", evidence.NoMatchingKey: "a signature no longer counts",
	} {
		after := imageruns.RunVerdict{Verified: verdicts.VerifiedFalse, Reason: string(reason), Policies: []string{"signed"}}
		if got := imageruns.Cause(&before, after, imageruns.BySweep); got != want {
			t.Errorf("%s: %q, want %q", reason, got, want)
		}
		if got := imageruns.Cause(&after, before, imageruns.BySweep); got != "a signature counts that did not" {
			t.Errorf("after %s: %q", reason, got)
		}
	}
}

// Where a tag led is told for each moment since it is recorded, and not before.
func TestHistoryThen(t *testing.T) {
	at := func(hour int) time.Time { return time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC) }
	r := &historyReport{Reference: "registry.example.com/app:1", Items: []historyItem{
		{Created: metav1.NewTime(at(9)), Digest: "sha256:3"}, {Created: metav1.NewTime(at(6)), Digest: ""}, {Created: metav1.NewTime(at(3)), Digest: "sha256:1"},
	}}
	for hour, want := range map[int]string{
		2: "where registry.example.com/app:1 led is not recorded before 2026-01-01T03:00:00Z", 3: "sha256:1", 5: "sha256:1", 6: "", 9: "sha256:3", 23: "sha256:3",
	} {
		item, got := r.at(at(hour))
		if item != nil {
			got = item.Digest
		}
		if got != want {
			t.Errorf("at %d: %q, want %q", hour, got, want)
		}
	}
	if item, unknown := (&historyReport{Reference: "a"}).at(at(1)); item != nil || unknown == "" {
		t.Errorf("a tag without a history led to %v", item)
	}
}

// The cause of a verdict follows from the verdict and the one before it. If those before it are no
// longer kept, the cause is unknown.
func TestVerdictItems(t *testing.T) {
	run := imageruns.ImageRun{Status: imageruns.ImageRunStatus{Verdicts: []imageruns.RunVerdict{
		{Verified: "Unsigned", Policies: []string{"signed"}},
		{Verified: "True", Policies: []string{"signed"}, Signers: []string{"key a"}},
		{Verified: "False", Policies: []string{"signed"}},
		{Verified: "Excepted", Policies: []string{"signed"}, ExceptionUntil: "2026-12-01"},
		{Verified: "False", Policies: []string{"signed"}},
		{Verified: "NoPolicy"},
		{Verified: "Unknown"},
		{Verified: "True", Cause: "it is recorded"},
		{Verified: "True", Reason: "another"},
	}}}
	for i := range run.Status.Verdicts {
		run.Status.Verdicts[i].Since = metav1.NewTime(time.Date(2026, 1, 1, min(i, 7), 0, 0, 0, time.UTC))
	}
	want := []string{
		"True after True: " + string(imageruns.ByUnknown), "True after Unknown: it is recorded",
		"Unknown after NoPolicy: it is no longer known", "NoPolicy after False: other policies cover it", "False after Excepted: an exception ended", "Excepted after False: an exception began",
		"False after True: a signature no longer counts", "True after Unsigned: a signature counts that did not", "Unsigned after : it began to run",
	}
	for dropped := range int32(2) {
		if run.Status.VerdictsDropped = dropped; dropped > 0 {
			want[7] = "True after Unknown: not known: verdicts before it are no longer kept: 1"
		}
		var got []string
		for _, item := range verdictItems([]imageruns.ImageRun{run}) {
			got = append(got, fmt.Sprintf("%s after %s: %s", item.Verified, item.Before, item.Cause))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%d dropped: %q\nwant %q", dropped, got, want)
		}
	}
}

package main

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
)

// A gap that goes on is said: it has no length yet, and is not left out.
func TestGapThatGoesOn(t *testing.T) {
	at := func(hour int) metav1.Time { return metav1.NewTime(time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC)) }
	over, end := clusters.Gap{From: at(1)}, at(2)
	over.Until = &end
	for _, test := range []struct {
		gaps        []clusters.Gap
		csv, unseen string
	}{
		{nil, ",0,,Unknown", "<none>"},
		{[]clusters.Gap{over}, ",3600,,Unknown", "1h0m0s"},
		{[]clusters.Gap{{From: at(3)}}, ",0,2026-01-01T03:00:00Z,Unknown", "since 2026-01-01T03:00:00Z"},
		{[]clusters.Gap{over, {From: at(3)}}, ",3600,2026-01-01T03:00:00Z,Unknown", "1h0m0s, and since 2026-01-01T03:00:00Z"},
	} {
		r := &imageruns.ImageRun{Spec: imageruns.ImageRunSpec{From: at(0)}, Status: imageruns.ImageRunStatus{Unseen: test.gaps}}
		if got := strings.Join(ranRecord(r, imageruns.Window{}), ","); !strings.HasSuffix(got, test.csv+",Unknown,,") {
			t.Errorf("%v: %s lacks %s", test.gaps, got, test.csv)
		}
		if got := imageruns.UnseenFor(r); got != test.unseen {
			t.Errorf("%v: %q, want %q", test.gaps, got, test.unseen)
		}
	}
}

// A line of CSV ends with the verdict of the time that was asked about, as the table has it.
func TestRecordOfATime(t *testing.T) {
	at := func(hour int) time.Time { return time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC) }
	r := &imageruns.ImageRun{Spec: imageruns.ImageRunSpec{From: metav1.NewTime(at(0))}, Status: imageruns.ImageRunStatus{Verdicts: []imageruns.RunVerdict{
		{Since: metav1.NewTime(at(1)), Verified: "False", Reason: "NoMatchingKey"}, {Since: metav1.NewTime(at(3)), Verified: "True", Signers: []string{"ann", "ben"}},
	}}}
	for hour, want := range map[int]string{0: "False,True,0,,Unknown,Unknown,,", 2: "False,True,0,,Unknown,False,,NoMatchingKey", 4: `False,True,0,,Unknown,True,ann, ben,`} {
		if got := strings.Join(ranRecord(r, imageruns.Window{From: at(hour), Until: at(hour)}), ","); !strings.HasSuffix(got, want) {
			t.Errorf("at %d: %s lacks %s", hour, got, want)
		}
	}
}

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
		if got := strings.Join(ranRecord(r), ","); !strings.HasSuffix(got, test.csv) {
			t.Errorf("%v: %s lacks %s", test.gaps, got, test.csv)
		}
		if got := imageruns.UnseenFor(r); got != test.unseen {
			t.Errorf("%v: %q, want %q", test.gaps, got, test.unseen)
		}
	}
}

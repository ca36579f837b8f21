package console

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// A line of time has a part for each verdict, and gaps as gaps; it says the same in words.
func TestLinesOfTime(t *testing.T) {
	now := time.Date(2026, 11, 11, 0, 0, 0, 0, time.UTC)
	var runs []imageRun
	if err := json.Unmarshal([]byte(`[
		{"metadata": {"namespace": "shop"}, "spec": {"cluster": "prod", "workload": "Deployment/app", "digest": "sha256:2", "from": "2026-11-08T00:00:00Z"},
			"status": {"verdicts": [{"since": "2026-11-08T00:00:09Z", "verified": "Unsigned"}, {"since": "2026-11-10T00:00:00Z", "verified": "True"}], "unseen": [{"from": "2026-11-09T00:00:00Z", "until": "2026-11-09T12:00:00Z"}]}},
		{"metadata": {"namespace": "shop"}, "spec": {"cluster": "prod", "workload": "Deployment/app", "digest": "sha256:1", "from": "2026-11-01T00:00:00Z"},
			"status": {"until": "2026-11-07T00:00:00Z"}},
		{"metadata": {"namespace": "shop"}, "spec": {"cluster": "prod", "workload": "Job/once", "digest": "sha256:1", "from": "2026-11-05T00:00:00Z"},
			"status": {"until": "2026-11-05T00:00:01Z", "verdicts": [{"since": "2026-11-05T00:00:00Z", "verified": "True"}, {"since": "2026-11-05T00:00:01Z", "verified": "False"}], "verdictsDropped": 3}}
	]`), &runs); err != nil {
		t.Fatal(err)
	}
	got := barsOf(runs, now, lineOfWorkload)
	var lines []string
	for _, row := range got.Rows {
		line := string(row.Name + " " + row.By + ":")
		for _, p := range row.Parts {
			line += fmt.Sprintf(" %d+%d %s", p.X, p.Wide, p.Tone)
		}
		lines = append(lines, line)
	}
	want := []string{"Deployment/app prod / shop: 0+600 unsure 700+200 bad 900+100 good 800+50 ", "Job/once prod / shop: 400+2 unsure 400+2 bad"}
	if !slices.Equal(lines, want) || !got.Gaps || got.More || got.From != runs[1].Spec.From {
		t.Errorf("the lines are %q from %s, want %q", lines, got.From, want)
	}
	says := "Ran, with an unknown verdict, from 1 November 2026, 00:00:00 UTC until 7 November 2026, 00:00:00 UTC; Unsigned from 8 November 2026, 00:00:00 UTC until 10 November 2026, 00:00:00 UTC; " +
		"Verified from 10 November 2026, 00:00:00 UTC until now; Not seen from 9 November 2026, 00:00:00 UTC until 9 November 2026, 12:00:00 UTC"
	if got := got.Rows[0].Says(); got != says {
		t.Errorf("in words it is %q, want %q", got, says)
	}
	if link := got.Rows[0].Link; link != "/console/running?cluster=prod&namespace=shop&pod=app" {
		t.Errorf("it leads to %s", link)
	}
	byImage := barsOf(runs[:2], now, lineOfImage)
	if len(byImage.Rows) != 2 || byImage.Rows[0].Name != "2" || !strings.HasSuffix(byImage.Rows[0].Link, "ref=sha256%3A2") {
		t.Errorf("by image the lines are %+v", byImage.Rows)
	}
}

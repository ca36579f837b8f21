package auditreport

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
)

func at(hour int) metav1.Time {
	return metav1.NewTime(time.Date(2026, 11, 1, hour, 0, 0, 0, time.UTC))
}

func until(hour int) *metav1.Time { t := at(hour); return &t }

var day = imageruns.Window{From: at(0).Time, Until: at(24).Time}

// hostile is a text with markup, a formula and a line break.
const hostile = "=<script>alert(1)</script>\"\n\x1b[31m"

func records() []imageruns.ImageRun {
	run := func(workload string, from int, end *metav1.Time, all ...imageruns.RunVerdict) imageruns.ImageRun {
		return imageruns.ImageRun{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", ResourceVersion: "7"}, Spec: imageruns.ImageRunSpec{
			Cluster: "prod", Workload: workload, Container: "main", Image: "registry.example.com/app:1", Digest: "sha256:" + strings.Repeat("a", 64), From: at(from),
		}, Status: imageruns.ImageRunStatus{Until: end, Verdicts: all}}
	}
	verdict := func(hour int, word string) imageruns.RunVerdict {
		return imageruns.RunVerdict{Since: at(hour), Verified: word}
	}
	signed, excepted := verdict(-5, "True"), verdict(6, "Excepted")
	signed.Signers, signed.Policies = []string{"ann@example.com"}, []string{"release"}
	excepted.ExceptionUntil, excepted.Policies, excepted.Message = "2026-12-01T00:00:00Z", []string{"release"}, hostile
	// before the period, through it, and after it
	long := run("Deployment/long", -5, nil, signed, excepted, verdict(30, "False"))
	long.Status.Unseen = []clusters.Gap{{From: at(-3), Until: until(-2)}, {From: at(3), Until: until(4)}, {From: at(23), Until: until(26)}, {From: at(30)}}
	gone := run("Deployment/gone", 1, until(4), verdict(1, "Unsigned"))
	gone.Status.Unseen, gone.Status.Admission = []clusters.Gap{{From: at(3), Until: until(4)}}, imageruns.AdmissionWarned
	gone.ResourceVersion = "12"
	unknown := run("Pod/unknown", 2, until(3))
	unknown.Spec.Digest = ""
	two := run("Deployment/long", 2, nil, excepted)
	two.Spec.Container, two.ResourceVersion = "sidecar", "99" // it still runs: its record may change
	return []imageruns.ImageRun{long, gone, unknown, two}
}

func report(order []int) *Report {
	r := New(day, "", "", "v1.2.3")
	all := records()
	for _, i := range order {
		r.Add(&all[i], []string{SBOMYes, SBOMNoneFound, SBOMUnknown, SBOMYes}[i])
	}
	follow := []func(){
		func() {
			r.Follow("prod", &clusters.ClusterRecords{Since: at(-9), Until: at(40), Unseen: all[0].Status.Unseen})
		},
		func() { r.Follow("new", nil) },
		func() {
			r.Follow("late", &clusters.ClusterRecords{Since: at(5), Until: at(23)})
		},
	}
	policies := []Policy{{"", "release", "sha256:1"}, {"shop", "own", "sha256:2"}}
	moves := []Move{{At: at(3), Reference: "registry.example.com/app:1", Digest: "sha256:2", Before: "sha256:1", By: hostile}, {At: at(5), Reference: "registry.example.com/app:1", Before: "sha256:2"}}
	if order[0] > 0 {
		slices.Reverse(follow)
		slices.Reverse(policies)
		slices.Reverse(moves)
	}
	for _, f := range follow {
		f()
	}
	r.Policies, r.TagsMoved = append(r.Policies, policies...), append(r.TagsMoved, moves...)
	r.Finish(true)
	return r
}

// The same records give the same bytes in each format, in any order.
func TestSameBytes(t *testing.T) {
	formats := map[string]func(*Report, io.Writer) error{"html": (*Report).HTML, "csv": (*Report).CSV, "text": (*Report).Text, "json": func(r *Report, w io.Writer) error { return json.NewEncoder(w).Encode(r) }}
	for name, write := range formats {
		var want string
		for range 20 {
			var out bytes.Buffer
			if err := write(report(rand.Perm(4)), &out); err != nil {
				t.Fatal(err)
			}
			if want == "" {
				want = out.String()
			}
			if out.String() != want {
				t.Fatalf("%s: the same records give\n%s\nand\n%s", name, want, &out)
			}
		}
	}
}

// A report has nothing that happened after its end, shows every gap, and never shows an unknown as
// a no.
func TestReport(t *testing.T) {
	r := report([]int{0, 1, 2, 3})
	if got := r.Server.Revision; got != "12" {
		t.Errorf("revision %s, want that of the newest record of what ended", got)
	}
	gone, long, two, unknown := r.Ran[0], r.Ran[1], r.Ran[2], r.Ran[3]
	if long.Until != nil || len(long.Unseen) != 2 || !long.Unseen[0].Until.Equal(until(4)) || long.Unseen[1].Until != nil {
		t.Errorf("what goes on has the end %v and the gaps %v", long.Until, long.Unseen)
	}
	if long.First.Verified != "True" || long.Last.Verified != "Excepted" || long.Changes != 1 {
		t.Errorf("verdicts %s and %s with %d changes", long.First.Verified, long.Last.Verified, long.Changes)
	}
	if !gone.EndUnseen || gone.First.Verified != "Unsigned" || gone.Last.Verified != "Unsigned" || gone.Admission != "Warned" || gone.SBOM != SBOMNoneFound {
		t.Errorf("what ended unseen is %+v", gone)
	}
	if unknown.First.Verified != "Unknown" || unknown.Last.Verified != "Unknown" || unknown.SBOM != "Unknown" || unknown.Admission != "Unknown" {
		t.Errorf("what is not known is %+v", unknown)
	}
	if len(r.Exceptions) != 1 || len(r.Exceptions[0].Workloads) != 1 || two.Last.Verified != "Excepted" {
		t.Errorf("exceptions %+v", r.Exceptions)
	}
	want := []string{
		"cluster prod was not seen from 2026-11-01T03:00:00Z to 2026-11-01T04:00:00Z, so it is not known what ran there then",
		"cluster prod was not seen from 2026-11-01T23:00:00Z to the end of this time, so it is not known what ran there then",
		"it is not known how it was admitted, or that it met the policies then for 3 stretches of 4",
		"it is not known when it ended for 1 stretch of 4",
		"it is not known whether the image has an SBOM for 1 stretch of 4",
		"the digest of what ran is not known for 1 stretch of 4",
		"the verdict at the beginning is not known for 1 stretch of 4",
		"the verdict at the end is not known for 1 stretch of 4",
		"what ran in cluster late after 2026-11-01T23:00:00Z was not yet recorded when this was asked",
		"what ran in cluster late is recorded since 2026-11-01T05:00:00Z, and not whole before",
		"what ran in cluster new is not recorded yet",
	}
	if !slices.Equal(r.NotKnown, want) {
		t.Errorf("not known:\n%s\nwant\n%s", strings.Join(r.NotKnown, "\n"), strings.Join(want, "\n"))
	}
}

// Later events change nothing, except for verdicts that are no longer kept, which the report
// mentions.
func TestLaterRecords(t *testing.T) {
	var before, after, dropped bytes.Buffer
	all := records()[:1]
	write := func(out io.Writer) {
		r := New(day, "", "", "v1")
		r.Add(&all[0], SBOMYes)
		r.Finish(false)
		if err := json.NewEncoder(out).Encode(r); err != nil {
			t.Fatal(err)
		}
	}
	write(&before)
	all[0].Status.Until, all[0].Status.MostPods, all[0].ResourceVersion = until(50), 9, "1000"
	all[0].Status.Verdicts = append(all[0].Status.Verdicts, imageruns.RunVerdict{Since: at(49), Verified: "Unsigned"})
	all[0].Status.Unseen[3].Until = until(50)
	if write(&after); before.String() != after.String() {
		t.Errorf("what happened later is in the report:\n%s\n%s", &before, &after)
	}
	all[0].Status.Verdicts, all[0].Status.VerdictsDropped = slices.Delete(all[0].Status.Verdicts, 1, 2), 1
	if write(&dropped); !strings.Contains(dropped.String(), "are no longer kept") || !strings.Contains(dropped.String(), `"verdictFirst":{"since":null,"verified":"Unknown"}`) {
		t.Errorf("verdicts that were dropped: %s", &dropped)
	}
}

// Untrusted text becomes neither markup, nor a formula, nor a line break.
func TestStrangersTexts(t *testing.T) {
	var html, text, sheet bytes.Buffer
	r := report([]int{0, 1, 2, 3})
	for out, write := range map[*bytes.Buffer]func(io.Writer) error{&html: r.HTML, &text: r.Text, &sheet: r.CSV} {
		if err := write(out); err != nil {
			t.Fatal(err)
		}
	}
	for name, out := range map[string]string{"html": html.String(), "text": text.String(), "csv": sheet.String()} {
		if strings.Contains(out, "\x1b") {
			t.Errorf("%s has an escape sequence", name)
		}
	}
	if s := html.String(); strings.Contains(s, "<script") || !strings.Contains(s, "&lt;script&gt;") || strings.Contains(s, "http://") || strings.Contains(s, "https://") {
		t.Errorf("the page has markup of strangers, or names another host:\n%s", s)
	}
	lines, err := csv.NewReader(&sheet).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		for _, cell := range line {
			if strings.HasPrefix(cell, "=") || strings.Contains(cell, "\n") {
				t.Errorf("a spreadsheet would compute, or break, %q", cell)
			}
		}
	}
	if want := 1 + 1 + 2 + 3 + 4 + 2 + 1 + len(r.NotKnown); len(lines) != want {
		t.Errorf("%d lines, want %d", len(lines), want)
	}
}

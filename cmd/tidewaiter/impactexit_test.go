package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// A review says "nothing is touched", and exits 0, only if all is known that this needs.
func TestImpactSaysWhatIsUnknown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		summary answers.ImpactSummary
		code    int
		says    string
	}{
		"known":              {answers.ImpactSummary{Examined: 1530, Pods: 0, PodsComplete: true}, cli.ExitOK, "nothing is touched (1530 images examined)"},
		"not imported":       {answers.ImpactSummary{Examined: 1530, Pods: 0, Undecided: 8}, cli.ExitSome, "nothing is known to be touched; of 8 images that pods run it is unknown (1530 images examined)"},
		"a cluster is away":  {answers.ImpactSummary{Examined: 1, Pods: 0}, cli.ExitSome, "nothing is known to be touched; it is unknown whether something that runs is (1 image examined)"},
		"nothing is known":   {answers.ImpactSummary{Examined: 2}, cli.ExitSome, "nothing is known to be touched; it is unknown"},
		"touched, pods away": {answers.ImpactSummary{Images: 1, References: 2, Changes: []answers.ImpactChange{{Before: "True", After: "False", References: 2}}}, cli.ExitSome, "an unknown number of pods runs them, 0 workloads need them\n  True → False: 2 references, an unknown number of pods\n"},
		"touched, more":      {answers.ImpactSummary{Images: 1, References: 2, Pods: 1, Undecided: 1, Changes: []answers.ImpactChange{{Before: "True", After: "False", References: 2, Pods: 1}}}, exitTouched, "1+ pods run them, 0 workloads need them\n  of 1 more image that pods run it is unknown whether the act touches it\n  True → False: 2 references, 1+ pods\n"},
		"one pod, one needs": {answers.ImpactSummary{Images: 1, References: 2, Pods: 1, PodsComplete: true, Workloads: 1}, exitTouched, "1 pod runs them, 1 workload needs them\n"},
		"none runs, needed":  {answers.ImpactSummary{Images: 1, References: 1, PodsComplete: true, Workloads: 1}, exitTouched, "0 pods run them, 1 workload needs them\n"},
		"none runs them":     {answers.ImpactSummary{Images: 1, References: 1, Pods: 0, PodsComplete: true}, cli.ExitOK, "0 pods run them"},
	} {
		var out strings.Builder
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		cmd.SetContext(t.Context())
		o := &impactOptions{}
		if err := o.show(cmd, "acting", &answers.ImpactReview{Status: answers.ImpactReviewStatus{Summary: test.summary}}); err != nil {
			t.Fatal(err)
		}
		code, exit := cli.ExitOK, (*cli.Exit)(nil)
		if errors.As(impactExit(&answers.ImpactReviewStatus{Summary: test.summary}), &exit) {
			code = exit.Code
		}
		if code != test.code || !strings.Contains(out.String(), test.says) {
			t.Errorf("%s exits %d, want %d:\n%s", name, code, test.code, out.String())
		}
	}
}

// That no workload needs it is known only if all workloads are known.
func TestImpactExitWithoutWorkloads(t *testing.T) {
	t.Parallel()
	status := answers.ImpactReviewStatus{Summary: answers.ImpactSummary{PodsComplete: true}, Unknowns: []answers.UnknownPart{{Part: answers.PartNeededBy, Reason: "cluster prod: cronjobs cannot be listed"}}}
	var exit *cli.Exit
	if err := impactExit(&status); !errors.As(err, &exit) || exit.Code != cli.ExitSome || !strings.Contains(err.Error(), "workload") {
		t.Errorf("without the workloads of a cluster it ends with %v", err)
	}
	status.Summary.Workloads = 1
	if err := impactExit(&status); !errors.As(err, &exit) || exit.Code != exitTouched {
		t.Errorf("with a known workload it ends with %v", err)
	}
}

// The exit code about one image is 3 if it is affected, and 1 unless it is known that it is not.
func TestImageExit(t *testing.T) {
	t.Parallel()
	rows := func(effects ...answers.Effect) (all []answers.ImpactRow) {
		for _, effect := range effects {
			all = append(all, answers.ImpactRow{Effect: effect})
		}
		return all
	}
	for name, test := range map[string]struct {
		status answers.ImpactReviewStatus
		code   int
	}{
		"nothing":              {answers.ImpactReviewStatus{}, cli.ExitOK},
		"no cluster":           {answers.ImpactReviewStatus{Unknowns: []answers.UnknownPart{{Part: answers.PartRunning}}}, cli.ExitOK},
		"cleared":              {answers.ImpactReviewStatus{Rows: rows(answers.NotAffected)}, cli.ExitOK},
		"affected":             {answers.ImpactReviewStatus{Rows: rows(answers.NotAffected, answers.MayContain, answers.Contains), OmittedRows: 1}, exitTouched},
		"may be":               {answers.ImpactReviewStatus{Rows: rows(answers.MayContain, answers.NotAffected)}, cli.ExitSome},
		"rows are left out":    {answers.ImpactReviewStatus{Rows: rows(answers.NotAffected), OmittedRows: 1}, cli.ExitSome},
		"no SBOM":              {answers.ImpactReviewStatus{Summary: answers.ImpactSummary{Unlisted: 1}}, cli.ExitSome},
		"an unknown ecosystem": {answers.ImpactReviewStatus{Summary: answers.ImpactSummary{Unchecked: 1}}, cli.ExitSome},
		"unknown image":        {answers.ImpactReviewStatus{Unknowns: []answers.UnknownPart{{Part: "act"}}}, cli.ExitSome},
	} {
		code, exit := cli.ExitOK, (*cli.Exit)(nil)
		if errors.As(imageExit("r.example.com/a:1", &test.status), &exit) {
			code = exit.Code
		}
		if code != test.code {
			t.Errorf("%s exits %d, want %d", name, code, test.code)
		}
	}
}

// What is unknown is said in every format, and so is how much is left out: the lines of jsonl have
// no place for it.
func TestImpactWarnsInEveryFormat(t *testing.T) {
	t.Parallel()
	const why = "no SBOM was read for 4 of 4 images"
	review := &answers.ImpactReview{Status: answers.ImpactReviewStatus{Unknowns: []answers.UnknownPart{{Part: "packages", Reason: why}}, OmittedRows: 1, Summary: answers.ImpactSummary{References: 1}}}
	ran := &everReview{ImpactReview: review, Ran: []touchedRun{{}}, RanOmitted: 2}
	for _, format := range []string{"", cli.Wide, "json", "jsonl", "yaml"} {
		var out, notes strings.Builder
		o, cmd := &impactOptions{}, &cobra.Command{}
		o.addCommonFlags(cmd)
		cmd.SetOut(&out)
		cmd.SetErr(&notes)
		cmd.SetContext(t.Context())
		if format != "" {
			if err := o.output.Set(format); err != nil {
				t.Fatal(err)
			}
		}
		if err := o.print(cmd, "acting", review, ran); err != nil {
			t.Fatal(err)
		}
		want := "Warning: " + why + "\n"
		switch format {
		case "jsonl": // the others have the number of what is left out
			want += "Warning: 1 more row is not listed; --max-rows lists more of them\nWarning: 2 more stretches are not listed; --max-rows lists more of them\n"
		case "json", "yaml":
			if !strings.Contains(out.String(), "omittedRows") || !strings.Contains(out.String(), "ranOmitted") {
				t.Errorf("-o %s does not count what is left out: %s", format, out.String())
			}
		default:
			if !strings.Contains(out.String(), "and 1 more; ") || !strings.Contains(out.String(), "and 2 more; ") {
				t.Errorf("-o %q does not count what is left out: %s", format, out.String())
			}
		}
		if notes.String() != want {
			t.Errorf("-o %s warns %q, want %q", format, notes.String(), want)
		}
	}
}

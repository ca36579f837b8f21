package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

// verifyCodes are the exit codes of verify, the best first.
var verifyCodes = []int{exitTrusted, exitExcepted, exitUntrusted, exitUndeclared}

// references are the arguments, as they were given, and the lines of the files.
func (o *verifyOptions) references(cmd *cobra.Command, args []string) ([]string, error) {
	jobs, err := bulk.CollectJobs(nil, o.files, cmd.InOrStdin(), bulk.ParseImage)
	if err != nil {
		return nil, &cli.Exit{Code: cli.ExitUsage, Err: err}
	}
	all := slices.Clone(args)
	for _, j := range jobs {
		if j.Kind != bulk.ImportJob {
			return nil, cli.Misuse(fmt.Errorf("%s stands for many tags, and verify takes references", j.Ref), "name each tag in a line of its own")
		}
		all = append(all, j.Ref.String())
	}
	if len(all) == 0 {
		return nil, cli.Misuse(fmt.Errorf("no reference is in %s", strings.Join(o.files, ", ")), "a line has a reference, such as registry.example.com/team/app:v1")
	}
	return all, nil
}

// failedLine is the line of a reference that could not be judged, as import has it.
func failedLine(arg string, err error) bulk.Line {
	text, _ := cli.Explain("verify", err)
	return bulk.Line{Reference: arg, Outcome: "failed", Reason: cmp.Or(pull.ReasonOf(err), pull.Failed), Error: text}
}

// verdictList is what -o json prints about several references.
type verdictList struct {
	// Items are answers, and a bulk.Line for each reference that could not be judged.
	Items []any `json:"items"`
}

// verifyEach judges several references. One that fails does not stop the others.
func (o *verifyOptions) verifyEach(cmd *cobra.Command, by judge, references []string) error {
	table := cli.Table{Columns: []string{"VERDICT", "REFERENCE", "DIGEST", "POLICY", "REASON…"}}
	d, list, worst, failed := cli.Document{}, verdictList{Items: []any{}}, 0, 0
	for _, arg := range references {
		one, code := cli.Document{}, exitUndeclared
		report, err := by.judge(cmd.Context(), arg, cmd.ErrOrStderr())
		switch {
		case cmd.Context().Err() != nil:
			return err
		case err != nil:
			line := failedLine(arg, err)
			failed, one.Items = failed+1, []any{line}
			table.Rows = append(table.Rows, []string{verdicts.VerifiedUnknown, arg, "", "", line.Error})
		default:
			one.Items, one.Names = []any{report}, []string{imageName(report.Digest)}
			table.Rows = append(table.Rows, report.cells())
			code = report.code()
		}
		worst = max(worst, slices.Index(verifyCodes, code))
		if list.Items = append(list.Items, one.Items...); o.output.Lines() { // as soon as it is known
			if err := o.output.Print(cmd.OutOrStdout(), one); err != nil {
				return err
			}
		}
	}
	d.Whole = list
	var err error
	switch {
	case o.output.ForPeople():
		err = table.Print(cmd.OutOrStdout())
	case !o.output.Lines():
		err = o.output.Print(cmd.OutOrStdout(), d)
	}
	if err != nil || verifyCodes[worst] == exitTrusted {
		return err
	}
	if failed > 0 {
		err = fmt.Errorf("%d of %d references could not be judged", failed, len(references))
	}
	return &cli.Exit{Code: verifyCodes[worst], Err: err}
}

// code is the exit code of an answer.
func (r *verdictReport) code() int {
	if exit, ok := errors.AsType[*cli.Exit](r.exit()); ok {
		return exit.Code
	}
	return exitTrusted
}

// cells are the row of an answer among others.
func (r *verdictReport) cells() []string {
	why := strings.Join(slices.DeleteFunc([]string{r.Reason, r.Message}, func(s string) bool { return s == "" }), ": ")
	return []string{r.Verified, r.Reference, r.Digest, verdicts.Policies(strings.Split(r.Policy, ","), r.Spared), why}
}

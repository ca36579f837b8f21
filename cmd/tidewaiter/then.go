package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// atHelp is the help on --at of the verbs that look images up.
const atHelp = `--at shows what was known at a time, such as 2026-11-24T16:45:00Z or, in the time zone
of this machine, "2026-11-24 16:45". What was not recorded then is named.`

// atFlag is a time in the past.
type atFlag struct{ text string }

func (a *atFlag) addFlag(f *pflag.FlagSet, usage string) { f.StringVar(&a.text, "at", "", usage) }

// time reads the flag; ok is false if it is not given.
func (a *atFlag) time(now time.Time) (at time.Time, ok bool, err error) {
	if a.text == "" {
		return at, false, nil
	}
	if at, err = parseTime("--at", a.text); err == nil && at.After(now) {
		err = cli.Misuse(fmt.Errorf("--at: %s is in the future", a.text), "leave out --at to see what is known now")
	}
	return at, true, err
}

// eachRun calls use with each page of the stretches that fields select, in a namespace or in all.
func eachRun(ctx context.Context, config *restclient.Config, namespace string, selected fields.Set, use func([]imageruns.ImageRun) error) error {
	client, err := pathClient(config)
	if err != nil {
		return err
	}
	path := "/apis/" + answers.GroupVersion.String() + "/" + imageruns.Resource
	if namespace != metav1.NamespaceAll {
		path = "/apis/" + answers.GroupVersion.String() + "/namespaces/" + namespace + "/" + imageruns.Resource
	}
	return pages.Each(ctx, metav1.ListOptions{Limit: pages.Size}, func(ctx context.Context, options metav1.ListOptions) (*imageruns.ImageRunList, error) {
		raw, err := client.Get().AbsPath(path).Param("fieldSelector", selected.AsSelector().String()).Param("limit", fmt.Sprint(options.Limit)).Param("continue", options.Continue).Do(ctx).Raw()
		page := &imageruns.ImageRunList{}
		if err == nil {
			err = json.Unmarshal(raw, page)
		}
		return page, err
	}, func(page *imageruns.ImageRunList) error { return use(page.Items) })
}

// allRuns returns the stretches that fields select, if they are not too many for a table.
func allRuns(ctx context.Context, config *restclient.Config, namespace string, selected fields.Set) (all []imageruns.ImageRun, err error) {
	err = eachRun(ctx, config, namespace, selected, func(page []imageruns.ImageRun) error {
		all = append(all, page...)
		return notTooMany(all)
	})
	return all, err
}

// notTooMany fails if there are more stretches than a table has.
func notTooMany(all []imageruns.ImageRun) error {
	if len(all) > maxRan {
		return cli.WithHint(fmt.Errorf("more than %d stretches ran", maxRan), "tidewaiter ran -o jsonl and -o csv print them all; --from, --until, --cluster, -n and REF ask for fewer")
	}
	return nil
}

// thenReport is what was known about a reference at a time. -o json prints it as it is.
type thenReport struct {
	Reference string      `json:"reference"`
	At        metav1.Time `json:"at"`
	// Digest is what the tag led to; it is empty if the registry did not have the tag, or if it is
	// not known.
	Digest string `json:"digest,omitempty"`
	// Since is since when the tag had led there, and By who recorded that.
	Since *metav1.Time `json:"since,omitempty"`
	By    string       `json:"by,omitempty"`
	// Verified is the verdict for the reference. If it was not the same in all namespaces, each is
	// named.
	Verified string   `json:"verified"`
	Reason   string   `json:"reason,omitempty"`
	Signers  []string `json:"signers,omitempty"`
	// Runs are the stretches in which the image ran then, or in which something named it.
	Runs []imageruns.ImageRun `json:"runs"`
	// Unknown says what is not known about that time.
	Unknown []string `json:"unknown,omitempty"`
}

// then finds what was known about a reference at a time.
func (l *looker) then(ctx context.Context, asked string, at time.Time) (*thenReport, error) {
	config, notes := withWarnings(l.Config)
	f, absent := l.find(ctx, asked, "") // what is not imported may have run all the same
	if f == nil {
		return nil, absent
	}
	r := &thenReport{Reference: cmp.Or(f.Meaning.Reference, f.Meaning.Digest, strings.TrimSpace(asked)), At: metav1.NewTime(at.UTC()), Runs: []imageruns.ImageRun{}, Digest: f.Meaning.Digest}
	if f.Meaning.Tag != "" {
		if err := l.ledThen(ctx, f, r); err != nil {
			return nil, err
		}
	}
	seen := map[string]bool{}
	for _, image := range []string{r.Reference, r.Digest} {
		if image == "" {
			continue
		}
		runs, err := allRuns(ctx, config, l.namespace, fields.Set{"image": image, "at": at.UTC().Format(time.RFC3339)})
		if apierrors.IsForbidden(err) {
			r.Unknown = append(r.Unknown, "what ran then may not be listed: "+err.Error())
			break
		}
		if err != nil {
			return nil, err
		}
		for _, run := range runs {
			if !seen[run.Namespace+"/"+run.Name] {
				seen[run.Namespace+"/"+run.Name] = true
				r.Runs = append(r.Runs, run)
			}
		}
	}
	if absent != nil && len(r.Runs) == 0 {
		return nil, absent
	}
	r.judgedThen(f)
	r.Unknown = append(r.Unknown, notes.all...)
	return r, nil
}

// ledThen fills in where the tag led.
func (l *looker) ledThen(ctx context.Context, f *found, r *thenReport) error {
	r.Digest = ""
	tag, err := l.history(ctx, f)
	if apierrors.IsNotFound(err) {
		r.Unknown = append(r.Unknown, fmt.Sprintf("where %s led is not recorded", r.Reference))
		return nil
	}
	if err != nil {
		return err
	}
	history := historyOf(tag)
	item, unknown := history.at(r.At.Time)
	if item == nil {
		r.Unknown = append(r.Unknown, unknown)
		return nil
	}
	r.Digest, r.Since, r.By = item.Digest, &item.Created, item.By
	if item.Digest == "" {
		r.Unknown = append(r.Unknown, fmt.Sprintf("the registry did not have %s", r.Reference))
	}
	return nil
}

// at returns where the tag led at a time. If that is not recorded, item is nil and unknown says so.
func (r *historyReport) at(at time.Time) (item *historyItem, unknown string) {
	for i := range r.Items {
		if !r.Items[i].Created.After(at) {
			return &r.Items[i], ""
		}
	}
	if n := len(r.Items); n > 0 {
		return nil, fmt.Sprintf("where %s led is not recorded before %s", r.Reference, stamp(r.Items[n-1].Created))
	}
	return nil, fmt.Sprintf("where %s led is not recorded", r.Reference)
}

// judgedThen fills in the verdict that was known then, of the image that ran under this reference.
func (r *thenReport) judgedThen(f *found) {
	w := imageruns.Window{From: r.At.Time, Until: r.At.Time}
	var all []string
	for i := range r.Runs {
		run := &r.Runs[i]
		named := podimages.Parse(run.Spec.Image).String() == r.Reference
		if !named && f.Meaning.Tag != "" || r.Digest != "" && run.Spec.Digest != r.Digest {
			continue
		}
		v := w.Last(run)
		if !slices.Contains(all, v.Verified) {
			all = append(all, v.Verified)
		}
		r.Signers, r.Reason = v.Signers, cmp.Or(v.Message, v.Reason)
	}
	if len(all) != 1 {
		r.Signers, r.Reason = nil, ""
	}
	slices.Sort(all)
	if r.Verified = strings.Join(all, ", "); r.Verified == "" {
		r.Verified = verdicts.VerifiedUnknown
		r.Unknown = append(r.Unknown, fmt.Sprintf("the verdict for %s is recorded only while something runs it by that name, and nothing is known to have run it so at %s", r.Reference, stamp(r.At)))
	}
}

// known is an error if nothing is known about that time.
func (r *thenReport) known() error {
	if r.Since == nil && len(r.Runs) == 0 {
		return &cli.Exit{Code: exitAbsent, Err: errors.New(strings.Join(r.Unknown, "; "))}
	}
	return nil
}

// line prints the report as get does.
func (r *thenReport) line(out io.Writer) error {
	since := tablecells.Unknown
	if r.Since != nil {
		since = minute(*r.Since)
	}
	pods, workloads := int32(0), map[string]bool{}
	for i := range r.Runs {
		pods += r.Runs[i].Status.MostPods
		workloads[r.Runs[i].Spec.Cluster+"/"+r.Runs[i].Namespace+"/"+r.Runs[i].Spec.Workload] = true
	}
	t := cli.Table{
		Columns: []string{"IMAGE", "DIGEST", "SINCE", "VERDICT", "PODS AT MOST", "WORKLOADS", "SIGNER OR REASON…"},
		Rows: [][]string{{
			r.Reference, digestCell(r.Digest), since, r.Verified, fmt.Sprint(pods), fmt.Sprint(len(workloads)), cmp.Or(strings.Join(r.Signers, ", "), r.Reason, tablecells.None),
		}},
	}
	return t.Print(out)
}

// page prints the report as describe does.
func (r *thenReport) page(out io.Writer) error {
	fmt.Fprintf(out, "Reference: %s\nAt:        %s\nDigest:    %s\n", r.Reference, stamp(r.At), cmp.Or(r.Digest, tablecells.Unknown))
	if r.Since != nil {
		fmt.Fprintf(out, "Since:     %s, recorded by %s\n", stamp(*r.Since), cmp.Or(r.By, "unknown"))
	}
	fmt.Fprintf(out, "Verdict:   %s\n", r.Verified)
	if why := cmp.Or(strings.Join(r.Signers, ", "), r.Reason); why != "" {
		fmt.Fprintf(out, "           %s\n", why)
	}
	if len(r.Runs) == 0 {
		_, err := fmt.Fprintln(out, "Ran:       nothing is known to have run it")
		return err
	}
	fmt.Fprintln(out, "Ran:")
	return ranTable(r.Runs, imageruns.Window{From: r.At.Time, Until: r.At.Time}, false).Print(out)
}

// printThen prints what was known about a reference at a time.
func (l *looker) printThen(cmd *cobra.Command, output *cli.Output, asked string, at time.Time, people func(*thenReport, io.Writer) error) error {
	r, err := l.then(cmd.Context(), asked, at)
	if err != nil {
		return err
	}
	if err := r.known(); err != nil {
		return err
	}
	if output.ForPeople() {
		err = people(r, cmd.OutOrStdout())
	} else {
		err = output.Print(cmd.OutOrStdout(), cli.Document{Whole: r, Names: []string{imageName(r.Digest)}})
	}
	if output.ForPeople() || output.Lines() {
		printNotes(cmd, r.Unknown)
	}
	return err
}

// ranThen lists what pods ran at a time, as images does: a row for each image.
func ranThen(runs []imageruns.ImageRun, at time.Time, namespaces bool) *cli.Table {
	w := imageruns.Window{From: at, Until: at}
	type used struct {
		pods int32
		last imageruns.RunVerdict
	}
	all := map[imageUse]*used{}
	var order []imageUse
	for i := range runs {
		r := &runs[i]
		use := imageUse{r.Namespace, r.Spec.Image, r.Spec.Digest}
		if ref := podimages.Parse(r.Spec.Image); ref.Repository != "" {
			use.image = ref.String()
		}
		if all[use] == nil {
			all[use] = &used{}
			order = append(order, use)
		}
		all[use].pods += r.Status.MostPods
		all[use].last = w.Last(r)
	}
	slices.SortFunc(order, compareUses)
	t := &cli.Table{Columns: []string{"IMAGE", "DIGEST", "VERDICT", "PODS AT MOST", "SIGNER OR REASON…"}}
	for _, use := range order {
		v := all[use].last
		row := []string{use.image, digestCell(use.digest), v.Verified, fmt.Sprint(all[use].pods), signerOrReason(v)}
		if namespaces {
			row = append([]string{use.namespace}, row...)
		}
		t.Rows = append(t.Rows, row)
	}
	if namespaces {
		t.Columns = append([]string{"NAMESPACE"}, t.Columns...)
	}
	return t
}

// verdictItem is a verdict for what ran, as history --verdicts prints it.
type verdictItem struct {
	imageruns.RunVerdict `json:",inline"`

	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace"`
	Workload  string `json:"workload"`
	Image     string `json:"image"`
	Digest    string `json:"digest"`
	// Before is the verdict before; it is empty for the first one.
	Before string `json:"before,omitempty"`
}

// verdictItems are the verdicts of stretches, the newest first.
func verdictItems(runs []imageruns.ImageRun) (all []verdictItem) {
	all = []verdictItem{}
	for i := range runs {
		r := &runs[i]
		var before *imageruns.RunVerdict
		for j, v := range r.Status.Verdicts {
			item := verdictItem{RunVerdict: v, Cluster: r.Spec.Cluster, Namespace: r.Namespace, Workload: r.Spec.Workload, Image: r.Spec.Image, Digest: r.Spec.Digest}
			cause := imageruns.Cause(before, v, imageruns.ByUnknown)
			switch {
			case j == 1 && r.Status.VerdictsDropped > 0: // the one before is not kept
				item.Before, cause = verdicts.VerifiedUnknown, fmt.Sprintf("not known: verdicts before it are no longer kept: %d", r.Status.VerdictsDropped)
			case before != nil:
				item.Before = before.Verified
			}
			item.Cause = cmp.Or(v.Cause, cause)
			all = append(all, item)
			before = &v
		}
	}
	slices.Reverse(all) // several may have been found in one second
	slices.SortStableFunc(all, func(a, b verdictItem) int { return b.Since.Compare(a.Since.Time) })
	return all
}

// verdictHistory prints the verdicts for what ran a reference.
func (l *looker) verdictHistory(cmd *cobra.Command, output *cli.Output, asked string) error {
	config, notes := withWarnings(l.Config)
	runs, err := allRuns(cmd.Context(), config, metav1.NamespaceAll, fields.Set{"image": asked})
	if err != nil {
		return err
	}
	all := verdictItems(runs)
	if !output.ForPeople() {
		err = output.Print(cmd.OutOrStdout(), cli.Document{Whole: map[string]any{"reference": asked, "items": all}, Items: cli.ItemsOf(all), Names: ranDocument(runs).Names})
	} else if len(all) > 0 {
		err = verdictTable(all).Print(cmd.OutOrStdout())
	}
	if err != nil {
		return err
	}
	return notes.end(cmd, len(all), false, func() error {
		return &cli.Exit{Code: exitAbsent, Err: fmt.Errorf("no verdict for %s is recorded: nothing is known to have run it", asked)}
	})
}

// verdictTable is the table of verdicts for people.
func verdictTable(all []verdictItem) *cli.Table {
	t := &cli.Table{Columns: []string{"WHEN", "WHERE", "WORKLOAD", "DIGEST", "VERDICT", "BEFORE", "CAUSE", "SIGNER OR REASON…"}, Fixed: []string{"WHEN", "CAUSE"}}
	for _, item := range all {
		t.Rows = append(t.Rows, []string{
			stamp(item.Since), item.Cluster + "/" + item.Namespace, item.Workload, digestCell(item.Digest),
			item.Verified, cmp.Or(item.Before, tablecells.None), item.Cause, signerOrReason(item.RunVerdict),
		})
	}
	return t
}

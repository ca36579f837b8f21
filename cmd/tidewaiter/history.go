package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// historyReport lists what a tag has led to, and is what -o json prints.
type historyReport struct {
	Reference string `json:"reference"`
	// Items are the newest first, at most 100.
	Items []historyItem `json:"items"`

	tagNow `json:",inline"`
}

// tagNow is what is known of a tag beside where it has led.
type tagNow struct {
	// Failing is why the last look at the tag failed, and Since when looks began to fail; items are
	// from before that.
	Failing string       `json:"failing,omitempty"`
	Since   *metav1.Time `json:"failingSince,omitempty"`
	// Overwritten says how the tag has moved although it must not.
	Overwritten *answers.Overwritten `json:"overwritten,omitempty"`
	// Accepted are the moves that users accepted, the newest first.
	Accepted []tags.Acceptance `json:"accepted,omitempty"`
}

// historyItem is one image that a tag has led to.
type historyItem struct {
	// Created is when it was seen.
	Created metav1.Time `json:"created"`
	// Digest is empty if the registry no longer had the tag. Before is empty if the tag is not
	// known to have led anywhere.
	Digest string `json:"digest"`
	Before string `json:"before,omitempty"`
	By     string `json:"by,omitempty"`
}

// newestItem is the first line of -o jsonl.
type newestItem struct {
	historyItem `json:",inline"`
	tagNow      `json:",inline"`
}

func historyOf(tag *imagev1.ImageTag) *historyReport {
	ref, _ := tags.Reference(tag)
	r := &historyReport{Reference: ref.String(), Items: []historyItem{}, tagNow: tagNow{Accepted: tags.Acceptances(tag)}}
	if c := tags.Failure(tag); c != nil {
		r.Failing, r.Since = c.Reason+": "+c.Message, &c.LastTransitionTime
	}
	if tag.Status == nil {
		return r
	}
	by := tags.Writers(tag)
	for i, item := range tag.Status.Items {
		h := historyItem{Created: item.Created, Digest: item.Image}
		if i < len(by) {
			h.By = by[i]
		}
		if i+1 < len(tag.Status.Items) {
			h.Before = tag.Status.Items[i+1].Image
		}
		r.Items = append(r.Items, h)
	}
	return r
}

// outOfDate says why the history may be out of date; it is empty if looks at the tag succeed.
func (r *historyReport) outOfDate() string {
	if r.Failing == "" {
		return ""
	}
	return fmt.Sprintf("out of date: %s for %s", printable.Line(r.Failing, 0), duration.HumanDuration(time.Since(r.Since.Time)))
}

// unconfirmed is printed in place of a history without items.
const unconfirmed = "no registry has confirmed yet where it leads"

// warn warns of what -o name has no place for, and -o jsonl only if there is an item.
func (r *historyReport) warn(w io.Writer) {
	if text := r.outOfDate(); text != "" {
		fmt.Fprintf(w, "Warning: %s\n", text)
	}
	warnOverwritten(w, r.Overwritten)
	if len(r.Items) == 0 {
		fmt.Fprintf(w, "Warning: %s\n", unconfirmed)
	}
}

// lines are the lines of -o jsonl, the newest first, which also has what is known of the tag now.
func (r *historyReport) lines() []any {
	all := cli.ItemsOf(r.Items)
	if len(all) > 0 {
		all[0] = newestItem{r.Items[0], r.tagNow}
	}
	return all
}

func (r *historyReport) print(out io.Writer) error {
	fmt.Fprintln(out, r.Reference)
	if text := r.outOfDate(); text != "" {
		fmt.Fprintln(out, text)
	}
	if r.Overwritten != nil {
		fmt.Fprintf(out, "overwritten: %s; tidewaiter accept %s accepts it\n", printable.Line(r.Overwritten.Message, 0), cli.Quote(r.Reference))
	}
	for _, a := range r.Accepted {
		fmt.Fprintf(out, "accepted: %s at %s by %s%s\n", shortDigest(a.Digest), a.At.UTC().Format(time.RFC3339), printable.Line(a.By, 0), printable.Line(becauseOf(a.Reason), 0))
	}
	if len(r.Items) == 0 {
		_, err := fmt.Fprintln(out, unconfirmed)
		return err
	}
	table := cli.Table{Columns: []string{"WHEN", "AGO", "DIGEST", "BEFORE", "BY…"}}
	for i, item := range r.Items {
		before := "<none>"
		if i+1 < len(r.Items) {
			before = shortDigest(item.Before)
		}
		table.Rows = append(table.Rows, []string{
			item.Created.UTC().Format(time.RFC3339), duration.HumanDuration(time.Since(item.Created.Time)), shortDigest(item.Digest), before, cmp.Or(item.By, tablecells.Unknown),
		})
	}
	return table.Print(out)
}

// becauseOf adds a reason, if there is one.
func becauseOf(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

// shortDigest is a digest that a tag led to, shortened.
func shortDigest(digest string) string {
	return cmp.Or(printable.Line(reference.ShortDigest(digest), 0), "<deleted>")
}

func newHistoryCommand() *cobra.Command {
	o, output, then, judged := &clientOptions{}, &cli.Output{}, atFlag{}, false
	cmd := &cobra.Command{
		Use:   "history REF",
		Short: "Show what a tag has led to, since when, and who recorded it",
		Long: `Show what a tag has led to, newest first: when that was seen, the digest, the digest
before it, and who recorded it (by an import, a webhook or a sweep). Tidewaiter
keeps the last 100 entries of a tag; image streams show the same. The first line of
-o jsonl also has what is known of the tag now, such as that it was overwritten.

` + referenceHelp + `
A digest has no history; tidewaiter describe shows which tags lead to it.

--at ends with what the tag led to at a time, such as 2026-11-24T16:45:00Z. --verdicts lists
the verdicts for REF, which may be a digest then, of what ran it: each that began, with its
cause as far as that and the one before tell. They are recorded while something runs it.

The exit code is 0 if the tag is known, 1 if it is not, and 2 if REF is ambiguous or
not a tag, or the server did not answer.`,
		Example: `  tidewaiter history registry.example.com/team/app:v1

  # When did its verdict change, and why?
  tidewaiter history --verdicts registry.example.com/team/app:v1

  # For programs
  tidewaiter history -o json registry.example.com/team/app:v1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			at, past, err := then.time(time.Now())
			if err != nil {
				return err
			}
			l, err := o.looker(cmd)
			if err != nil {
				return err
			}
			if judged {
				return l.verdictHistory(cmd, output, args[0])
			}
			f, err := l.find(cmd.Context(), args[0], "")
			if err != nil {
				return err
			}
			if f.Meaning.Tag == "" || f.Checked.Since == nil && f.State == answers.Found {
				return cli.WithHint(fmt.Errorf("%s is not a tag with a history", f.name()), "tags that lead to it now: %s", cmp.Or(strings.Join(f.Meaning.Tags, ", "), "none"))
			}
			tag, err := l.history(cmd.Context(), f)
			if err != nil {
				return err
			}
			report := historyOf(tag)
			report.Overwritten = f.Checked.Overwritten
			if past {
				item, unknown := report.at(at)
				if item == nil {
					return &cli.Exit{Code: exitAbsent, Err: errors.New(unknown)}
				}
				report.Items = slices.DeleteFunc(report.Items, func(h historyItem) bool { return h.Created.After(at) })
				report.Failing, report.Since, report.Overwritten = "", nil, nil
				report.Accepted = slices.DeleteFunc(report.Accepted, func(a tags.Acceptance) bool { return a.At.After(at) })
			}
			if output.ForPeople() {
				return report.print(cmd.OutOrStdout())
			}
			if output.Lines() {
				report.warn(cmd.ErrOrStderr())
			}
			name := "imagetag." + imagev1.GroupName + "/" + tag.Name
			return output.Print(cmd.OutOrStdout(), cli.Document{Whole: report, Items: report.lines(), Names: []string{name}})
		},
	}
	then.addFlag(cmd.Flags(), "end with what the tag led to at this time")
	cmd.Flags().BoolVar(&judged, "verdicts", false, "list the verdicts that were recorded while it ran")
	cmd.MarkFlagsMutuallyExclusive("at", "verdicts")
	output.AddFlag(cmd, "a page", cli.ListFormats...)
	cmd.ValidArgsFunction = o.completeReferences(1)
	o.addFlags(cmd)
	return cmd
}

// maxLeading is how many of the tags that lead to an image are shown.
const maxLeading = 20

// leading returns the histories of tags that lead to an image now.
func (l *looker) leading(ctx context.Context, image string) (all []*historyReport, err error) {
	list, err := l.client.ListTags(ctx, metav1.ListOptions{Limit: maxLeading, FieldSelector: fields.OneTermEqualSelector(selectors.TagImage, image).String()})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		all = append(all, historyOf(&list.Items[i]))
	}
	return all, nil
}

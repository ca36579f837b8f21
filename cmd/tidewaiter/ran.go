package main

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

type ranOptions struct {
	clientOptions
	output                     cli.Output
	cluster, namespace         string
	workload, verified         string
	allNamespaces              bool
	at, from, until, sinceText string
	now                        func() time.Time
}

// maxRan is how many stretches a table or a document has.
const maxRan = 10_000

func newRanCommand() *cobra.Command {
	o := &ranOptions{now: time.Now}
	cmd := &cobra.Command{
		Use:   "ran [REF]",
		Short: "List what ran when, in the clusters that the server follows, and what its verdict was then",
		Long: `List what ran: a row for each stretch of time in which a workload ran an image in a
container, with its beginning and end in UTC, how many pods ran it at once at most, the
last verdict that was known in the time asked about, and how long the cluster could not
be seen meanwhile. A question mark after an end says that the workload was gone when the
cluster was seen again: it ended at some time before.

--at asks about a moment, --from and --until about a time, --since about the time from
then until now: a duration such as 12h or 5d. Times are like 2026-11-24T16:45:00Z, or, in
the time zone of this machine, 2026-11-24 16:45 or 2026-11-24.

` + referenceHelp + `

What is not known is said on standard error: from when on records are whole, and when a
cluster could not be seen.

kubectl shows the same: kubectl get imageruns -A --field-selector image=REF,at=TIME.

The exit code is 0, also if nothing ran; and 2 if nothing is known to have run, but not
everything is known about the time.`,
		Example: `  # What ran in namespace qa last Tuesday at 16:45?
  tidewaiter ran -n qa --at "2026-11-24 16:45"

  # When did this digest run, and where?
  tidewaiter ran 2bdcd6f6c8a7

  # What was deployed to staging in the last five days?
  tidewaiter ran --cluster staging --since 5d`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(cmd, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.cluster, "cluster", "", "list what ran in this cluster; local is the server's own pods")
	f.StringVarP(&o.namespace, "namespace", "n", "", "list what ran in this namespace (default: all)")
	f.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "list what ran in all namespaces, as without -n")
	f.StringVar(&o.workload, "workload", "", "list what this workload ran: KIND/NAME, or NAME")
	f.StringVar(&o.verified, "verified", "", "list what had this verdict in the time asked about")
	f.StringVar(&o.at, "at", "", "list what ran at this time")
	f.StringVar(&o.from, "from", "", "list what ran at this time or later")
	f.StringVar(&o.until, "until", "", "list what ran at this time or earlier")
	f.StringVar(&o.sinceText, "since", "", "list what ran in this time until now, such as 12h or 5d")
	cmd.MarkFlagsMutuallyExclusive("at", "from", "since")
	cmd.MarkFlagsMutuallyExclusive("at", "until")
	cmd.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	o.output.AddFlag(cmd, "a table", append([]string{cli.Wide, "csv"}, cli.ListFormats...)...)
	cli.Complete(cmd, "verified", verdicts.All...)
	cmd.ValidArgsFunction = o.completeReferences(1)
	o.addFlags(cmd)
	o.completeNames(cmd)
	return cmd
}

// parseTime reads a time as people write it.
func parseTime(flag, text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04", "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, cli.Misuse(fmt.Errorf("%s: %q is not a time", flag, text), "%s 2026-11-24T16:45:00Z, or %s \"2026-11-24 16:45\"", flag, flag)
}

// parseAge reads a duration, which may be in days.
func parseAge(flag, text string) (time.Duration, error) {
	d, err := config.ParseAge(text)
	if err != nil || d < 0 {
		return 0, cli.Misuse(fmt.Errorf("%s: %q is not a duration", flag, text), "%s 12h, or %s 5d", flag, flag)
	}
	return d, nil
}

// window reads the flags about times.
func (o *ranOptions) window() (w imageruns.Window, err error) {
	read := func(flag, text string, into *time.Time) {
		if text != "" && err == nil {
			*into, err = parseTime(flag, text)
		}
	}
	read("--from", o.from, &w.From)
	read("--until", o.until, &w.Until)
	if read("--at", o.at, &w.From); o.at != "" {
		w.Until = w.From
	}
	if o.sinceText != "" && err == nil {
		var age time.Duration
		age, err = parseAge("--since", o.sinceText)
		w.From = o.now().Add(-age)
	}
	if w.Until.IsZero() && !w.From.IsZero() {
		w.Until = o.now()
	}
	if err == nil && w.From.After(o.now()) {
		err = cli.Misuse(fmt.Errorf("%s is in the future", w.From.Format(time.RFC3339)), "what ran is recorded until now: %s", o.now().UTC().Format(time.RFC3339))
	}
	if err == nil && w.Until.Before(w.From) {
		err = cli.Misuse(fmt.Errorf("the time ends at %s, before it begins", w.Until.Format(time.RFC3339)), "--from is before --until")
	}
	return w, err
}

// selector has the flags as fields.
func (o *ranOptions) selector(args []string, w imageruns.Window) fields.Set {
	s := fields.Set{}
	set := func(field, value string) {
		if value != "" {
			s[field] = value
		}
	}
	set("cluster", o.cluster)
	set("workload", o.workload)
	set("verified", o.verified)
	if len(args) == 1 {
		set("image", args[0])
	}
	if o.at != "" {
		set("at", w.From.UTC().Format(time.RFC3339))
		return s
	}
	if !w.From.IsZero() {
		set("from", w.From.UTC().Format(time.RFC3339))
	}
	if !w.Until.IsZero() {
		set("until", w.Until.UTC().Format(time.RFC3339))
	}
	return s
}

func (o *ranOptions) run(cmd *cobra.Command, args []string) error {
	w, err := o.window()
	if err != nil {
		return err
	}
	l, err := o.looker(cmd)
	if err != nil {
		return err
	}
	config, notes := withWarnings(l.Server.Config)
	print := o.printer(cmd.OutOrStdout(), w)
	found := 0
	err = eachRun(cmd.Context(), config, o.namespace, o.selector(args, w), func(page []imageruns.ImageRun) error {
		found += len(page)
		return print.add(page)
	})
	if err != nil {
		return ranFailed(err, o.namespace, l.Server)
	}
	if found == 0 {
		if err := l.noRuns(cmd.Context(), o.cluster); err != nil {
			return err
		}
	}
	if err := print.end(); err != nil {
		return err
	}
	return notes.end(cmd, found, w != (imageruns.Window{}), func() error {
		if o.output.ForPeople() {
			return noResources(cmd, o.namespace)
		}
		return nil
	})
}

// ranFailed is the error if what ran in a namespace, or in all, could not be listed.
func ranFailed(err error, namespace string, server apiTarget) error {
	switch {
	case apierrors.IsForbidden(err) && namespace == "":
		return cli.WithHint(cli.Refused(err.Error()), "-n NAMESPACE lists what ran in one whose pods you may read")
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s does not record what runs", server.destination())
	}
	return err
}

// end prints what is not known. If nothing was found about a time, that is an error where something
// may have run; otherwise end calls nothing.
func (w *warnings) end(cmd *cobra.Command, found int, ofTime bool, nothing func() error) error {
	printNotes(cmd, w.all)
	switch {
	case found > 0:
		return nil
	case ofTime && len(w.all) > 0:
		return &cli.Exit{Code: cli.ExitNone, Err: errors.New("nothing is known to have run then, but not everything is known about that time")}
	}
	return nothing()
}

// printNotes prints what is not known.
func printNotes(cmd *cobra.Command, notes []string) {
	for _, text := range notes {
		fmt.Fprintln(cmd.ErrOrStderr(), "Note: "+text)
	}
}

// withWarnings returns a copy of a configuration whose clients collect the server's warnings.
func withWarnings(config *restclient.Config) (*restclient.Config, *warnings) {
	collected := &warnings{seen: map[string]bool{}}
	config = restclient.CopyConfig(config)
	config.WarningHandler = collected
	return config, collected
}

// warnings collects the warnings of a server, each once.
type warnings struct {
	mu   sync.Mutex
	all  []string
	seen map[string]bool
}

// HandleWarningHeader is part of rest.WarningHandler.
func (w *warnings) HandleWarningHeader(code int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if code == 299 && text != "" && !w.seen[text] {
		w.seen[text] = true
		w.all = append(w.all, text)
	}
}

// ranPrinter prints stretches.
type ranPrinter struct {
	add func([]imageruns.ImageRun) error
	end func() error
}

func (o *ranOptions) printer(out io.Writer, w imageruns.Window) ranPrinter {
	switch o.output.String() {
	case "csv":
		c := csv.NewWriter(out)
		return ranPrinter{func(page []imageruns.ImageRun) error {
			for i := range page {
				_ = c.Write(ranRecord(&page[i], w)) // Flush returns the error
			}
			c.Flush()
			return c.Error()
		}, func() error { return nil }}.begun(c.Write([]string{"cluster", "namespace", "workload", "container", "image", "digest", "platform", "from", "until", "endUnseen", "mostPods", "verifiedFirst", "verifiedLast", "unseenSeconds", "unseenSince", "admission", "verified", "signers", "reason"}), c.Flush)
	case "jsonl":
		return ranPrinter{func(page []imageruns.ImageRun) error {
			return o.output.Print(out, cli.Document{Items: cli.ItemsOf(page)})
		}, func() error { return nil }}
	}
	all := &imageruns.ImageRunList{}
	return ranPrinter{func(page []imageruns.ImageRun) error {
		all.Items = append(all.Items, page...)
		return notTooMany(all.Items)
	}, func() error {
		if !o.output.ForPeople() {
			return o.output.Print(out, ranDocument(all.Items))
		}
		if len(all.Items) == 0 {
			return nil
		}
		return ranTable(all.Items, w, o.output.Wide()).Print(out)
	}}
}

// ranDocument is a list of stretches for programs.
func ranDocument(all []imageruns.ImageRun) cli.Document {
	list := &imageruns.ImageRunList{TypeMeta: metav1.TypeMeta{APIVersion: answers.GroupVersion.String(), Kind: "ImageRunList"}, Items: append([]imageruns.ImageRun{}, all...)}
	d := cli.Document{Whole: list, Items: cli.ItemsOf(list.Items)}
	for i := range all {
		d.Names = append(d.Names, "imagerun."+answers.GroupVersion.Group+"/"+all[i].Name)
	}
	return d
}

// begun flushes what was written at the beginning.
func (p ranPrinter) begun(err error, flush func()) ranPrinter {
	if flush(); err != nil {
		p.add = func([]imageruns.ImageRun) error { return err }
	}
	return p
}

// ranTable is the table of stretches for people.
func ranTable(all []imageruns.ImageRun, w imageruns.Window, wide bool) *cli.Table {
	t := &cli.Table{Columns: []string{"WHERE", "WORKLOAD", "IMAGE", "DIGEST", "FROM", "UNTIL", "PODS", "VERDICT", "UNSEEN"}, Fixed: []string{"FROM", "UNTIL"}}
	if wide {
		t.Columns = append(t.Columns, "CONTAINER", "PLATFORM", "SIGNER OR REASON…")
	}
	for i := range all {
		r := &all[i]
		v := w.Last(r)
		row := []string{
			r.Spec.Cluster + "/" + r.Namespace, r.Spec.Workload, r.Spec.Image, digestCell(r.Spec.Digest),
			minute(r.Spec.From), untilCell(r), fmt.Sprint(r.Status.MostPods), v.Verified, imageruns.UnseenFor(r),
		}
		if wide {
			row = append(row, r.Spec.Container, cmp.Or(r.Spec.Platform, tablecells.Unknown), signerOrReason(v))
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}

// untilCell is the end of a stretch as a table has room for it.
func untilCell(r *imageruns.ImageRun) string {
	switch {
	case r.Status.Until == nil:
		return tablecells.None
	case imageruns.EndUnseen(r):
		return minute(*r.Status.Until) + "?"
	}
	return minute(*r.Status.Until)
}

// digestCell is a digest as a table has room for it.
func digestCell(digest string) string {
	return cmp.Or(strings.TrimPrefix(reference.ShortDigest(digest), "sha256:"), tablecells.Unknown)
}

// signerOrReason says who signed, or else why the verdict is what it is.
func signerOrReason(v imageruns.RunVerdict) string {
	return cmp.Or(strings.Join(v.Signers, ", "), v.Message, v.Reason, tablecells.None)
}

// minute is a time as a table has room for it.
func minute(t metav1.Time) string { return t.UTC().Format("2006-01-02 15:04") }

func stamp(t metav1.Time) string { return t.UTC().Format(time.RFC3339) }

// ranRecord is a line of CSV. The verdict in its last fields is the last one in the time that was
// asked about, as in the table.
func ranRecord(r *imageruns.ImageRun, w imageruns.Window) []string {
	until, unseenSince := "", ""
	if r.Status.Until != nil {
		until = stamp(*r.Status.Until)
	}
	unseen, since := imageruns.Unseen(r)
	if since != nil {
		unseenSince = stamp(*since)
	}
	first, last := verdicts.VerifiedUnknown, verdicts.VerifiedUnknown
	if n := len(r.Status.Verdicts); n > 0 {
		first, last = r.Status.Verdicts[0].Verified, r.Status.Verdicts[n-1].Verified
	}
	then := w.Last(r)
	return []string{
		r.Spec.Cluster, r.Namespace, r.Spec.Workload, r.Spec.Container, r.Spec.Image, r.Spec.Digest, r.Spec.Platform, stamp(r.Spec.From), until,
		fmt.Sprint(imageruns.EndUnseen(r)), fmt.Sprint(r.Status.MostPods), first, last, fmt.Sprint(int64(unseen.Seconds())), unseenSince, cmp.Or(r.Status.Admission, imageruns.AdmissionUnknown),
		then.Verified, strings.Join(then.Signers, ", "), then.Reason,
	}
}

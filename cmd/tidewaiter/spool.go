package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/job"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/web/admin"
)

// spoolOptions are the flags of the spool's verbs.
type spoolOptions struct {
	clientOptions
	state  string
	all    bool
	output cli.Output
}

func newSpoolCommand() *cobra.Command {
	o := &spoolOptions{}
	cmd := &cobra.Command{
		Use:   "spool",
		Short: "Manage the pushes that wait to be imported",
		Long: `Manage the pushes that wait to be imported: registries reported them
to a running server by webhook. Notifications that wait to be sent are listed after
them. A job that fails is retried with growing pauses; a job that failed too often
is dead, and is kept until you retry or drop it.`,
		Example: `  # List jobs that wait, run, or were given up, with the reason
  tidewaiter spool list

  # Retry every job that was given up
  tidewaiter spool retry --all`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	list := &cobra.Command{
		Use:     "list",
		Short:   "List the jobs",
		Example: "  tidewaiter spool list --state dead",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return o.list(cmd) },
	}
	list.Flags().StringVar(&o.state, "state", "", "only jobs in this state: waiting, leased or dead")
	cli.Complete(list, "state", "waiting", "leased", "dead")
	o.output.AddFlag(list, "a table; name prints the IDs that retry and drop take", cli.ListFormats...)
	retry := o.changeCommand("retry", "Run jobs now that wait or were given up")
	drop := o.changeCommand("drop", "Forget jobs; their images are not imported")
	for _, c := range []*cobra.Command{list, retry, drop} {
		o.addFlags(c)
		cmd.AddCommand(c)
	}
	return cmd
}

func (o *spoolOptions) changeCommand(do, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     do + " ID...",
		Short:   short,
		Example: fmt.Sprintf("  tidewaiter spool %s 17\n  tidewaiter spool %s --all", do, do),
		RunE:    func(cmd *cobra.Command, args []string) error { return o.change(cmd, do, args) },
	}
	cmd.Flags().BoolVar(&o.all, "all", false, "all jobs that were given up")
	return cmd
}

func (o *spoolOptions) list(cmd *cobra.Command) error {
	client, _, err := o.runningClient(cmd)
	if err != nil {
		return err
	}
	table := cli.Table{Columns: []string{"ID", "STATE", "ABOUT", "RECEIVER", "ATTEMPTS", "AGE", "NEXT TRY", "ERROR…"}}
	document, jobs, after := cli.Document{}, []*job.Shown{}, int64(0)
	for {
		query := url.Values{"state": {o.state}, "id": {strconv.FormatInt(after, 10)}}
		answer, err := askSpool(cmd.Context(), client.Get(), query)
		if err != nil {
			return err
		}
		for _, j := range answer.Jobs {
			jobs, after = append(jobs, j), j.ID
			id := strconv.FormatInt(j.ID, 10)
			document.Names = append(document.Names, id)
			table.Rows = append(table.Rows, []string{id, string(j.State), j.Key, j.Source.String(), strconv.Itoa(j.Attempts), duration.HumanDuration(time.Since(j.Enqueued)), nextTry(j), j.Error})
		}
		if len(answer.Jobs) < admin.SpoolPage {
			break
		}
	}
	if !o.output.ForPeople() {
		document.Whole, document.Items = map[string]any{"jobs": jobs}, cli.ItemsOf(jobs)
		return o.output.Print(cmd.OutOrStdout(), document)
	}
	if len(jobs) == 0 {
		none := "the spool is empty"
		if o.state != "" {
			none = "no such job"
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), none)
		return err
	}
	return table.Print(cmd.OutOrStdout())
}

func (o *spoolOptions) change(cmd *cobra.Command, do string, ids []string) error {
	if o.all == (len(ids) > 0) {
		return cli.Misuse(errors.New("give the IDs of jobs, or --all"), "tidewaiter spool list shows the IDs")
	}
	client, _, err := o.runningClient(cmd)
	if err != nil {
		return err
	}
	if o.all {
		ids = []string{""}
	}
	var changed int64
	for _, id := range ids {
		answer, err := askSpool(cmd.Context(), client.Post(), url.Values{"do": {do}, "id": {id}})
		if err != nil {
			return fmt.Errorf("%s %s: %w", do, id, err)
		}
		changed += answer.Changed
	}
	word := map[string]string{"retry": "to be tried again", "drop": "dropped"}[do]
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", tablecells.Quantity(changed, "job"), word)
	return err
}

// nextTry says when a job is tried.
func nextTry(j *job.Shown) string {
	switch {
	case j.State == job.Leased:
		return "now"
	case j.State == job.Dead:
		return "<never>"
	case j.NextTry == nil: // the server is older
		return "<unknown>"
	}
	left := time.Until(*j.NextTry)
	if left <= 0 {
		return "now"
	}
	return "in " + duration.HumanDuration(left)
}

func askSpool(ctx context.Context, request *restclient.Request, query url.Values) (a admin.SpoolAnswer, err error) {
	request = request.AbsPath(admin.SpoolPath)
	for name, values := range query {
		if values[0] != "" {
			request = request.Param(name, values[0])
		}
	}
	body, err := request.DoRaw(ctx)
	if err != nil {
		if len(body) > 0 {
			err = errors.New(string(body[:min(len(body), 1000)]))
		}
		return a, err
	}
	return a, json.Unmarshal(body, &a)
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/db/spool"
)

// spoolPath is where a server shows its spool to administrators.
const spoolPath = "/tidewaiter/spool"

// spoolPage is how many jobs one request lists.
const spoolPage = 500

// spoolJob is a job as the server tells it.
type spoolJob struct {
	ID       int64     `json:"id"`
	Key      string    `json:"key"`
	Receiver string    `json:"receiver"`
	State    string    `json:"state"`
	Due      time.Time `json:"due"`
	Enqueued time.Time `json:"enqueued"`
	Attempts int       `json:"attempts"`
	Error    string    `json:"error,omitempty"`
}

// spoolAnswer is what the server answers; which fields are set depends on what
// it was asked.
type spoolAnswer struct {
	Jobs    []spoolJob `json:"jobs,omitempty"`
	Changed int64      `json:"changed"`
}

// spoolHandler serves the spool: GET lists, POST with do=retry or do=drop
// changes one job (id) or all dead ones.
type spoolHandler struct{ spool *spool.Spool }

// ServeHTTP implements http.Handler.
func (h spoolHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	answer, err := h.serve(r)
	switch {
	case errors.Is(err, spool.ErrNoSuchJob):
		http.Error(w, err.Error(), http.StatusNotFound)
	case errors.Is(err, errBadSpoolRequest):
		http.Error(w, err.Error(), http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // an error means that the client is gone
	}
}

var errBadSpoolRequest = errors.New("bad request")

func (h spoolHandler) serve(r *http.Request) (a spoolAnswer, err error) {
	query := r.URL.Query()
	var id int64
	if s := query.Get("id"); s != "" {
		if id, err = strconv.ParseInt(s, 10, 64); err != nil {
			return a, fmt.Errorf("%w: %q is no job ID", errBadSpoolRequest, s)
		}
	}
	switch do := query.Get("do"); {
	case r.Method == http.MethodGet:
		return h.list(r.Context(), spool.State(query.Get("state")), id)
	case r.Method != http.MethodPost:
		return a, fmt.Errorf("%w: method %s", errBadSpoolRequest, r.Method)
	case do == "retry" && id != 0:
		a.Changed, err = 1, h.spool.Retry(r.Context(), id)
	case do == "retry":
		a.Changed, err = h.spool.RetryDead(r.Context())
	case do == "drop" && id != 0:
		a.Changed, err = 1, h.spool.Drop(r.Context(), id)
	case do == "drop":
		a.Changed, err = h.spool.DropDead(r.Context())
	default:
		err = fmt.Errorf("%w: do is %q, neither retry nor drop", errBadSpoolRequest, do)
	}
	return a, err
}

func (h spoolHandler) list(ctx context.Context, state spool.State, after int64) (a spoolAnswer, err error) {
	switch state {
	case "", spool.Waiting, spool.Leased, spool.Dead:
	default:
		return a, fmt.Errorf("%w: there is no state %q", errBadSpoolRequest, state)
	}
	jobs, err := h.spool.List(ctx, state, after, spoolPage)
	for _, j := range jobs {
		a.Jobs = append(a.Jobs, spoolJob{ID: j.ID, Key: j.Key, Receiver: j.Source, State: string(j.State), Due: j.Due, Enqueued: j.Enqueued, Attempts: j.Attempts, Error: j.Error})
	}
	return a, err
}

// spoolOptions are the flags of the spool's verbs.
type spoolOptions struct {
	clientOptions
	state string
	all   bool
}

func newSpoolCommand() *cobra.Command {
	o := &spoolOptions{}
	cmd := &cobra.Command{
		Use:   "spool",
		Short: "Look after the pushes that wait to be imported",
		Long: `Look after the pushes that wait to be imported: those that registries told a
running server of by webhook. A job that fails is tried again with growing
pauses; one that failed too often is dead, and kept for you to decide.`,
		Example: `  # What waits, what is under way, what was given up and why
  tidewaiter spool list

  # Try everything again that was given up
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
	retry := o.changeCommand("retry", "Have jobs done now that wait or were given up")
	drop := o.changeCommand("drop", "Forget jobs; what they are about is not imported")
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
	client, err := o.plainClient(cmd)
	if err != nil {
		return err
	}
	w := printers.GetNewTabWriter(cmd.OutOrStdout())
	shown, after := 0, int64(0)
	for {
		query := url.Values{"state": {o.state}, "id": {strconv.FormatInt(after, 10)}}
		answer, err := askSpool(cmd.Context(), client.Get(), query)
		if err != nil {
			return err
		}
		for _, j := range answer.Jobs {
			if shown == 0 {
				fmt.Fprintln(w, "ID\tSTATE\tABOUT\tRECEIVER\tATTEMPTS\tAGE\tERROR")
			}
			shown++
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%s\t%s\n", j.ID, j.State, j.Key, j.Receiver, j.Attempts, duration.HumanDuration(time.Since(j.Enqueued)), j.Error)
			after = j.ID
		}
		if len(answer.Jobs) < spoolPage {
			break
		}
	}
	if shown == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "the spool holds no such job")
	}
	return w.Flush()
}

func (o *spoolOptions) change(cmd *cobra.Command, do string, ids []string) error {
	if o.all == (len(ids) > 0) {
		return misuse(errors.New("give the IDs of jobs, or --all"), "tidewaiter spool list shows the IDs")
	}
	client, err := o.plainClient(cmd)
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
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d jobs %s\n", changed, word)
	return err
}

func askSpool(ctx context.Context, request *restclient.Request, query url.Values) (a spoolAnswer, err error) {
	request = request.AbsPath(spoolPath)
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

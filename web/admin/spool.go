package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/tidewaiter/tidewaiter/internal/job"
)

// SpoolPath is where a server shows its spool.
const SpoolPath = "/tidewaiter/spool"

// SpoolPage is how many jobs one request lists.
const SpoolPage = 500

// SpoolAnswer is the server's answer: Jobs to a GET, Changed to a POST.
type SpoolAnswer struct {
	Jobs []*job.Shown `json:"jobs,omitempty"`
	// Changed counts the jobs that were retried or dropped.
	Changed int64 `json:"changed"`
}

// SpoolStore is a spool of jobs.
type SpoolStore interface {
	// List returns up to limit jobs whose ID is greater than after, in the order of
	// their IDs. State "" is every state.
	List(ctx context.Context, state job.State, after int64, limit int) ([]*job.Shown, error)
	// Retry makes a job run now.
	Retry(ctx context.Context, id int64) error
	// RetryDead is Retry for every dead job; it returns how many there were.
	RetryDead(ctx context.Context) (int64, error)
	// Drop forgets a job.
	Drop(ctx context.Context, id int64) error
	// DropDead is Drop for every dead job; it returns how many there were.
	DropDead(ctx context.Context) (int64, error)
}

var errBadSpoolRequest = errors.New("bad request")

// Spool serves a spool. GET lists, by the query's state and from its id on. POST
// with do=retry or do=drop changes one job (id), or all dead ones. Where the spool
// fails with job.ErrNoSuchJob, the answer is 404.
func Spool(s SpoolStore) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a, err := serveSpool(r, s)
		switch {
		case errors.Is(err, job.ErrNoSuchJob):
			http.Error(w, err.Error(), http.StatusNotFound)
		case errors.Is(err, errBadSpoolRequest):
			http.Error(w, err.Error(), http.StatusBadRequest)
		case err != nil:
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		default:
			answer(w, a)
		}
	})
}

func serveSpool(r *http.Request, s SpoolStore) (a SpoolAnswer, err error) {
	query := r.URL.Query()
	var id int64
	if v := query.Get("id"); v != "" {
		if id, err = strconv.ParseInt(v, 10, 64); err != nil {
			return a, fmt.Errorf("%w: %q is not a job ID", errBadSpoolRequest, v)
		}
	}
	ctx := r.Context()
	switch do := query.Get("do"); {
	case r.Method == http.MethodGet:
		a.Jobs, err = listSpool(ctx, s, job.State(query.Get("state")), id)
	case r.Method != http.MethodPost:
		err = fmt.Errorf("%w: method %s", errBadSpoolRequest, r.Method)
	case do == "retry" && id != 0:
		a.Changed, err = 1, s.Retry(ctx, id)
	case do == "retry":
		a.Changed, err = s.RetryDead(ctx)
	case do == "drop" && id != 0:
		a.Changed, err = 1, s.Drop(ctx, id)
	case do == "drop":
		a.Changed, err = s.DropDead(ctx)
	default:
		err = fmt.Errorf("%w: do is %q, must be retry or drop", errBadSpoolRequest, do)
	}
	return a, err
}

func listSpool(ctx context.Context, s SpoolStore, state job.State, after int64) ([]*job.Shown, error) {
	switch state {
	case "", job.Waiting, job.Leased, job.Dead:
		return s.List(ctx, state, after, SpoolPage)
	default:
		return nil, fmt.Errorf("%w: there is no state %q", errBadSpoolRequest, state)
	}
}

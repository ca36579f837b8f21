package bulk

import (
	"fmt"
	"time"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// host has the waiting jobs of a registry in a batch, and how the registry has behaved.
type host struct {
	name    string
	lists   []Job // and dates
	imports []reference.Reference
	listed  bool // the last job to begin was one of lists

	answered bool // it has, at some time
	// round grows when the registry has failed to answer: a job that began in an earlier one ran
	// beside the job that failed first, and is not a further failure.
	round       int
	silences    int       // failures to answer, in a row
	silentSince time.Time // the first of them
	// the registry has asked to be left alone, or refused, since then; zero if it has answered
	busySince time.Time
	// what was refused last; nil if it is not the last that the registry was asked for
	suspect *Job
	noticed time.Time // until when it is paused, as it was last said

	tried map[Job]trials // of jobs that wait again
	// partly is how many imports in a row could not read all signatures
	partly int
}

// trials are those of a job that wait again because its registry failed.
type trials struct {
	times int
	since time.Time
	// alone says that the registry refused it without a time, and answered what it was asked for
	// next.
	alone bool
}

const (
	// maxBusy is how long a registry may ask so again and again. Registries count over six hours at
	// most, as Docker Hub does.
	maxBusy = 6 * time.Hour
	// maxSilence is how long a registry may fail to answer that has answered before, and maxSilent
	// how many times in a row. After these, its jobs are not tried. One that has never answered has
	// only the latter, also if it refuses without saying for how long.
	maxSilence = time.Minute
	maxSilent  = 3
	// maxPartly is after how many imports in a row that could not read all signatures none is tried
	// again for that.
	maxPartly = 16
)

func (h *host) waiting() int { return len(h.lists) + len(h.imports) }

// next takes the job that is next. Lists and imports take turns: then images are imported before
// all is listed.
func (h *host) next() (j Job) {
	if h.listed = len(h.lists) > 0 && (!h.listed || len(h.imports) == 0); h.listed {
		j, h.lists = h.lists[0], h.lists[1:]
		return j
	}
	j.Ref, h.imports = h.imports[0], h.imports[1:]
	return j
}

// answers notes that the registry has answered a job.
func (h *host) answers(e ended) {
	h.answered, h.silences, h.busySince = true, 0, time.Time{}
	if h.suspect == nil || e.round != h.round {
		return
	}
	if t, waits := h.tried[*h.suspect]; waits && *h.suspect != e.Job {
		t.alone = true
		h.tried[*h.suspect] = t
	}
	h.suspect = nil
}

// searchAgain reports whether to import an image once more, after those that wait, because not all
// of its signatures could be read. It does not if that happens to one image after the other.
func (h *host) searchAgain(e ended) bool {
	if e.Kind != ImportJob || e.err != nil {
		return false
	}
	if e.result.Again == nil {
		h.partly = 0
		return false
	}
	h.partly++
	t := h.tried[e.Job]
	t.times++
	h.tried[e.Job] = t
	return t.times < maxSilent && h.partly <= maxPartly
}

// fail notes that the registry, and not what it was asked for, made a job fail, and that it is
// paused until a time. It returns whether to try again; if not, hopeless says why nothing that
// waits for the registry should be tried, or is "".
func (h *host) fail(e ended, why *pull.Error, until, now time.Time) (again bool, hopeless string) {
	t := h.tried[e.Job]
	if t.times == 0 {
		t.since = now
	}
	t.times++
	isEnough := t.times >= maxSilent && now.Sub(t.since) >= maxSilence
	if importer.Unsearched(e.err) && why.IsRefusal() { // the image was read
		h.answers(e)
		if why.RetryAfter > pull.MaxPause {
			return false, fmt.Sprintf("asks for a pause of more than %s", pull.MaxPause)
		}
		if again = t.times < maxSilent; again {
			h.tried[e.Job] = t
		}
		return again, ""
	}
	isFirst := e.round == h.round
	if isFirst {
		h.round++
		h.suspect = nil
	}
	switch asked := why.RetryAfter > 0; {
	case asked || why.Reason == pull.RateLimited && h.answered:
		h.answered, h.silences = true, 0
		if h.busySince.IsZero() {
			h.busySince = now
		}
		switch {
		case why.RetryAfter > pull.MaxPause:
			hopeless = fmt.Sprintf("asks for a pause of more than %s", pull.MaxPause)
		case now.Sub(h.busySince) > maxBusy && asked:
			hopeless = fmt.Sprintf("has asked for pauses for %s", maxBusy)
		case now.Sub(h.busySince) > maxBusy:
			hopeless = fmt.Sprintf("has refused requests for %s", maxBusy)
		}
		again = hopeless == "" && now.Sub(t.since) <= maxBusy && !(t.alone && isEnough && !asked)
		if isFirst && !asked {
			h.suspect = &e.Job
		}
	default:
		if isFirst {
			if h.silences == 0 {
				h.silentSince = now
			}
			h.silences++
		}
		if h.silences >= maxSilent && (!h.answered || now.Sub(h.silentSince) >= maxSilence) {
			hopeless = fmt.Sprintf("did not answer %s in a row", table.Quantity(h.silences, "time"))
			if why.Refused {
				hopeless = fmt.Sprintf("refused %s in a row", table.Quantity(h.silences, "time"))
			}
		}
		again = hopeless == "" && (h.answered || why.Refused) && !isEnough
	}
	if again {
		h.tried[e.Job] = t
	}
	return again, hopeless
}

// notice says that the registry is waited for; "" if that was said.
func (h *host) notice(why *pull.Error, until, now time.Time) string {
	if !until.After(h.noticed) {
		return ""
	}
	h.noticed = until
	pause := until.Sub(now).Round(time.Second)
	what := "does not answer"
	switch asked := why.RetryAfter.Round(time.Second); {
	case asked >= pause:
		return fmt.Sprintf("%s asks for a pause of %s; %s for it", h.name, pause, table.Clause(h.waiting(), "reference", "wait"))
	case why.RetryAfter > 0:
		what = fmt.Sprintf("asks again and again for a pause of %s", asked)
	case why.Refused:
		what = "refuses requests"
	}
	return fmt.Sprintf("%s %s; it is tried again in %s, and %s for it: %s", h.name, what, pause, table.Clause(h.waiting(), "reference", "wait"), why.Message)
}

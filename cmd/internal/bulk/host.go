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

	answered bool // the registry has answered at least once
	// round grows with each failure of the registry. A failed job that began in an earlier round ran
	// in parallel to the job whose failure was counted, so it is not counted again.
	round       int
	silences    int       // failures to answer, in a row
	silentSince time.Time // the first of them
	// since when the registry requests pauses or refuses; zero if it has answered since
	busySince time.Time
	// the last refused job; nil if the registry has answered or failed since
	suspect *Job
	noticed time.Time // end of the pause in the last notice

	tried map[Job]trials // for jobs that wait again
	// partly is how many imports in a row could not read all signatures
	partly int
}

// trials counts the attempts of a job that waits again because its registry failed.
type trials struct {
	times int
	since time.Time
	// alone is true if the registry refused this job without a time to wait, and answered the next
	// job.
	alone bool
}

const (
	// maxBusy is how long a registry may keep requesting pauses or refusing. Registries count requests
	// over at most six hours, as Docker Hub does.
	maxBusy = 6 * time.Hour
	// A registry that has answered before is given up, and its jobs are not tried, after it has failed
	// to answer maxSilent times in a row and for maxSilence. A registry that has never answered is
	// given up after maxSilent times, also if it refuses without a time to wait.
	maxSilence = time.Minute
	maxSilent  = 3
	// After maxPartly imports in a row that could not read all signatures, no import is tried again
	// for that reason.
	maxPartly = 16
)

func (h *host) waiting() int { return len(h.lists) + len(h.imports) }

// next removes and returns the next job. Lists and imports alternate, so that imports begin before
// everything is listed.
func (h *host) next() (j Job) {
	if h.listed = len(h.lists) > 0 && (!h.listed || len(h.imports) == 0); h.listed {
		j, h.lists = h.lists[0], h.lists[1:]
		return j
	}
	j.Ref, h.imports = h.imports[0], h.imports[1:]
	return j
}

// answers records that the registry has answered a job.
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

// searchAgain reports whether to import an image once more, after the waiting ones, because not all
// of its signatures could be read. It returns false if that happens to many images in a row.
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

// fail records that a job failed because of the registry, not because of its reference, and that
// the registry is paused until a time. again is true if the job should be tried again. If no
// waiting job of the registry should be tried, hopeless is the reason why; otherwise it is "".
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

// notice returns the message that jobs wait for the registry; "" if the last notice covers the
// pause.
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

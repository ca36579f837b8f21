package main

import (
	"fmt"
	"time"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer"
)

// host is what waits for a registry in a batch, and how the registry has behaved.
type host struct {
	name    string
	lists   []job // and dates
	imports []reference.Reference
	listed  bool // the last job to begin was one of lists

	answered bool // it has, at some time
	// round grows when the registry has failed to answer: a job that began in an earlier one ran beside the job that failed
	// first, and is no further failure.
	round       int
	silences    int       // failures to answer, in a row
	silentSince time.Time // the first of them
	busySince   time.Time // the registry has asked to be left alone since then; zero if it has answered
	noticed     time.Time // until when it is parked, as it was last said

	tried map[job]trials // of jobs that wait again
}

// trials are those of a job that wait again because its registry failed.
type trials struct {
	times int
	since time.Time
}

const (
	// maxParked is how long a registry is waited for that asks to be left alone.
	maxParked = time.Hour
	// maxBusy is how long a registry may ask so again and again. Registries count over six hours at most, as Docker Hub
	// does.
	maxBusy = 6 * time.Hour
	// maxSilence is how long a registry may fail to answer that has answered before, and maxSilent how many times in a
	// row. After these, what waits for it is not tried. One that has never answered has only the latter.
	maxSilence = time.Minute
	maxSilent  = 3
)

func (h *host) waiting() int { return len(h.lists) + len(h.imports) }

// next takes the job that is next. Lists and imports take turns: then images are imported before all is listed.
func (h *host) next() (j job) {
	if h.listed = len(h.lists) > 0 && (!h.listed || len(h.imports) == 0); h.listed {
		j, h.lists = h.lists[0], h.lists[1:]
		return j
	}
	j.ref, h.imports = h.imports[0], h.imports[1:]
	return j
}

// answers notes that the registry has answered.
func (h *host) answers() {
	h.answered, h.silences, h.busySince = true, 0, time.Time{}
}

// fail notes that the registry, and not what it was asked for, made a job fail, and that it is parked until a time. It
// returns whether to try again; if not, hopeless says why nothing that waits for the registry should be tried, or is "".
func (h *host) fail(e ended, why *importer.Error, until, now time.Time) (again bool, hopeless string) {
	t := h.tried[e.job]
	if t.times == 0 {
		t.since = now
	}
	t.times++
	if why.Reason == importer.RateLimited || why.RetryAfter > 0 {
		h.answered, h.silences = true, 0
		if h.busySince.IsZero() {
			h.busySince = now
		}
		switch {
		case until.Sub(now) > maxParked:
			hopeless = fmt.Sprintf("asks to be left alone for more than %s", maxParked)
		case now.Sub(h.busySince) > maxBusy:
			hopeless = fmt.Sprintf("has asked to be left alone for %s", maxBusy)
		}
		again = hopeless == "" && now.Sub(t.since) <= maxBusy
	} else {
		if e.round == h.round {
			if h.round++; h.silences == 0 {
				h.silentSince = now
			}
			h.silences++
		}
		if h.silences >= maxSilent && (!h.answered || now.Sub(h.silentSince) >= maxSilence) {
			hopeless = fmt.Sprintf("did not answer %d times in a row", h.silences)
		}
		again = hopeless == "" && h.answered && (t.times < maxSilent || now.Sub(t.since) < maxSilence)
	}
	if again {
		h.tried[e.job] = t
	}
	return again, hopeless
}

// notice says that the registry is waited for; "" if that was said.
func (h *host) notice(why *importer.Error, until, now time.Time) string {
	if !until.After(h.noticed) {
		return ""
	}
	h.noticed = until
	pause := until.Sub(now).Round(time.Second)
	if why.Reason == importer.RateLimited || why.RetryAfter > 0 {
		return fmt.Sprintf("%s asks to be left alone for %s; %d references wait for it", h.name, pause, h.waiting())
	}
	return fmt.Sprintf("%s does not answer; it is tried again in %s, and %d references wait for it: %s", h.name, pause, h.waiting(), why.Message)
}

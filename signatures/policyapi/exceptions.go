package policyapi

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/tidewaiter/tidewaiter/internal/meter"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// The states of an exception; values of the label state.
const (
	exceptionInForce  = "in_force"
	exceptionEndsSoon = "ends_soon" // in a week; not counted as in_force
	exceptionEnded    = "ended"
)

func newExceptionsMetric(r meter.Registerer) *metrics.GaugeVec {
	g := meter.GaugeVec("policy", "exceptions", "Exceptions of policies by state: in_force, ends_soon (within a week), ended.", "state")
	meter.Register(r, g)
	return g
}

// exceptionState is the state of an exception that ends at a time.
func exceptionState(until, now time.Time) string {
	switch {
	case !now.Before(until):
		return exceptionEnded
	case until.Sub(now) < policy.ExceptionEndsSoon:
		return exceptionEndsSoon
	}
	return exceptionInForce
}

// nextEnd returns the index of the first future time in sorted times; -1 if all have passed.
func nextEnd(until []time.Time, now time.Time) int { return slices.IndexFunc(until, now.Before) }

// exceptionsCell returns the table cell with how many exceptions are in force, and when the next of
// them ends.
func exceptionsCell(all []policy.Exception, now time.Time) string {
	var until []time.Time
	for _, e := range all {
		if at, err := time.Parse(time.RFC3339, e.Until); err == nil { // an older version may have accepted it
			until = append(until, at)
		}
	}
	slices.SortFunc(until, time.Time.Compare)
	switch next := nextEnd(until, now); {
	case len(all) == 0:
		return none
	case next < 0:
		return "all have ended"
	default:
		return fmt.Sprintf("%d in force; the next ends at %s", len(until)-next, until[next].UTC().Format(time.RFC3339))
	}
}

// maxNamed is how many images of an exception are named.
const maxNamed = 2

// describe returns a text with the images of an exception, who made it and why.
func describe(e policy.Exception) string {
	images := strings.Join(e.Images[:min(len(e.Images), maxNamed)], ", ")
	if more := len(e.Images) - maxNamed; more > 0 {
		images += fmt.Sprintf(" and %d more", more)
	}
	return fmt.Sprintf("%s, by %s: %s", images, e.By, e.Reason)
}

// reportExceptions counts the exceptions of the policies in force, and logs when one ends soon and
// when it has ended. It returns the time to the next of these moments, 0 if there is none.
func (k *Keeper) reportExceptions(policies []*policy.Policy) (next time.Duration) {
	now, told, counts := k.clock.Now(), map[string]string{}, map[string]int{}
	for _, p := range policies {
		all, until := p.Exceptions()
		for i, e := range all {
			state, key := exceptionState(until[i], now), p.ID()+" "+e.Until+" "+strings.Join(e.Images, ",")
			counts[state]++
			told[key] = state
			switch before := k.told[key]; {
			case before == state:
			case state == exceptionEndsSoon:
				slog.Warn("An exception of a policy ends soon", "policy", p.ID(), "until", e.Until, "exception", describe(e))
			case state == exceptionEnded && before != "":
				slog.Warn("An exception of a policy has ended", "policy", p.ID(), "until", e.Until, "exception", describe(e))
			}
			for _, at := range []time.Time{until[i].Add(-policy.ExceptionEndsSoon + time.Nanosecond), until[i]} {
				if d := at.Sub(now); d > 0 && (next == 0 || d < next) {
					next = d
				}
			}
		}
	}
	k.told = told
	for _, state := range []string{exceptionInForce, exceptionEndsSoon, exceptionEnded} {
		k.exceptions.WithLabelValues(state).Set(float64(counts[state]))
	}
	return next
}

package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/job"
)

// Paths of the API.
const (
	eventsPath    = "/api/v1/events"
	spoolPath     = "/tidewaiter/spool"
	receiversPath = "/tidewaiter/receivers"
)

// livePath is the page that follows Events, below Root.
const livePath = "activity/live"

// newestEvents selects the Events that the page shows.
var newestEvents = fmt.Sprint("newest=", pageRows)

// longestLive is how long the watch of a live page lasts before its browser connects again, so that
// a forgotten page does not hold its watch for ever.
const longestLive = 30 * time.Minute

// eventRow is a row of the table of Events.
type eventRow struct {
	Reason, Message, Kind, Name text
	Warning                     bool
	Count                       int
	At                          time.Time
	When                        moment
}

// activityView has the data of the page of activity.
type activityView struct {
	Events                []eventRow
	Unshown               int64  // older Events that the answer had no room for
	Live                  string // the address of later Events, as they happen
	Refused, RefusedQueue *notice
	Jobs                  []queuedJob
	MoreJobs              bool // than are shown
	MayChange             bool
	Receivers             receivers
	RefusedReceivers      *notice
	Done                  string
}

// eventOf makes the row of an Event.
func eventOf(e *event, now time.Time) eventRow {
	row := eventRow{Reason: e.Reason, Message: e.Message, Kind: e.Involved.Kind, Name: e.Involved.Name, Warning: e.Type == "Warning", Count: e.Count}
	for _, at := range []time.Time{e.Last, e.EventTime, e.First, e.Metadata.Created} {
		if !at.IsZero() {
			row.At = at
			break
		}
	}
	row.When = when(row.At, now)
	return row
}

// activity shows Events, and the queue of pushes.
func (v *visit) activity() error {
	data := &activityView{Done: map[string]string{"retry": "It will be tried again now.", "drop": "It is dropped."}[v.r.URL.Query().Get("done")]}
	events, unshown, err := v.newest()
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	data.Refused, data.Unshown = noticeOf("list events", err), unshown
	for i := range events.Items {
		data.Events = append(data.Events, eventOf(&events.Items[i], v.clock.Now()))
	}
	slices.SortStableFunc(data.Events, func(a, b eventRow) int { return b.At.Compare(a.At) })
	if err == nil {
		data.Live = link(livePath, "after", events.Metadata.ResourceVersion)
	}
	jobs, more, err := v.jobs("")
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	data.RefusedQueue = noticeOf("see the queue", err)
	if data.RefusedQueue == nil { // the same roles see the receivers
		if err := v.call.get(v.ctx(), receiversPath, nil, &data.Receivers); isCode(err, http.StatusUnauthorized) {
			return err
		} else if err != nil {
			data.RefusedReceivers = noticeOf("see the receivers", err)
		}
	}
	data.Jobs, data.MoreJobs = jobs, more || len(jobs) > pageRows
	data.MayChange = len(jobs) > 0 && v.may("post", spoolPath)
	slices.SortStableFunc(data.Jobs, func(a, b queuedJob) int {
		return cmp.Or(cmp.Compare(a.State, b.State), a.Enqueued.Compare(b.Enqueued))
	})
	data.Jobs = data.Jobs[:min(len(data.Jobs), pageRows)]
	return v.show(&page{Name: "activity", Title: "Activity", Nav: "activity", Data: data, Commands: []string{"kubectl get events -A --field-selector " + newestEvents, "kubectl get events -A --watch", "tidewaiter spool list", "kubectl get --raw " + receiversPath}})
}

// isNotification reports whether the job is a notification, and not a push.
func (j *queuedJob) isNotification() bool { return j.ID >= job.FirstNotification }

// spoolPage is how many jobs one request lists: admin.SpoolPage.
const spoolPage = 500

// jobs returns the jobs of a state, or of every state with "": those of one request. more is true
// if there may be others.
func (v *visit) jobs(state string) (jobs []queuedJob, more bool, err error) {
	var s spool
	ask := url.Values{}
	if state != "" {
		ask.Set("state", state)
	}
	err = v.call.get(v.ctx(), spoolPath, ask, &s)
	return s.Jobs, len(s.Jobs) >= spoolPage, err
}

// muchOfEvents is the size in bytes from which an answer may lack some of the Events.
const muchOfEvents = 1 << 20

// newest returns the newest Events, and how many older ones the answer had no room for.
func (v *visit) newest() (events list[event], unshown int64, err error) {
	a, err := v.call.do(v.ctx(), http.MethodGet, eventsPath, url.Values{"fieldSelector": {newestEvents}}, asJSON, nil)
	if err != nil {
		return events, 0, err
	}
	if err := a.read(eventsPath, &events); err != nil || len(events.Items) >= pageRows || a.body.Len() < muchOfEvents {
		return events, 0, err
	}
	var first list[event]
	if err := v.call.get(v.ctx(), eventsPath, url.Values{"limit": {"1"}}, &first); err != nil {
		return events, 0, err
	}
	if first.Metadata.Remaining != nil {
		unshown = *first.Metadata.Remaining + int64(len(first.Items)-len(events.Items))
	}
	return events, max(0, min(unshown, int64(pageRows-len(events.Items)))), nil
}

// queue retries or drops a push.
func (v *visit) queue() error {
	do, id := v.r.PostFormValue("do"), v.r.PostFormValue("id")
	if do != "retry" && do != "drop" || id == "" {
		return &apiError{Code: http.StatusBadRequest, Message: "a push is retried or dropped, by its number"}
	}
	if err := v.call.post(v.ctx(), spoolPath, url.Values{"do": {do}, "id": {id}}, nil, nil); err != nil {
		if e, ok := errors.AsType[*apiError](err); ok && e.Code == http.StatusForbidden {
			v.showWith(http.StatusForbidden, &page{Name: "notice", Title: "You may not " + do + " a push", Data: &notice{Title: "You may not " + do + " a push", Message: string(e.Message), Role: "tidewaiter:queue-operator"}})
			return nil
		}
		return err
	}
	v.goTo(link("activity", "done", do) + "#queue")
	return nil
}

// maxOpen is how many live pages a person may have open. An Event wakes all that are open at once,
// and requests of others wait behind them: with 600 of one person the 99th percentile of gets was
// three times that of another server beside it.
const maxOpen = 64

// errManyLive is the error of a live page too many. Its browser asks again, more and more rarely.
var errManyLive = &apiError{Code: http.StatusTooManyRequests, Message: text(fmt.Sprintf("A person may have at most %d of the pages that follow Events: close one of them.", maxOpen))}

// live sends Events to an open page as they happen, as server-sent events whose data are rows of
// its table.
func (v *visit) live() error {
	after := cmp.Or(v.r.Header.Get("Last-Event-Id"), v.r.URL.Query().Get("after"))
	if strings.ContainsFunc(after, func(r rune) bool { return r < '0' || r > '9' }) {
		return &apiError{Code: http.StatusBadRequest, Message: "the resourceVersion to begin at is not a number"}
	}
	who := v.who()
	if !v.open.TryAdd(who, 0, 1) {
		return errManyLive
	}
	defer v.open.Remove(who, 1)
	ctx, stop := context.WithTimeout(v.ctx(), longestLive)
	defer stop()
	if v.session != nil {
		var left func()
		ctx, left = v.sessions.follow(ctx, v.session)
		defer left()
	}
	v.w.Header().Set("Content-Type", "text/event-stream")
	turn := v.turn(ctx, v.w, string(v.user), v.r.RemoteAddr)
	told := &liveWriter{v: v, turn: turn, control: http.NewResponseController(turn)}
	if told.send(after, "open", "") != nil {
		return nil // the browser is gone
	}
	for {
		err := v.call.watch(ctx, eventsPath, url.Values{"resourceVersion": {after}, "allowWatchBookmarks": {"true"}}, asJSON, turn, told.line)
		if !isCode(err, http.StatusGone) {
			return nil // the browser connects again, and then gets the reason
		}
		// The resourceVersion is too old: a reload of the page shows what happened since.
		var now list[event]
		if v.call.get(ctx, eventsPath, url.Values{"limit": {"1"}}, &now) != nil {
			return nil
		}
		if after = now.Metadata.ResourceVersion; told.warn(after, "Missed", "Events may have been missed: load the page again.") != nil {
			return nil
		}
	}
}

// liveWriter sends server-sent events to an open page.
type liveWriter struct {
	v       *visit
	turn    Turn
	control *http.ResponseController
	last    string // the resourceVersion of the last event
}

// send sends an event. If the browser does not read it within half a minute, send fails. Between
// events there is no limit.
func (l *liveWriter) send(id, event, data string) error {
	// only a writer that is no connection returns an error
	_ = l.control.SetWriteDeadline(time.Now().Add(30 * time.Second))
	defer func() { _ = l.control.SetWriteDeadline(time.Now().Add(2 * longestLive)) }()
	l.last = id
	if _, err := fmt.Fprintf(l.turn, "id: %s\nevent: %s\ndata: %s\n\n", id, event, data); err != nil {
		return err
	}
	return l.control.Flush()
}

// warn sends a row about the events themselves.
func (l *liveWriter) warn(id string, reason, message text) error {
	now := l.v.clock.Now()
	data, err := l.v.pages.eventRow(eventRow{Reason: reason, Message: message, Warning: true, At: now, When: when(now, now)})
	if err != nil {
		return err
	}
	return l.send(id, "row", data)
}

// line sends the browser the event in a line of the watch; nil is a line that is too large.
// Bookmarks update the resourceVersion at which the browser continues.
func (l *liveWriter) line(line []byte) error {
	if line == nil {
		return l.warn(l.last, "Large", "A new Event is too large to be shown here: load the page again.")
	}
	e := l.v.liveEvents.of(line)
	if e.err != nil || e.name == "" {
		return e.err
	}
	return l.send(e.id, e.name, e.data)
}

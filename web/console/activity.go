package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Paths of the API.
const (
	eventsPath    = "/api/v1/events"
	spoolPath     = "/tidewaiter/spool"
	receiversPath = "/tidewaiter/receivers"
)

// newestEvents selects the Events that the page shows.
var newestEvents = fmt.Sprint("newest=", pageRows)

// longestLive is how long a live page goes on before its browser connects again, so that one that
// nobody closed does not hold its watch for ever.
const longestLive = 30 * time.Minute

// eventRow is something that happened.
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
	Live                  string // the address of what is new
	Refused, RefusedQueue *notice
	Jobs                  []job
	MayChange             bool
	Receivers             receivers
	RefusedReceivers      *notice
	Done                  string
}

// eventOf is how an Event is shown.
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

// activity shows what happened, and the queue of pushes.
func (v *visit) activity() error {
	data := &activityView{Done: map[string]string{"retry": "It will be tried again now.", "drop": "It is dropped."}[v.r.URL.Query().Get("done")]}
	var events list[event]
	err := v.call.get(v.ctx(), eventsPath, url.Values{"fieldSelector": {newestEvents}}, &events)
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	data.Refused = noticeOf("list events", err)
	for i := range events.Items {
		data.Events = append(data.Events, eventOf(&events.Items[i], v.clock.Now()))
	}
	slices.SortStableFunc(data.Events, func(a, b eventRow) int { return b.At.Compare(a.At) })
	if err == nil {
		data.Live = link("activity/live", "after", events.Metadata.ResourceVersion)
	}
	var s spool
	if err := v.call.get(v.ctx(), spoolPath, nil, &s); isCode(err, http.StatusUnauthorized) {
		return err
	} else if err != nil {
		data.RefusedQueue = noticeOf("see the queue", err)
	}
	if data.RefusedQueue == nil { // the same roles see the receivers
		if err := v.call.get(v.ctx(), receiversPath, nil, &data.Receivers); isCode(err, http.StatusUnauthorized) {
			return err
		} else if err != nil {
			data.RefusedReceivers = noticeOf("see the receivers", err)
		}
	}
	data.Jobs = s.Jobs
	data.MayChange = len(s.Jobs) > 0 && v.may("post", spoolPath)
	slices.SortStableFunc(data.Jobs, func(a, b job) int {
		return cmp.Or(cmp.Compare(a.State, b.State), a.Enqueued.Compare(b.Enqueued))
	})
	data.Jobs = data.Jobs[:min(len(data.Jobs), pageRows)]
	return v.show(&page{Name: "activity", Title: "Activity", Nav: "activity", Data: data, Commands: []string{"kubectl get events -A --field-selector " + newestEvents, "kubectl get events -A --watch", "tidewaiter spool list", "kubectl get --raw " + receiversPath}})
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

// live tells a page that is open of events as they happen, as server-sent events whose data are
// rows of its table.
func (v *visit) live() error {
	after := cmp.Or(v.r.Header.Get("Last-Event-Id"), v.r.URL.Query().Get("after"))
	if strings.ContainsFunc(after, func(r rune) bool { return r < '0' || r > '9' }) {
		return &apiError{Code: http.StatusBadRequest, Message: "that is not a place to begin at"}
	}
	v.w.Header().Set("Content-Type", "text/event-stream")
	told := &liveWriter{v: v, control: http.NewResponseController(v.w)}
	if told.send(after, "open", "") != nil {
		return nil // the browser is gone
	}
	ctx, stop := context.WithTimeout(v.ctx(), longestLive)
	defer stop()
	for {
		err := v.call.watch(ctx, eventsPath, url.Values{"resourceVersion": {after}, "allowWatchBookmarks": {"true"}}, asJSON, told.event)
		if !isCode(err, http.StatusGone) {
			return nil // the browser connects again, and is told why it may not
		}
		// The place is too long ago: what happened since is on the page when it is loaded again.
		var now list[event]
		if v.call.get(ctx, eventsPath, url.Values{"limit": {"1"}}, &now) != nil {
			return nil
		}
		if after = now.Metadata.ResourceVersion; told.row(after, eventRow{Reason: "Missed", Message: "Events may have been missed: load the page again.", Warning: true, When: when(v.clock.Now(), v.clock.Now())}) != nil {
			return nil
		}
	}
}

// liveWriter tells a page that is open.
type liveWriter struct {
	v       *visit
	control *http.ResponseController
}

// send sends an event. A browser that does not read it within half a minute is given up; between
// events it may wait.
func (l *liveWriter) send(id, event, data string) error {
	// a writer that cannot be bound is not a connection
	_ = l.control.SetWriteDeadline(time.Now().Add(30 * time.Second))
	defer func() { _ = l.control.SetWriteDeadline(time.Now().Add(2 * longestLive)) }()
	if _, err := fmt.Fprintf(l.v.w, "id: %s\nevent: %s\ndata: %s\n\n", id, event, strings.ReplaceAll(data, "\n", " ")); err != nil {
		return err
	}
	return l.control.Flush()
}

// row sends a row of the table.
func (l *liveWriter) row(id string, row eventRow) error {
	var out bytes.Buffer
	if err := l.v.pages.byName["activity"].ExecuteTemplate(&out, "event", row); err != nil {
		return err
	}
	return l.send(id, "row", out.String())
}

// event tells of a line of the watch. Bookmarks keep the place at which a browser goes on.
func (l *liveWriter) event(w watchEvent) error {
	var e event
	if err := json.Unmarshal(w.Object, &e); err != nil {
		return err
	}
	switch w.Type {
	case "ADDED", "MODIFIED":
		return l.row(e.Metadata.ResourceVersion, eventOf(&e, l.v.clock.Now()))
	case "BOOKMARK":
		return l.send(e.Metadata.ResourceVersion, "bookmark", "")
	}
	return nil
}

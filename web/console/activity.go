package console

import (
	"bytes"
	"cmp"
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
	eventsPath = "/api/v1/events"
	spoolPath  = "/tidewaiter/spool"
)

// longestLive is how long a live page goes on before its browser connects again, so that one that nobody closed does not hold
// its watch for ever.
const longestLive = 30 * time.Minute

// eventRow is something that happened.
type eventRow struct {
	Reason, Message, Kind, Name text
	Warning                     bool
	Count                       int
	At                          time.Time
	When                        moment
}

// activityView is what the page of activity shows.
type activityView struct {
	Events                []eventRow
	More                  bool
	Live                  string // the address of what is new
	Refused, RefusedQueue *notice
	Jobs                  []job
	MayChange             bool
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
	err := v.call.get(v.ctx(), eventsPath, url.Values{"limit": {"500"}}, &events)
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	data.Refused, data.More = noticeOf("list events", err), events.Metadata.Continue != ""
	for i := range events.Items {
		data.Events = append(data.Events, eventOf(&events.Items[i], v.clock.Now()))
	}
	slices.SortStableFunc(data.Events, func(a, b eventRow) int { return b.At.Compare(a.At) })
	if len(data.Events) > pageRows {
		data.Events, data.More = data.Events[:pageRows], true
	}
	if err == nil {
		data.Live = link("activity/live", "after", events.Metadata.ResourceVersion)
	}
	var s spool
	if err := v.call.get(v.ctx(), spoolPath, nil, &s); isCode(err, http.StatusUnauthorized) {
		return err
	} else if err != nil {
		data.RefusedQueue = noticeOf("see the queue", err)
	}
	data.Jobs = s.Jobs
	slices.SortStableFunc(data.Jobs, func(a, b job) int {
		return cmp.Or(cmp.Compare(a.State, b.State), a.Enqueued.Compare(b.Enqueued))
	})
	data.Jobs = data.Jobs[:min(len(data.Jobs), pageRows)]
	return v.show(&page{Name: "activity", Title: "Activity", Nav: "activity", Data: data, Commands: []string{"kubectl get events -A --watch", "tidewaiter spool list"}})
}

// queue retries or drops a push.
func (v *visit) queue() error {
	do, id := v.r.PostFormValue("do"), v.r.PostFormValue("id")
	if do != "retry" && do != "drop" || id == "" {
		return &apiError{Code: http.StatusBadRequest, Message: "a push is retried or dropped, by its number"}
	}
	if err := v.call.post(v.ctx(), spoolPath, url.Values{"do": {do}, "id": {id}}, nil, nil); err != nil {
		var e *apiError
		if errors.As(err, &e) && e.Code == http.StatusForbidden {
			v.showWith(http.StatusForbidden, &page{Name: "notice", Title: "You may not " + do + " a push", Data: &notice{Title: "You may not " + do + " a push", Message: string(e.Message), Role: "tidewaiter:queue-operator"}})
			return nil
		}
		return err
	}
	http.Redirect(v.w, v.r, link("activity", "done", do)+"#queue", http.StatusSeeOther)
	return nil
}

// live tells a page that is open of events as they happen, as server-sent events whose data are rows of its table.
func (v *visit) live() error {
	after := cmp.Or(v.r.Header.Get("Last-Event-Id"), v.r.URL.Query().Get("after"))
	if strings.ContainsFunc(after, func(r rune) bool { return r < '0' || r > '9' }) {
		return &apiError{Code: http.StatusBadRequest, Message: "that is not a place to begin at"}
	}
	v.w.Header().Set("Content-Type", "text/event-stream")
	control := http.NewResponseController(v.w)
	begun := false
	tell := func(id, event, data string) error {
		// A browser that does not read holds nothing for longer than this.
		_ = control.SetWriteDeadline(time.Now().Add(30 * time.Second))
		begun = true
		if _, err := fmt.Fprintf(v.w, "id: %s\nevent: %s\ndata: %s\n\n", id, event, strings.ReplaceAll(data, "\n", " ")); err != nil {
			return err
		}
		return control.Flush()
	}
	_ = control.SetWriteDeadline(time.Now().Add(longestLive + time.Minute))
	if err := tell(after, "open", ""); err != nil {
		return nil // the browser is gone
	}
	err := v.call.watch(v.ctx(), eventsPath, url.Values{"resourceVersion": {after}, "allowWatchBookmarks": {"true"}, "timeoutSeconds": {fmt.Sprint(int(longestLive.Seconds()))}}, asJSON, func(w watchEvent) error {
		if w.Type != "ADDED" && w.Type != "MODIFIED" {
			return nil
		}
		var e event
		if err := json.Unmarshal(w.Object, &e); err != nil {
			return err
		}
		var row bytes.Buffer
		if err := v.pages.byName["activity"].ExecuteTemplate(&row, "event", eventOf(&e, v.clock.Now())); err != nil {
			return err
		}
		_ = control.SetWriteDeadline(time.Now().Add(30 * time.Second))
		if err := tell(string(e.Metadata.ResourceVersion), "row", row.String()); err != nil {
			return err
		}
		return control.SetWriteDeadline(time.Now().Add(longestLive + time.Minute))
	})
	if err != nil && begun {
		if isCode(err, http.StatusGone) { // too long ago: the page is loaded anew
			_ = tell("0", "stale", "")
		}
		return nil
	}
	return err
}

package console

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// maxLiveEvents is how many events are kept for live pages.
	maxLiveEvents = 64
	// liveFor is how long a row may be used: it shows the age of its event.
	liveFor = 5 * time.Second
)

// liveEvents turns events into rows for live pages. All live pages follow the same Events: the
// first page that gets an event makes its row, and the others send the same row.
type liveEvents struct {
	pages *pages
	clock clock.PassiveClock

	mu     sync.Mutex
	byLine map[string]*liveEvent
	lines  []string // the keys of byLine, oldest first
}

// liveEvent is what live pages send to browsers for one line of their watch.
type liveEvent struct {
	made time.Time

	once sync.Once // guards the rest
	id   string    // resourceVersion at which the browser continues
	name string    // name of the server-sent event; empty to send nothing
	data string
	err  error // why the watch has ended
}

// of returns what to send for a line of a watch.
func (l *liveEvents) of(line []byte) *liveEvent {
	now := l.clock.Now()
	l.mu.Lock()
	e := l.byLine[string(line)]
	if e == nil || now.Sub(e.made) > liveFor {
		key := string(line)
		if e == nil {
			l.lines = append(l.lines, key)
		}
		if len(l.lines) > maxLiveEvents {
			delete(l.byLine, l.lines[0])
			l.lines = l.lines[1:]
		}
		e = &liveEvent{made: now}
		l.byLine[key] = e
	}
	l.mu.Unlock()
	e.once.Do(func() { e.err = e.read(line, l.pages) })
	return e
}

// read parses a line of a watch.
func (e *liveEvent) read(line []byte, p *pages) error {
	var w struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := json.Unmarshal(line, &w); err != nil {
		return err
	}
	if w.Type == "ERROR" {
		status := &apiError{}
		if err := json.Unmarshal(w.Object, status); err != nil {
			return err
		}
		return status
	}
	var of event
	if err := json.Unmarshal(w.Object, &of); err != nil {
		return err
	}
	e.id = of.Metadata.ResourceVersion
	switch w.Type {
	case "ADDED", "MODIFIED":
		var err error
		e.name = "row"
		e.data, err = p.eventRow(eventOf(&of, e.made))
		return err
	case "BOOKMARK":
		e.name = "bookmark"
	}
	return nil
}

// eventRow returns a row of the table of events, on one line.
func (p *pages) eventRow(row eventRow) (string, error) {
	var out bytes.Buffer
	err := p.byName["activity"].ExecuteTemplate(&out, "event", row)
	return strings.ReplaceAll(out.String(), "\n", " "), err
}

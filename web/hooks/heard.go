package hooks

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// maxWhy bounds why a delivery was refused, in bytes.
const maxWhy = 300

// Heard is what a receiver has heard since the server started. A time is nil if that has not
// happened.
type Heard struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// LastHeard is when somebody last sent a delivery with the receiver's secret that could be
	// read, LastQueued when one told of a push.
	LastHeard  *time.Time `json:"lastHeard,omitempty"`
	LastQueued *time.Time `json:"lastQueued,omitempty"`
	// LastRefused is when a delivery, or a part of one, was last refused, and Refused why.
	LastRefused *time.Time `json:"lastRefused,omitempty"`
	Refused     string     `json:"refused,omitempty"`
}

// heard notes what receivers hear.
type heard struct {
	mu sync.Mutex
	Heard
}

// note notes what became of a delivery.
func (n *heard) note(out outcome, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if out.status == http.StatusOK || out.status == http.StatusAccepted {
		n.LastHeard = &now
	}
	if out.Queued > 0 {
		n.LastQueued = &now
	}
	why := out.mistake
	switch {
	case out.status >= http.StatusBadRequest:
		why = out.Message
	case out.Refused[reasonHost] > 0:
		why = out.Why
	}
	if why != "" {
		n.LastRefused, n.Refused = &now, printable.Line(why, maxWhy)
	}
}

// Heard returns what each receiver has heard, by name.
func (h *Handler) Heard() []Heard {
	receivers := *h.receivers.Load()
	all := make([]Heard, 0, len(receivers))
	for _, rc := range receivers {
		rc.heard.mu.Lock()
		one := rc.heard.Heard
		rc.heard.mu.Unlock()
		one.Name, one.Type = rc.Name, rc.Type
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b Heard) int { return strings.Compare(a.Name, b.Name) })
	return all
}

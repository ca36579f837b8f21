package hooks

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// maxWhy bounds the reason why a delivery was refused, in bytes.
const maxWhy = 300

// Heard has the latest deliveries to a receiver since the server started. A time is nil if there
// was none.
type Heard struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// LastHeard is the time of the last readable delivery with the receiver's secret, and LastQueued
	// of the last one with a push.
	LastHeard  *time.Time `json:"lastHeard,omitempty"`
	LastQueued *time.Time `json:"lastQueued,omitempty"`
	// LastRefused is the time when a delivery, or a part of one, was last refused, and Refused the
	// reason.
	LastRefused *time.Time `json:"lastRefused,omitempty"`
	Refused     string     `json:"refused,omitempty"`
}

// heard records the deliveries to receivers.
type heard struct {
	mu sync.Mutex
	Heard
}

// note records the outcome of a delivery.
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

// Heard returns the Heard of each receiver, sorted by name.
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

package hooks

import "time"

// MaxBodies and MaxHeldBytes are the bounds of the bodies a receiver holds.
const (
	MaxBodies    = maxBodies
	MaxHeldBytes = maxHeldBytes
)

// SetBodyTimeout sets how long a sender may take to send its body.
func (h *Handler) SetBodyTimeout(d time.Duration) { h.timeout = d }

// Held returns the number and the bytes of a receiver's bodies whose senders are not authenticated
// yet. Some receivers share them with receivers that do not exist.
func (h *Handler) Held(receiver string) (n, bytes int) {
	rc := (*h.receivers.Load())[receiver]
	if rc == nil {
		rc = h.absent
	}
	return rc.unknown.Held()
}

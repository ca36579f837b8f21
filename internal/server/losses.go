package server

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/internal/peers"
)

// lostRegistry is a registry that may have lost its storage, with a sentence for people.
type lostRegistry struct {
	queue.Loss
	Message string `json:"message"`
}

// maxLosses bounds the registries that one server reports as lost: they fit into what servers
// announce to each other.
const maxLosses = 32

// announcement returns what this server announces to the others: its losses, as JSON.
func announcement(own []queue.Loss) string {
	if len(own) == 0 {
		return ""
	}
	text, err := json.Marshal(own[:min(len(own), maxLosses)])
	if err != nil {
		return ""
	}
	return string(text)
}

// lostRegistries returns the registries that may have lost their storage, by the sweeps of this
// server and of those that share its store: at most maxLosses of each. others may be nil.
func lostRegistries(own []queue.Loss, others *peers.Peers) []lostRegistry {
	all := []lostRegistry{}
	add := func(some []queue.Loss) {
		for _, loss := range some[:min(len(some), maxLosses)] {
			if !slices.ContainsFunc(all, func(l lostRegistry) bool { return l.Registry == loss.Registry }) {
				all = append(all, lostRegistry{loss, loss.String()})
			}
		}
	}
	add(own)
	if others != nil {
		for _, text := range others.Announced() {
			var theirs []queue.Loss
			if json.Unmarshal([]byte(text), &theirs) == nil {
				add(theirs)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b lostRegistry) int { return cmp.Compare(a.Registry, b.Registry) })
	return all
}

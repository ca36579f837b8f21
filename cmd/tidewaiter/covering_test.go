package main

import "flag"

// exhaustive has tests combine everything with everything, as make nightly does.
var exhaustive = flag.Bool("exhaustive", false, "ask every question at every door by every name, and in every state of a world")

// covering chooses, from all combinations of some properties, so many that each pair of them comes
// once: a fault of one property, or of two together, shows in one of these as it does in all.
type covering map[string]bool

// isNew reports whether one of these pairs has not come before. From now on all of them have.
func (c covering) isNew(pairs ...string) bool {
	isNew := *exhaustive
	for _, pair := range pairs {
		isNew = isNew || !c[pair]
		c[pair] = true
	}
	return isNew
}

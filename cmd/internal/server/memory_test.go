package server

import "testing"

func TestSmallHeapsAreCollectedSeldom(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{
		0:         1000,
		1 << 20:   1000,
		16 << 20:  400,
		32 << 20:  200,
		64 << 20:  100,
		500 << 20: 100,
	} {
		if got := gcPercent(live); got != want {
			t.Errorf("GOGC of %d MiB that live: %d, want %d", live>>20, got, want)
		}
	}
}

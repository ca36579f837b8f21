//go:build unix

// Package benchtest compares ways to do the same within one process. A benchmark lets each way do
// a short round in turn, and takes the median of the ratios of the rounds beside each other: what
// else the machine does then meets all ways alike.
package benchtest

import (
	"slices"
	"syscall"
	"time"
)

// Cost is what a round takes: time, and processor time of the whole process, which other programs
// disturb less.
type Cost struct{ Time, Processor time.Duration }

// Timed returns what do costs.
func Timed(do func()) Cost {
	start, before := time.Now(), processor()
	do()
	return Cost{time.Since(start), processor() - before}
}

// processor returns the processor time that this process has used.
func processor() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // it has no reason to fail
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Median returns the middle of values, of which there is at least one.
func Median[T float64 | time.Duration](values []T) T {
	values = slices.Sorted(slices.Values(values))
	return values[len(values)/2]
}

// Percent returns by how many percent the median ratio of a to b, round by round, is above 1.
func Percent(a, b []time.Duration) float64 {
	ratios := make([]float64, len(a))
	for i := range a {
		ratios[i] = float64(a[i]) / float64(b[i])
	}
	return 100 * (Median(ratios) - 1)
}

package imageruns

import (
	"fmt"
	"math/bits"
	"time"

	"k8s.io/apimachinery/pkg/fields"
)

// Buckets are 1, 2, 4, … minutes long, and each is half of one of the next size. A stretch that has
// ended is in the fewest that cover it and end where buckets of about a sixth of its length do. So
// most of what is in a bucket ran at each of its moments, and a moment is in one bucket of each
// size. A stretch that goes on is in a bucket of its own. The day on which a stretch ended is one,
// too: by it short ones are found of a longer time, and those that are deleted first.

const (
	bucketVersion = "2"  // of their meaning
	bucketSizes   = 22   // the largest is four years long
	running       = "on" // the bucket of what goes on
	// A stretch is rounded so that it has 1<<(roundBits-1) to 1<<roundBits buckets.
	roundBits = 3
	// maxBuckets is in how many buckets a time is looked up. Of a longer one all stretches are
	// read.
	maxBuckets = 300
)

func bucket(size int, minute int64) string { return fmt.Sprintf("%d.%d", size, minute>>size) }

// EndedOn selects the stretches that ended on the day of a time. It is for the server's own lists.
func EndedOn(t time.Time) fields.Selector {
	return fields.OneTermEqualSelector(dayField, endedOn(dayOf(t)))
}

// Running selects the stretches that go on.
func Running() fields.Selector { return fields.OneTermEqualSelector(runningField, "true") }

// RanIn selects the stretches of a cluster that ran in a window. It is for the server's own lists.
func RanIn(cluster string, w Window) fields.Selector {
	return fields.Set{clusterField: cluster, fromField: w.From.UTC().Format(time.RFC3339), untilField: w.Until.UTC().Format(time.RFC3339)}.AsSelector()
}

// endedOn returns the bucket of the stretches that ended on a day.
func endedOn(day int64) string { return fmt.Sprintf("d.%d", day) }

func minuteOf(t time.Time) int64 { return t.Unix() / 60 }

func dayOf(t time.Time) int64 { return t.Unix() / (24 * 60 * 60) }

// bucketsOf are the buckets that a stretch is in.
func bucketsOf(r *ImageRun) []string {
	if r.Status.Until == nil {
		return []string{running}
	}
	first, last := minuteOf(r.Spec.From.Time), minuteOf(r.Status.Until.Time)
	last = max(first, last)
	size := min(max(bits.Len64(uint64(last-first))-roundBits, 0), bucketSizes-1)
	all := []string{endedOn(dayOf(r.Status.Until.Time))}
	for next, end := first>>size, last>>size+1; next < end; {
		n := 0 // how many sizes larger the next one is
		for size+n+1 < bucketSizes && next&(1<<(n+1)-1) == 0 && next+1<<(n+1) <= end {
			n++
		}
		all = append(all, bucket(size+n, next<<size))
		next += 1 << n
	}
	return all
}

// buckets are those that have all stretches which ran in the window; ok is false if they are too
// many.
func (w Window) buckets() (all []string, ok bool) {
	if w.From.IsZero() || w.Until.IsZero() || w.Until.Before(w.From) {
		return nil, false
	}
	all = []string{running}
	first, last := minuteOf(w.From), minuteOf(w.Until)
	size := 0
	if first != last {
		// Stretches that are not in buckets of this size or larger ones are short: they are found
		// by the day on which they ended.
		size = max(bits.Len64(uint64(last-first))-roundBits-1, 0)
		short := time.Minute << (size + roundBits - 1)
		for day := dayOf(w.From); day <= dayOf(w.Until.Add(short+time.Minute)); day++ {
			if all = append(all, endedOn(day)); len(all) > maxBuckets {
				return nil, false
			}
		}
	}
	for ; size < bucketSizes; size++ {
		for at := first >> size; at <= last>>size; at++ {
			if all = append(all, bucket(size, at<<size)); len(all) > maxBuckets {
				return nil, false
			}
		}
	}
	return all, true
}

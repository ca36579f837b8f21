package server

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// garbageBetween is how many bytes are allocated between two garbage collections, at least.
const garbageBetween = 64 << 20

// CollectSeldom collects a small heap less often than GOGC=100 would, which waits until the heap
// has doubled: a server that holds 20 MiB would collect ten times a second under load. This takes
// at most garbageBetween bytes more. It does nothing if GOGC is set.
func CollectSeldom() {
	if os.Getenv("GOGC") != "" {
		return
	}
	var adjust func(now int)
	adjust = func(now int) {
		percent := gcPercent(liveHeap())
		if percent != now {
			debug.SetGCPercent(percent)
		}
		// The next collection finds this and adjusts again.
		runtime.AddCleanup(new([]byte), adjust, percent)
	}
	adjust(100)
}

// gcPercent is the GOGC for a heap of live bytes.
func gcPercent(live uint64) int {
	return int(max(100, min(garbageBetween*100/max(live, 1), 1000)))
}

// liveHeap is how many bytes the last garbage collection left.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

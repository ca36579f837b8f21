package rekor

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
)

// An authority never runs beside another or beside a log; logs run beside each other, and a test
// may have two.
func TestPortOfMetrics(t *testing.T) {
	p := &port{address: "127.0.0.1:0"}
	var authorities, logs atomic.Int32
	work := func() {
		for range 100 {
			runtime.Gosched()
		}
	}
	for i := range 20 {
		t.Run(fmt.Sprintf("authority %d", i), func(t *testing.T) {
			t.Parallel()
			p.take(t)
			if a, l := authorities.Add(1), logs.Load(); a != 1 || l != 0 {
				t.Errorf("%d authorities beside %d logs", a, l)
			}
			work()
			authorities.Add(-1)
		})
		t.Run(fmt.Sprintf("log %d", i), func(t *testing.T) {
			t.Parallel()
			p.share(t)
			logs.Add(1)
			p.share(t)
			if a := authorities.Load(); a != 0 {
				t.Errorf("a log beside %d authorities", a)
			}
			work()
			logs.Add(-1)
		})
	}
}

package rekor

import (
	"net"
	"sync"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// metricsPort is port 2112, at which a timestamp authority and a log of version 1
// always have their metrics. The authority ends when the port is taken; a log does
// without. Tests run side by side, so an authority waits until no log is left, and
// logs wait for its end.
var metricsPort = &port{address: ":2112"}

type port struct {
	address string
	mu      sync.Mutex
	changed *sync.Cond // over mu
	logs    int
	taken   bool
}

func (p *port) wait(ok func() bool) {
	if p.changed == nil {
		p.changed = sync.NewCond(&p.mu)
	}
	for !ok() {
		p.changed.Wait()
	}
}

// share has t be one of those that do without the port, until it ends.
func (p *port) share(t testing.TB) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wait(func() bool { return !p.taken })
	p.logs++
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.logs--
		p.changed.Broadcast()
	})
}

// take has t alone use the port, until it ends. It also waits for
// programs outside of these tests that have the port.
func (p *port) take(t testing.TB) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wait(func() bool { return !p.taken && p.logs == 0 })
	p.taken = true
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.taken = false
		p.changed.Broadcast()
	})
	harness.Eventually(t, func() error {
		l, err := net.Listen("tcp", p.address)
		if err != nil {
			return err
		}
		return l.Close()
	})
}

package limits

import (
	"container/list"
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

// maxConnections is how many connections a server holds if the process may open enough descriptors.
// An idle connection takes some 50 KiB.
const maxConnections = 4096

// Connections bounds the connections of all listeners that it wraps. If the bound is reached, a new
// connection replaces the one that has been idle longest, of the address that holds most. If none
// is idle, it replaces a busy connection of the address that holds most, unless it comes from that
// address itself.
type Connections struct {
	max        int
	handshakes chan struct{} // the turns of handshakes, see handshaking

	mu        sync.Mutex
	all       *list.List               // of *connection, the longest unused first
	byRemote  map[string]*list.Element // by RemoteAddr
	byAddress map[string]int           // how many, by Address
	warned    time.Time                // when the last warning about the limit was logged
}

// NewConnections bounds connections to max, at least one.
func NewConnections(max int) *Connections {
	return &Connections{max: max, handshakes: newHandshakes(), all: list.New(), byRemote: map[string]*list.Element{}, byAddress: map[string]int{}}
}

type connection struct {
	net.Conn
	of      *Connections
	remote  string
	address string
	element *list.Element
	busy    int // authenticated requests in flight
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	c.of.remove(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// Listen wraps a listener. One bound counts the connections of all listeners of cs.
func (cs *Connections) Listen(l net.Listener) net.Listener { return &listener{l, cs} }

type listener struct {
	net.Listener
	connections *Connections
}

// Accept implements net.Listener. If the process has no descriptor left, it closes an idle
// connection and tries again.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			if l.connections.closeOne("") {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		if c := l.connections.add(conn); c != nil {
			return c, nil
		}
		_ = conn.Close()
	}
}

// add adds a connection. It returns nil if there is no place for it.
func (cs *Connections) add(conn net.Conn) net.Conn {
	remote := conn.RemoteAddr().String()
	c := &connection{Conn: &handshaking{Conn: conn, turns: cs.handshakes}, of: cs, remote: remote, address: Address(remote)}
	for cs.full() {
		if !cs.closeOne(c.address) {
			return nil
		}
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.element = cs.all.PushBack(c)
	cs.byRemote[remote] = c.element
	cs.byAddress[c.address]++
	return c
}

func (cs *Connections) full() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.all.Len() >= cs.max
}

// closeOne closes a connection to make room for a new one from an address. It returns false if it
// may close none.
func (cs *Connections) closeOne(address string) bool {
	cs.mu.Lock()
	victim := cs.victim(address)
	if victim != nil {
		cs.remove(victim)
	}
	now := time.Now()
	warn := now.Sub(cs.warned) >= time.Minute
	if warn {
		cs.warned = now
	}
	open, max := cs.all.Len(), cs.max
	cs.mu.Unlock()
	if warn {
		slog.Warn("the server has reached its limit of connections; it closes an idle one for each new one", "open", open, "limit", max, "from", address)
	}
	if victim == nil {
		return false
	}
	_ = victim.Conn.Close() // whatever Close returns, the connection is gone
	return true
}

func (cs *Connections) victim(address string) *connection {
	var idle, busy *connection
	for e := cs.all.Front(); e != nil; e = e.Next() {
		c := e.Value.(*connection)
		best := &idle
		if c.busy > 0 {
			best = &busy
		}
		if *best == nil || cs.byAddress[c.address] > cs.byAddress[(*best).address] {
			*best = c
		}
	}
	if idle == nil && busy != nil && cs.byAddress[busy.address] > cs.byAddress[address]+1 {
		return busy
	}
	return idle
}

func (cs *Connections) remove(c *connection) {
	if c.element == nil {
		return
	}
	cs.all.Remove(c.element)
	if cs.byRemote[c.remote] == c.element {
		delete(cs.byRemote, c.remote)
	}
	c.element = nil
	if cs.byAddress[c.address]--; cs.byAddress[c.address] == 0 {
		delete(cs.byAddress, c.address)
	}
}

// begin records that the connection with a remote address has an authenticated request in flight,
// until endRequest. It returns nil if the connection belongs to no listener of cs.
func (cs *Connections) begin(remote string) *connection {
	if cs == nil {
		return nil
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	e := cs.byRemote[remote]
	if e == nil {
		return nil
	}
	c := e.Value.(*connection)
	c.busy++
	return c
}

func (cs *Connections) endRequest(c *connection) {
	if c == nil {
		return
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.busy--
	if c.element != nil {
		cs.all.MoveToBack(c.element)
	}
}

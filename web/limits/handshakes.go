package limits

import (
	"encoding/binary"
	"net"
	"runtime"
	"sync"
)

// A TLS handshake takes the server a millisecond of processor time before it knows anything about
// the caller. A thousand at once would occupy all processors, and all requests would wait. So
// handshakes take turns, and leave one processor to requests if there is more than one.

// newHandshakes returns the turns of handshakes. The channel's capacity is how many handshakes run
// at a time.
func newHandshakes() chan struct{} { return make(chan struct{}, max(1, runtime.GOMAXPROCS(0)-1)) }

// recordHeader is how long the header of a TLS record is, and typeHandshake its type (RFC 8446,
// 5.1).
const (
	recordHeader  = 5
	typeHandshake = 22
)

// handshaking is a connection whose handshake takes a turn. The turn begins when the client's first
// message has arrived, and ends when the server waits for the next one. So a slow client holds no
// turn.
type handshaking struct {
	net.Conn
	turns chan struct{}

	begin []byte // what the client has sent so far, until the first message is complete
	known bool   // the first message is complete, or there is no handshake

	mu   sync.Mutex
	turn bool // it has a turn
}

// Read implements net.Conn.
func (c *handshaking) Read(b []byte) (int, error) {
	c.endTurn()
	n, err := c.Conn.Read(b)
	if !c.known && c.wholeMessage(b[:n]) {
		c.turns <- struct{}{}
		c.mu.Lock()
		c.turn = true
		c.mu.Unlock()
	}
	return n, err
}

// wholeMessage takes the bytes that were read. It returns true once, when the client's first
// message is complete.
func (c *handshaking) wholeMessage(read []byte) bool {
	c.begin = append(c.begin, read...)
	switch {
	case len(c.begin) > 0 && c.begin[0] != typeHandshake:
		c.known, c.begin = true, nil
		return false
	case len(c.begin) < recordHeader, len(c.begin) < recordHeader+int(binary.BigEndian.Uint16(c.begin[3:])):
		return false
	}
	c.known, c.begin = true, nil
	return true
}

func (c *handshaking) endTurn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn {
		c.turn = false
		<-c.turns
	}
}

// Close implements net.Conn.
func (c *handshaking) Close() error {
	c.endTurn()
	return c.Conn.Close()
}

package limits

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// line is a listener for connections that a test makes.
type line struct {
	net.Listener
	accept func() (net.Conn, error)
}

func (l line) Accept() (net.Conn, error) { return l.accept() }

// phone is a connection from somewhere.
type phone struct {
	net.Conn
	from   string
	hungUp func(string)
}

func (p phone) RemoteAddr() net.Addr { return from(p.from) }
func (p phone) Close() error         { p.hungUp(p.from); return nil }

type from string

func (f from) Network() string { return "tcp" }
func (f from) String() string  { return string(f) }

// TestWhoseConnectionIsClosed: at the limit, a new connection replaces the least useful one.
func TestWhoseConnectionIsClosed(t *testing.T) {
	t.Parallel()
	const max = 5
	cs := NewConnections(max)
	var closed []string
	hungUp := func(from string) { closed = append(closed, from) }
	next := ""
	l := cs.Listen(line{accept: func() (net.Conn, error) {
		if next == "" {
			return nil, net.ErrClosed
		}
		from := next
		next = ""
		return phone{from: from, hungUp: hungUp}, nil
	}})
	// call makes a connection, and returns which one was closed for it.
	call := func(remote string) (net.Conn, string) {
		t.Helper()
		closed, next = nil, remote
		conn, _ := l.Accept()
		if n := cs.all.Len(); n > max || n != len(cs.byRemote) {
			t.Fatalf("%d connections are open, %d known, and there is place for %d", n, len(cs.byRemote), max)
		}
		return conn, strings.Join(closed, " ")
	}
	expect := func(remote, want string) net.Conn {
		t.Helper()
		conn, got := call(remote)
		if got != want {
			t.Fatalf("%s took the place of %q, want %q", remote, got, want)
		}
		return conn
	}
	expect("10.0.0.1:1", "")
	expect("10.0.0.2:1", "")
	expect("10.0.0.2:2", "")
	expect("10.0.0.3:1", "")
	expect("10.0.0.3:2", "")

	// Addresses 2 and 3 hold the same number. The first connection of 2 has been unused
	// for longest.
	expect("10.0.0.3:3", "10.0.0.2:1")
	// Now 3 holds most. Its first connection is in use, and its second was used last.
	busy := cs.begin("10.0.0.3:1")
	cs.endRequest(cs.begin("10.0.0.3:2"))
	expect("10.0.0.4:1", "10.0.0.3:3")
	// All addresses hold the same number except 3. Once 3 has one left, the oldest
	// goes.
	expect("10.0.0.5:1", "10.0.0.3:2")
	expect("10.0.0.6:1", "10.0.0.1:1")
	// A connection that its own side closes leaves its place.
	own := expect("10.0.0.7:1", "10.0.0.2:2")
	if err := own.Close(); err != nil {
		t.Fatal(err)
	}
	if err := own.Close(); err != nil { // as net/http does
		t.Fatal(err)
	}
	expect("10.0.0.7:2", "")
	// A connection in use may be closed only if its address holds more than its share.
	for _, remote := range []string{"10.0.0.4:1", "10.0.0.5:1", "10.0.0.6:1", "10.0.0.7:2"} {
		defer cs.endRequest(cs.begin(remote))
	}
	if conn, got := call("10.0.0.8:1"); conn != nil || got != "10.0.0.8:1" {
		t.Errorf("a connection came to a server in use, and %q was closed", got)
	}
	cs.endRequest(busy)
	expect("10.0.0.9:1", "10.0.0.3:1")
	cs.endRequest(nil)
}

// TestBusyConnectionsAreShared: if one address has all connections and uses them all, another
// address gets one of them.
func TestBusyConnectionsAreShared(t *testing.T) {
	t.Parallel()
	cs := NewConnections(4)
	var closed []string
	for i := range 4 {
		c := cs.add(phone{from: fmt.Sprintf("10.0.0.1:%d", i), hungUp: func(from string) { closed = append(closed, from) }})
		defer cs.endRequest(cs.begin(c.RemoteAddr().String()))
	}
	if cs.add(phone{from: "10.0.0.1:9"}) != nil {
		t.Error("the address that has them all got one more")
	}
	if cs.add(phone{from: "10.0.0.2:1"}) == nil || !slices.Equal(closed, []string{"10.0.0.1:0"}) {
		t.Errorf("another address got none of them; closed: %v", closed)
	}
}

// TestAcceptWithoutDescriptors: Accept continues when the process has no descriptors left.
func TestAcceptWithoutDescriptors(t *testing.T) {
	t.Parallel()
	cs := NewConnections(10)
	var closed []string
	for i := range 3 {
		cs.add(phone{from: fmt.Sprintf("10.0.0.1:%d", i), hungUp: func(from string) { closed = append(closed, from) }})
	}
	fails := 2
	l := cs.Listen(line{accept: func() (net.Conn, error) {
		if fails--; fails >= 0 {
			return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
		}
		return phone{from: "10.0.0.2:1"}, nil
	}})
	conn, err := l.Accept()
	if err != nil || conn == nil {
		t.Fatalf("accepted %v, %v", conn, err)
	}
	if want := []string{"10.0.0.1:0", "10.0.0.1:1"}; !slices.Equal(closed, want) {
		t.Errorf("closed %v, want %v", closed, want)
	}
	// If there is nothing to close, the caller of Accept gets the error, and waits.
	empty := NewConnections(10).Listen(line{accept: func() (net.Conn, error) { return nil, syscall.EMFILE }})
	if _, err := empty.Accept(); err != syscall.EMFILE {
		t.Errorf("error %v, want %v", err, syscall.EMFILE)
	}
}

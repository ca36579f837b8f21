package limits

import (
	"net"
	"testing"
	"testing/synctest"
)

// TestAttackHandshakesTakeTurns: a thousand handshakes at once leave a processor to other work. A
// client that is slow, or leaves, delays no other.
func TestAttackHandshakesTakeTurns(t *testing.T) {
	hello := []byte{typeHandshake, 3, 1, 0, 3, 'a', 'b', 'c'}
	type end struct {
		client net.Conn
		server *handshaking
		read   int // messages that the server has read
	}
	synctest.Test(t, func(t *testing.T) {
		turns := make(chan struct{}, 1)
		connect := func() *end {
			client, server := net.Pipe()
			e := &end{client: client, server: &handshaking{Conn: server, turns: turns}}
			t.Cleanup(func() { client.Close(); server.Close() })
			return e
		}
		read := func(e *end) {
			go func() {
				if _, err := e.server.Read(make([]byte, 100)); err == nil {
					e.read++
				}
			}()
		}
		send := func(e *end, b []byte) {
			go func() { _, _ = e.client.Write(b) }()
			synctest.Wait()
		}
		slow, first, second, third, plain := connect(), connect(), connect(), connect(), connect()
		for _, e := range []*end{slow, first, second, third, plain} {
			read(e)
		}
		send(slow, hello[:7])
		send(first, hello)
		send(second, hello)
		send(plain, []byte("GET / HTTP/1.1\r\n"))
		if slow.read != 1 || first.read != 1 || second.read != 0 || plain.read != 1 {
			t.Fatalf("read of the slow one %d, the first %d, the second %d, the plain one %d; want 1, 1, 0, 1", slow.read, first.read, second.read, plain.read)
		}
		read(first) // the server waits for the client's next message
		synctest.Wait()
		if second.read != 1 {
			t.Fatal("the first waits for its client, and the second has no turn")
		}
		send(third, hello)
		if third.read != 0 {
			t.Fatal("two have a turn")
		}
		_ = second.server.Close()
		synctest.Wait()
		if third.read != 1 {
			t.Fatal("the second has left, and the third has no turn")
		}
		read(third)
		send(third, hello) // and never again
		if send(first, []byte("more")); first.read != 2 || third.read != 2 || len(turns) != 0 {
			t.Errorf("read of the first %d, the third %d; %d turns are held", first.read, third.read, len(turns))
		}
	})
}

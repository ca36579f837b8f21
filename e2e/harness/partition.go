package harness

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// StartPartitionedEtcd is StartEtcd with members that Cut separates from the others.
func StartPartitionedEtcd(t testing.TB, n int, args ...string) *Etcd {
	t.Helper()
	p := &partition{conns: map[net.Conn][2]string{}, cut: map[string]bool{}, ids: map[string]string{}}
	e := startEtcd(t, n, "http", p, args...)
	e.partition = p
	return e
}

// Cut cuts a member off from the other members, in both directions, or ends that. Its clients still
// reach it.
func (e *Etcd) Cut(t testing.TB, i int, cut bool) {
	t.Helper()
	if err := e.partition.learn(strings.Split(e.Servers, ",")); err != nil {
		t.Fatal(err)
	}
	e.partition.set(fmt.Sprintf("m%d", i), cut)
}

// partition is between the members of an etcd. It knows who begins a connection by a header that
// members send to each other.
type partition struct {
	mu    sync.Mutex
	ids   map[string]string      // names of members, by ID in hexadecimal
	conns map[net.Conn][2]string // the ID of who began it, "" if that is not known, and to whom it leads
	cut   map[string]bool        // members
}

// learn asks an etcd for the IDs of its members.
func (p *partition) learn(servers []string) error {
	var err error
	for _, server := range servers {
		var resp *http.Response
		if resp, err = http.Post(server+"/v3/cluster/member/list", "application/json", strings.NewReader(`{}`)); err != nil {
			continue
		}
		var list struct{ Members []struct{ ID, Name string } }
		err = json.NewDecoder(resp.Body).Decode(&list)
		resp.Body.Close()
		if err != nil || len(list.Members) == 0 {
			continue
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, m := range list.Members {
			id, err := strconv.ParseUint(m.ID, 10, 64)
			if err != nil {
				return err
			}
			p.ids[strconv.FormatUint(id, 16)] = m.Name
		}
		return nil
	}
	return fmt.Errorf("no member lists the members: %w", err)
}

// set cuts a member off, and ends its connections, or lets it connect again.
func (p *partition) set(member string, cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut[member] = cut
	for c, ends := range p.conns {
		if cut && (p.ids[ends[0]] == member || ends[1] == member) {
			c.Close()
		}
	}
}

// allows reports whether a member may have a connection to another, and notes it.
func (p *partition) allows(c net.Conn, id, to string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut[p.ids[id]] || p.cut[to] {
		return false
	}
	p.conns[c] = [2]string{id, to}
	return true
}

// front listens for what other members send to a member, and returns the address.
func (p *partition) front(t testing.TB, member, address string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go p.forward(c, member, address)
		}
	}()
	return l.Addr().String()
}

// forward forwards a connection to a member as long as both may have it.
func (p *partition) forward(c net.Conn, member, address string) {
	defer c.Close()
	var head bytes.Buffer
	begun := bufio.NewReader(io.TeeReader(c, &head))
	req, err := http.ReadRequest(begun)
	if err != nil || !p.allows(c, req.Header.Get("X-Server-From"), member) {
		return
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
	}()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		defer c.Close()
		_, _ = io.Copy(c, to)
	}()
	_, _ = io.Copy(to, io.MultiReader(&head, c))
}

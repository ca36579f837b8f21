package harness

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// Etcd is an etcd of several members, which wait for the disk.
type Etcd struct {
	// Servers is what --etcd-servers takes.
	Servers string

	commands  []Command
	processes []*Process
}

// StartEtcd starts an etcd of n members. It is usable soon after.
func StartEtcd(t testing.TB, n int, args ...string) *Etcd {
	t.Helper()
	var clients, peers, cluster []string
	for i := range n {
		clients = append(clients, "http://127.0.0.1:"+FreePort(t))
		peers = append(peers, "http://127.0.0.1:"+FreePort(t))
		cluster = append(cluster, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	e := &Etcd{Servers: strings.Join(clients, ",")}
	dir := t.TempDir()
	for i := range n {
		e.commands = append(e.commands, Command{Path: Tool(t, "etcd"), Args: append([]string{
			"--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(dir, fmt.Sprint(i)), "--log-level", "error",
			"--listen-client-urls", clients[i], "--advertise-client-urls", clients[i],
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i], "--initial-cluster", strings.Join(cluster, ","),
		}, args...)})
		e.processes = append(e.processes, Start(t, e.commands[i]))
	}
	return e
}

// Members are the running programs.
func (e *Etcd) Members() []*Process { return e.processes }

// Restart kills a member and starts it again.
func (e *Etcd) Restart(t testing.TB, i int) {
	t.Helper()
	e.processes[i].Kill(t)
	e.processes[i] = Start(t, e.commands[i])
}

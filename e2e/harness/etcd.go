package harness

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Etcd is an etcd of several members, which wait for the disk.
type Etcd struct {
	// Servers is what --etcd-servers takes.
	Servers string

	// Authority issues the certificates of an etcd that requires them: "member" for its members,
	// "client" for the servers.
	Authority *Authority

	security  []string // the flags of a client of an etcd that asks for certificates
	commands  []Command
	restores  [][]string // the arguments with which etcdutl makes the data directory of a member
	processes []*Process
	partition *partition // nil if its members reach each other directly
}

// StartEtcd starts an etcd of n members. It is usable soon after.
func StartEtcd(t testing.TB, n int, args ...string) *Etcd {
	t.Helper()
	return startEtcd(t, n, "http", nil, args...)
}

// StartSecureEtcd is StartEtcd with an etcd that serves with a certificate and asks clients for
// one.
func StartSecureEtcd(t testing.TB, n int, args ...string) *Etcd {
	t.Helper()
	a := NewAuthority(t, t.TempDir(), "etcd")
	serving, servingKey := a.Issue(t, "member", x509.ExtKeyUsageServerAuth)
	client, clientKey := a.Issue(t, "client", x509.ExtKeyUsageClientAuth)
	e := startEtcd(t, n, "https", nil, append([]string{"--cert-file", serving, "--key-file", servingKey, "--trusted-ca-file", a.File, "--client-cert-auth"}, args...)...)
	e.security = []string{"--etcd-cafile", a.File, "--etcd-certfile", client, "--etcd-keyfile", clientKey}
	e.Authority = a
	return e
}

func startEtcd(t testing.TB, n int, scheme string, between *partition, args ...string) *Etcd {
	t.Helper()
	var clients, listens, peers, cluster []string
	for i := range n {
		clients = append(clients, scheme+"://127.0.0.1:"+FreePort(t))
		address := "127.0.0.1:" + FreePort(t)
		listens = append(listens, "http://"+address)
		if between != nil {
			address = between.front(t, fmt.Sprintf("m%d", i), address)
		}
		peers = append(peers, "http://"+address)
		cluster = append(cluster, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	e := &Etcd{Servers: strings.Join(clients, ",")}
	dir := t.TempDir()
	for i := range n {
		member := []string{"--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(dir, fmt.Sprint(i)), "--initial-advertise-peer-urls", peers[i], "--initial-cluster", strings.Join(cluster, ",")}
		e.restores = append(e.restores, member)
		e.commands = append(e.commands, Command{Path: Tool(t, "etcd"), Args: append(append([]string{
			"--log-level", "error", "--listen-client-urls", clients[i], "--advertise-client-urls", clients[i], "--listen-peer-urls", listens[i],
		}, member...), args...)})
		e.processes = append(e.processes, Start(t, e.commands[i]))
	}
	return e
}

// Flags are those with which a server reaches the etcd.
func (e *Etcd) Flags() []string {
	return append([]string{"--etcd-servers", e.Servers}, e.security...)
}

// Members are the running programs.
func (e *Etcd) Members() []*Process { return e.processes }

// Restart kills a member and starts it again.
func (e *Etcd) Restart(t testing.TB, i int) {
	t.Helper()
	e.processes[i].Kill(t)
	e.processes[i] = Start(t, e.commands[i])
}

// Replace puts a new member without data in the place of one that is lost. It serves clients at the
// same address.
func (e *Etcd) Replace(t testing.TB, i int) {
	t.Helper()
	e.processes[i].Kill(t)
	name, peer := fmt.Sprintf("m%d", i), "http://127.0.0.1:"+FreePort(t)
	type member struct {
		ID, Name string
		PeerURLs []string
	}
	// A change of the members that is proposed while none leads is never answered, so each question
	// is repeated until the list of members shows the answer.
	request := func(path, body string, into any) error {
		client := http.Client{Timeout: 5 * time.Second}
		resp, err := client.Post(strings.Split(e.Servers, ",")[(i+1)%len(e.commands)]+path, "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return json.NewDecoder(resp.Body).Decode(into)
	}
	var have struct{ Members []member }
	until := func(path string, done func() (body string)) {
		t.Helper()
		Eventually(t, func() error {
			have.Members = nil
			if err := request("/v3/cluster/member/list", `{}`, &have); err != nil {
				return err
			}
			body := done()
			if body == "" {
				return nil
			}
			return errors.Join(request(path, body, &struct{}{}), fmt.Errorf("the members are %+v", have.Members))
		})
	}
	until("/v3/cluster/member/remove", func() (body string) {
		for _, m := range have.Members {
			if m.Name == name {
				return `{"ID":"` + m.ID + `"}`
			}
		}
		return ""
	})
	cluster := []string{name + "=" + peer}
	for _, m := range have.Members {
		cluster = append(cluster, m.Name+"="+m.PeerURLs[0])
	}
	until("/v3/cluster/member/add", func() (body string) {
		if slices.ContainsFunc(have.Members, func(m member) bool { return slices.Contains(m.PeerURLs, peer) }) {
			return ""
		}
		return `{"peerURLs":["` + peer + `"]}`
	})
	e.commands[i].Args = append(slices.Clone(e.commands[i].Args), "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, // the last of a flag counts
		"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "existing", "--data-dir", filepath.Join(t.TempDir(), name))
	e.processes[i] = Start(t, e.commands[i])
}

// Ask sends a request to the first member, whose API is JSON here, and returns the answer.
func (e *Etcd) Ask(t testing.TB, path, body string) string {
	t.Helper()
	first, _, _ := strings.Cut(e.Servers, ",")
	resp, err := http.Post(first+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s: %v", path, answer, err)
	}
	return string(answer)
}

// Compact has etcd forget all changes, and returns the first member's ID.
func (e *Etcd) Compact(t testing.TB) (member string) {
	t.Helper()
	var head struct {
		Header struct {
			Revision string
			Member   string `json:"member_id"`
		}
	}
	if err := json.Unmarshal([]byte(e.Ask(t, "/v3/kv/range", `{"key":"AA==","limit":"1"}`)), &head); err != nil {
		t.Fatal(err)
	}
	e.Ask(t, "/v3/kv/compaction", `{"physical":true,"revision":"`+head.Header.Revision+`"}`)
	return head.Header.Member
}

// Snapshot writes what `etcdctl snapshot save` does, and returns the file.
func (e *Etcd) Snapshot(t testing.TB) string {
	t.Helper()
	var all bytes.Buffer
	for parts := json.NewDecoder(strings.NewReader(e.Ask(t, "/v3/maintenance/snapshot", `{}`))); ; {
		var part struct{ Result struct{ Blob []byte } }
		if err := parts.Decode(&part); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all.Write(part.Result.Blob)
	}
	file := filepath.Join(t.TempDir(), "snapshot.db")
	if err := os.WriteFile(file, all.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Restore puts all members back to a snapshot, with more arguments of etcdutl, and starts them
// again.
func (e *Etcd) Restore(t testing.TB, snapshot string, args ...string) {
	t.Helper()
	for i, p := range e.processes {
		p.Kill(t)
		dataDir := e.restores[i][3]
		if err := os.RemoveAll(dataDir); err != nil {
			t.Fatal(err)
		}
		MustRun(t, Command{Path: Tool(t, "etcdutl"), Args: append(append([]string{"snapshot", "restore", snapshot}, e.restores[i]...), args...)})
	}
	for i, c := range e.commands {
		e.processes[i] = Start(t, c)
	}
}

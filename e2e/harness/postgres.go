package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Postgres is a PostgreSQL of this machine, whose administrator is "kine".
type Postgres struct {
	// Address is where it listens.
	Address string
	// Process is the running program. It has children.
	Process *Process

	programs, dir, data string
}

// StartPostgres starts one without data. It skips the test if the machine has none.
func StartPostgres(t testing.TB, args ...string) *Postgres {
	t.Helper()
	p := newPostgres(t)
	MustRun(t, p.command("initdb", "-D", p.data, "-U", "kine", "-A", "trust", "--no-sync"))
	p.Start(t, args...)
	return p
}

func newPostgres(t testing.TB) *Postgres {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 {
		t.Skip("this machine has no PostgreSQL (Debian's package postgresql)")
	}
	// A directory of the test is not passable for another user.
	dir, err := os.MkdirTemp("", "postgres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	return &Postgres{programs: filepath.Dir(found[len(found)-1]), dir: dir, data: filepath.Join(dir, "data"), Address: "127.0.0.1:" + FreePort(t)}
}

// command is one of PostgreSQL's programs, which refuse to run as root.
func (p *Postgres) command(program string, args ...string) Command {
	c := Command{Path: filepath.Join(p.programs, program), Args: args, Dir: p.dir}
	if os.Geteuid() == 0 {
		c.Args = append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", c.Path}, args...)
		c.Path = "/usr/bin/setpriv"
	}
	return c
}

// reached are the flags with which PostgreSQL's clients reach it.
func (p *Postgres) reached() []string {
	host, port, _ := strings.Cut(p.Address, ":")
	return []string{"-h", host, "-p", port, "-U", "kine"}
}

// Start starts it again, and waits until it answers.
func (p *Postgres) Start(t testing.TB, args ...string) {
	t.Helper()
	host, port, _ := strings.Cut(p.Address, ":")
	p.Process = Start(t, p.command("postgres", append([]string{"-D", p.data, "-p", port, "-k", p.dir, "-c", "listen_addresses=" + host}, args...)...))
	Eventually(t, func() error {
		if got := Run(t, p.command("pg_isready", p.reached()...)); got.Code != 0 {
			return fmt.Errorf("%s%s", got.Stdout, got.Stderr)
		}
		return nil
	})
}

// Do runs a statement, and returns its answer.
func (p *Postgres) Do(t testing.TB, sql string) string {
	t.Helper()
	return strings.TrimSpace(MustRun(t, p.command("psql", append(p.reached(), "-d", "postgres", "-Atc", sql)...)))
}

// Standby starts another that has each commit before it is acknowledged.
func (p *Postgres) Standby(t testing.TB) *Postgres {
	t.Helper()
	s := newPostgres(t)
	MustRun(t, p.command("pg_basebackup", append(p.reached(), "-D", s.data, "-R", "-X", "stream")...))
	s.Start(t)
	p.Do(t, "ALTER SYSTEM SET synchronous_standby_names = '*'")
	p.Do(t, "SELECT pg_reload_conf()")
	Eventually(t, func() error {
		if state := p.Do(t, "SELECT sync_state FROM pg_stat_replication"); state != "sync" {
			return fmt.Errorf("the standby is %q", state)
		}
		return nil
	})
	return s
}

// Resident is the memory that all its processes occupy, in bytes. What they share counts once.
func (p *Postgres) Resident(t testing.TB) (sum int64) {
	t.Helper()
	pid := strconv.Itoa(p.Process.PID())
	children, err := os.ReadFile("/proc/" + pid + "/task/" + pid + "/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range append(strings.Fields(string(children)), pid) {
		text, _ := os.ReadFile("/proc/" + pid + "/smaps_rollup") // empty if it has ended
		var kibibytes int64
		_, rest, _ := strings.Cut(string(text), "\nPss:")
		_, _ = fmt.Sscan(rest, &kibibytes)
		sum += kibibytes << 10
	}
	return sum
}

// KineEndpoint is kine's endpoint of a PostgreSQL at an address.
func KineEndpoint(address string) string {
	return fmt.Sprintf("postgres://kine@%s/kine?sslmode=disable", address)
}

// StartKine starts what serves etcd's API from a SQL database, or one of several over the same, and
// returns what --etcd-servers takes.
func StartKine(t testing.TB, endpoint string) (servers string, kine *Process) {
	t.Helper()
	address := "127.0.0.1:" + FreePort(t)
	return "http://" + address, Start(t, KineCommand(t, endpoint, address))
}

// KineCommand serves etcd's API at an address.
func KineCommand(t testing.TB, endpoint, address string) Command {
	t.Helper()
	return Command{Path: Tool(t, "kine"), Dir: t.TempDir(), Args: []string{"--endpoint", endpoint, "--listen-address", address, "--metrics-bind-address", "0", "--datastore-poll-interval", "100ms"}}
}

package compare

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

var (
	base        = flag.String("base", "", "commit to compare this tree with; without one, few objects show that the comparison works")
	objects     = flag.Int("objects", 3000, "objects that each server holds, with -base")
	rounds      = flag.Int("rounds", 5, "rounds, each with servers that are started anew, with -base")
	connections = flag.Int("connections", 16, "requests at a time")
)

// load is what each server is asked in a round. Each kind of request comes in parts, between which
// the other servers get theirs.
type load struct {
	objects, gets, lists, watchers, watched, parts int
}

// smallLoad shows that a comparison works; wholeLoad measures.
var smallLoad = load{objects: 20, gets: 40, lists: 2, watchers: 3, watched: 5, parts: 2}

func wholeLoad() load {
	return load{objects: *objects, gets: 4 * *objects, lists: 8, watchers: 100, watched: 200, parts: 8}
}

// A server is one of those that are compared.
type server struct {
	client    *client
	processes []*harness.Process
	figures   figures
}

// processorTime is what the server has used since it was started.
func (s *server) processorTime(t testing.TB) (sum time.Duration) {
	for _, p := range s.processes {
		sum += p.ProcessorTime(t)
	}
	return sum
}

// timed measures one part of the load: its time, and the server's processor time.
func (s *server) timed(t testing.TB, part func() error) time.Duration {
	t.Helper()
	used, start := s.processorTime(t), time.Now()
	if err := part(); err != nil {
		t.Fatal(err)
	}
	took := time.Since(start)
	s.figures[processor] += (s.processorTime(t) - used).Seconds()
	return took
}

// timedEach is timed for what each of several servers does once, as one server alone does: the
// first time costs the most. It returns the time of one.
func (s *server) timedEach(t testing.TB, part func() error) time.Duration {
	t.Helper()
	n, used := len(s.client.collections), s.figures[processor]
	took := s.timed(t, func() error { return concurrently(n, 1, func(int) error { return part() }) })
	s.figures[processor] = used + (s.figures[processor]-used)/float64(n)
	return took / time.Duration(n)
}

// settle waits until a server that was started has done what starting leaves to do.
func (s *server) settle(t testing.TB) {
	const span = 500 * time.Millisecond
	harness.Eventually(t, func() error {
		before := s.processorTime(t)
		<-time.After(span)
		if used := s.processorTime(t) - before; used > span/5 {
			return fmt.Errorf("it still uses %s of %s", used, span)
		}
		return nil
	})
}

// limitDatabase is the environment variable that has this program serve a limitServer.
const limitDatabase = "TIDEWAITER_COMPARE_LIMIT"

func TestMain(m *testing.M) {
	if database := os.Getenv(limitDatabase); database != "" {
		err := ServeLimit(context.Background(), database, func(url string) { fmt.Println(url) })
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// limit starts a limitServer in a process of its own.
func limit(t testing.TB) *server {
	t.Helper()
	p := harness.Start(t, harness.Command{Path: os.Args[0], Env: []string{limitDatabase + "=" + filepath.Join(t.TempDir(), "limit.db")}})
	url := p.Stdout.AwaitMatch(t, regexp.MustCompile(`https://\S+`))[0]
	return newServer(t, &rest.Config{Host: url, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, imagesPath, image, p)
}

func imageServer(t testing.TB, program string) *server {
	t.Helper()
	s := harness.StartServerOf(t, program)
	return newServer(t, s.Config(t), imagesPath, image, s.Process())
}

const configMapsPath = "/api/v1/namespaces/default/configmaps"

func configMapServer(t testing.TB) *server {
	t.Helper()
	c := harness.StartAPIServer(t)
	return newServer(t, c.Config(t), configMapsPath, configMap, c.Processes()...)
}

func newServer(t testing.TB, config *rest.Config, path string, object func(int) object, processes ...*harness.Process) *server {
	t.Helper()
	c, err := newClient(config, path, object)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.http.CloseIdleConnections)
	return &server{client: c, processes: processes, figures: figures{}}
}

// inTurn gives a part of the load to each server, n times; who is first changes from part to part.
func inTurn(n int, servers []*server, part func(s *server, i int)) {
	order := slices.Clone(servers)
	for i := range n {
		for _, s := range order {
			part(s, i)
		}
		slices.Reverse(order)
	}
}

// round measures the servers once. Who begins changes from round to round.
func round(t *testing.T, l load, number int, all []*server) (measured []figures) {
	servers := slices.Clone(all)
	if number%2 == 1 {
		slices.Reverse(servers)
	}
	for _, s := range servers {
		s.settle(t)
	}
	spent := map[*server]time.Duration{}
	// rate notes n things in the time spent since the last rate.
	rate := func(m measure, n int) {
		for s, took := range spent {
			s.figures[m] = float64(n) / took.Seconds()
		}
		clear(spent)
	}

	used := map[*server]float64{}
	// cost notes the processor time of each of n things since the last cost.
	cost := func(m measure, n int) {
		for _, s := range servers {
			s.figures[m] = (s.figures[processor] - used[s]) * 1e6 / float64(n)
			used[s] = s.figures[processor]
		}
	}

	// Making the objects is not part of the time.
	sent := map[*server][]object{}
	for _, s := range servers {
		for i := range l.objects + l.watched {
			sent[s] = append(sent[s], s.client.object(i))
		}
	}
	part := func(all, i int) (from, to int) { return all * i / l.parts, all * (i + 1) / l.parts }
	inTurn(l.parts, servers, func(s *server, i int) {
		from, to := part(l.objects, i)
		spent[s] += s.timed(t, func() error {
			return concurrently(to-from, *connections, func(i int) error { return s.client.create(t.Context(), sent[s][from+i]) })
		})
	})
	rate(creates, l.objects)
	cost(createCost, l.objects)

	inTurn(l.parts, servers, func(s *server, i int) {
		from, to := part(l.gets, i)
		spent[s] += s.timed(t, func() error {
			// A prime steps through all objects, far from each other.
			return concurrently(to-from, *connections, func(i int) error {
				return s.client.get(t.Context(), sent[s][(from+i)*7919%l.objects].name)
			})
		})
	})
	rate(gets, l.gets)
	cost(getCost, l.gets)

	for _, list := range []struct {
		measure
		encoding string
	}{{lists, "identity"}, {gzipLists, "gzip"}} {
		inTurn(l.lists, servers, func(s *server, _ int) {
			spent[s] += s.timedEach(t, func() error { return s.client.list(t.Context(), list.encoding) })
		})
		rate(list.measure, l.lists)
	}

	inTurn(l.lists, servers, func(s *server, _ int) {
		spent[s] += s.timedEach(t, func() error {
			seen, err := s.client.watchList(t.Context())
			if err == nil && seen < l.objects {
				err = fmt.Errorf("a watch-list had %d objects of %d", seen, l.objects)
			}
			return err
		})
	})
	rate(watchLists, l.lists*l.objects)

	inTurn(1, servers, func(s *server, _ int) {
		s.timed(t, func() error {
			took, err := s.client.watch(t.Context(), l.watchers, sent[s][l.objects:])
			spent[s] = took
			return err
		})
	})
	rate(watchEvents, l.watchers*l.watched)

	for _, s := range servers {
		for _, p := range s.processes {
			s.figures[memory] += mebibytes(t, p)
		}
	}
	for _, s := range all {
		measured = append(measured, s.figures)
	}
	return measured
}

func mebibytes(t testing.TB, p *harness.Process) float64 {
	return float64(p.Resident(t)) / (1 << 20)
}

// TestCompare prints the table of a comparison with -base. Without, it compares the program under
// test with itself.
func TestCompare(t *testing.T) {
	repository := filepath.Dir(harness.ModuleDir(t))
	now, err := describe(repository)
	if err != nil {
		t.Fatal(err)
	}
	l, times := smallLoad, 1
	programs, names := [2]string{harness.Binary(t), harness.Binary(t)}, []string{now, now, "limit", "kube-apiserver + etcd, ConfigMaps"}
	if *base != "" {
		l, times = wholeLoad(), *rounds
		if names[0], err = describe(repository, *base); err != nil {
			t.Fatal(err)
		}
		programs[0] = filepath.Join(t.TempDir(), "tidewaiter")
		if err := Build(repository, *base, programs[0]); err != nil {
			t.Fatal(err)
		}
	}
	var all [][]figures
	for i := range times {
		t.Run(fmt.Sprintf("round=%d", i+1), func(t *testing.T) {
			servers := []*server{imageServer(t, programs[0]), imageServer(t, programs[1]), limit(t), configMapServer(t)}
			all = append(all, round(t, l, i, servers))
		})
	}
	if t.Failed() {
		return
	}
	report(t, l, names, all)
}

// report prints the table of the rounds, all of whose figures have to be there.
func report(t *testing.T, l load, names []string, all [][]figures) {
	t.Helper()
	fmt.Printf("\n%d objects of %.1f kB, %d connections, %d rounds in turn, %d processors\n\n%s\n",
		l.objects, float64(len(image(0).body))/1000, *connections, len(all), runtime.NumCPU(), table(names, all))
	for _, m := range measures {
		for s, f := range all[0] {
			inTicks := m == processor || m == createCost || m == getCost // of 10 ms, so a small load has none
			if f[m] <= 0 && !inTicks {
				t.Errorf("%s of %s is %g", m, names[s], f[m])
			}
		}
	}
}

// The limit understands every request of a round.
func TestLimit(t *testing.T) {
	measured := round(t, smallLoad, 0, []*server{limit(t)})
	report(t, smallLoad, []string{"limit", "limit"}, [][]figures{{measured[0], measured[0]}})
}

func TestObjectsAreAlikeInSize(t *testing.T) {
	const want, margin = 19700, 300
	for i := range 50 {
		for kind, object := range map[string]func(int) object{"Image": image, "ConfigMap": configMap, "custom resource": customImage} {
			if size := len(object(i).body); size < want-margin || size > want+margin {
				t.Errorf("%s %d has %d bytes, want about %d", kind, i, size, want)
			}
			if !slices.Equal(object(i).body, object(i).body) || object(i).name == object(i+1).name {
				t.Errorf("%s %d is not what its number says", kind, i)
			}
		}
	}
}

func TestTable(t *testing.T) {
	one := func(v float64) figures {
		f := figures{}
		for _, m := range measures {
			f[m] = v
		}
		return f
	}
	got := table([]string{"old", "new", "peer"}, [][]figures{{one(1000), one(900), one(300)}, {one(500), one(600), one(300)}, {one(2), one(2), one(1)}})
	for _, want := range []string{
		"| | old | new | ratio | peer | ratio |\n",
		"| creates/s | 500 | 600 | **1.00** (0.90 to 1.20) | 300 | **2.00** (2.00 to 3.00) |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table lacks\n%sit is\n%s", want, got)
		}
	}
	got = table([]string{"one", "three"}, [][]figures{{one(100), one(50)}})
	for _, want := range []string{"| | one | three | ratio |\n|---|---|---|---|\n", "| gets/s | 100 | 50 | **0.50** (0.50 to 0.50) |\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("the table of two lacks\n%sit is\n%s", want, got)
		}
	}
}

// A commit is built whatever the tree holds, and leaves no work tree behind.
func TestBuild(t *testing.T) {
	repository, program := t.TempDir(), filepath.Join(t.TempDir(), "program")
	write := func(name, content string) {
		t.Helper()
		path := filepath.Join(repository, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	must := func(dir, name string, args ...string) string {
		t.Helper()
		out, err := run(dir, name, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	write("go.mod", "module example.com/m\n")
	write("cmd/tidewaiter/main.go", "package main\n\nfunc main() { print(`committed`) }\n")
	must(repository, "git", "init", "--quiet")
	must(repository, "git", "add", ".")
	must(repository, "git", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "-m", "one")
	write("cmd/tidewaiter/main.go", "package main\n\nfunc main() { print(`changed`) }\n")
	if err := Build(repository, "HEAD", program); err != nil {
		t.Fatal(err)
	}
	if got := must("", program); got != "committed" {
		t.Errorf("the program of the commit prints %q", got)
	}
	if trees := must(repository, "git", "worktree", "list"); strings.Count(trees, "\n") != 1 {
		t.Errorf("work trees are left:\n%s", trees)
	}
	if err := Build(repository, "no-such-commit", program); err == nil {
		t.Error("a commit that does not exist was built")
	}
	if now, err := describe(repository); err != nil || !strings.HasSuffix(now, "-dirty") {
		t.Errorf("the changed tree is called %q: %v", now, err)
	}
}

package harness

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Patience is how long anything is waited for. It is generous: it bounds a
// hang, it measures nothing.
var Patience = time.Minute

func init() {
	flag.DurationVar(&Patience, "patience", Patience, "how long anything is waited for; more where much else runs")
}

// Command is a program to run.
type Command struct {
	Path  string
	Args  []string
	Dir   string   // working folder; empty: the test's
	Env   []string // added to the environment, NAME=value
	Stdin string
}

func (c Command) String() string {
	return strings.Join(append([]string{c.Path}, c.Args...), " ")
}

// Result is how a program ended.
type Result struct {
	Command        Command
	Stdout, Stderr string
	Code           int
}

// Run runs a program to its end, whatever its exit code is.
func Run(t testing.TB, c Command) Result {
	t.Helper()
	p := Start(t, c)
	code := p.Wait(t)
	return Result{Command: c, Stdout: p.Stdout.String(), Stderr: p.Stderr.String(), Code: code}
}

// Process is a running program.
type Process struct {
	Stdout, Stderr *Output

	command Command
	cmd     *exec.Cmd
	exited  chan struct{}
	awaited atomic.Bool // whoever waited for its end reports it
}

// Start starts a program that is killed, if it still runs, when the test ends.
func Start(t testing.TB, c Command) *Process {
	t.Helper()
	p := &Process{command: c, cmd: exec.Command(c.Path, c.Args...), Stdout: newOutput(), Stderr: newOutput(), exited: make(chan struct{})}
	p.cmd.Dir = c.Dir
	p.cmd.Env = append(os.Environ(), c.Env...)
	p.cmd.Stdin = strings.NewReader(c.Stdin)
	p.cmd.Stdout, p.cmd.Stderr = p.Stdout, p.Stderr
	// A grandchild that keeps the pipes open must not keep Wait from returning.
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", c, err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // the exit code is read from ProcessState
		p.Stdout.close()
		p.Stderr.close()
	}()
	t.Cleanup(func() {
		awaited := p.awaited.Load()
		p.Kill(t)
		if t.Failed() && !awaited {
			t.Logf("%s\n--- its standard output:\n%s\n--- its standard error:\n%s", c, tail(p.Stdout.String()), tail(p.Stderr.String()))
		}
	})
	return p
}

// tail keeps a failing test's log readable.
func tail(s string) string {
	const limit = 4 << 10
	if len(s) <= limit {
		return s
	}
	return "[…]" + s[len(s)-limit:]
}

// Kill ends the program as kill -9 does and waits until it is gone.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGKILL)
	p.Wait(t)
}

// Signal sends a signal; a program that has ended is left alone.
func (p *Process) Signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("%v to %s: %v", sig, p.command, err)
	}
}

// Wait waits for the program's end and returns its exit code, -1 when a
// signal ended it.
func (p *Process) Wait(t testing.TB) int {
	t.Helper()
	p.awaited.Store(true)
	select {
	case <-p.exited:
	case <-time.After(2 * Patience):
		t.Fatalf("%s still runs after %s", p.command, 2*Patience)
	}
	return p.cmd.ProcessState.ExitCode()
}

// Running reports whether the program has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// PID is the program's process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// ProcessorTime is what the program has used so far, in user and kernel mode.
func (p *Process) ProcessorTime(t testing.TB) time.Duration {
	t.Helper()
	text := p.proc(t, "stat")
	// The second field is a name in parentheses that may hold spaces.
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	ticks := 0
	for _, field := range fields[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			t.Fatalf("/proc/%d/stat: %v", p.PID(), err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// Resident is the memory that the program occupies, in bytes.
func (p *Process) Resident(t testing.TB) int64 {
	t.Helper()
	_, rest, _ := strings.Cut(p.proc(t, "status"), "VmRSS:")
	var kibibytes int64
	if _, err := fmt.Sscan(rest, &kibibytes); err != nil {
		t.Fatalf("/proc/%d/status: %v", p.PID(), err)
	}
	return kibibytes << 10
}

// proc reads a file of Linux about the program.
func (p *Process) proc(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.PID(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Exited is closed when the program has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Output collects what a program writes and can be waited on.
type Output struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	changed chan struct{} // closed and replaced at each write
	closed  bool
}

var _ io.Writer = (*Output)(nil)

func newOutput() *Output { return &Output{changed: make(chan struct{})} }

func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.wake()
	return o.buf.Write(b)
}

func (o *Output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.wake()
}

func (o *Output) wake() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// String is everything written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Await waits until what was written satisfies a condition and returns it. It
// fails the test after [Patience], or as soon as no more can come.
func (o *Output) Await(t testing.TB, what string, cond func(written string) bool) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	for {
		o.mu.Lock()
		written, changed, closed := o.buf.String(), o.changed, o.closed
		o.mu.Unlock()
		if cond(written) {
			return written
		}
		if closed {
			t.Fatalf("the program ended before %s; it wrote:\n%s", what, tail(written))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("no %s within %s; the program wrote:\n%s", what, Patience, tail(written))
		}
	}
}

// AwaitMatch waits for a line that matches and returns its submatches.
func (o *Output) AwaitMatch(t testing.TB, re *regexp.Regexp) []string {
	t.Helper()
	var match []string
	o.Await(t, "line matching "+re.String(), func(written string) bool {
		match = re.FindStringSubmatch(written)
		return match != nil
	})
	return match
}

// Eventually polls a condition until it holds, and fails the test with its last
// explanation after [Patience].
func Eventually(t testing.TB, cond func() error) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for {
		err := cond()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still not so after %s: %v", Patience, err)
		}
		<-time.After(20 * time.Millisecond)
	}
}

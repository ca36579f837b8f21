package podlogs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/internal/room"
)

const patience = time.Minute

// line is a log line of a container runtime, at second n.
func line(n int, text string) string {
	return fmt.Sprintf("2026-01-01T00:00:%02d.000000000Z stdout F %s\n", n, text)
}

// livePod is a pod whose status a test changes.
type livePod struct {
	mu  sync.Mutex
	pod *api.Pod // nil when it is gone
	err error
}

func (l *livePod) get(context.Context) (*api.Pod, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return nil, l.err
	case l.pod == nil:
		return nil, apierrors.NewNotFound(api.Resource("pods"), "pod")
	}
	return l.pod.DeepCopy(), nil
}

func (l *livePod) change(f func(*api.Pod)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.pod)
}

func running() *livePod {
	return &livePod{pod: &api.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", UID: "uid"},
		Status: api.PodStatus{Phase: api.PodRunning, ContainerStatuses: []api.ContainerStatus{
			{Name: "app", State: api.ContainerState{Running: &api.ContainerStateRunning{}}},
		}},
	}}
}

// isFree reports whether none of n slots is held.
func isFree(slots *room.Room, n int64) bool {
	ok := slots.TryAdd("all", 0, n)
	if ok {
		slots.Remove("all", n)
	}
	return ok
}

// open starts a stream of the log file 0.log in dir.
func open(t *testing.T, ctx context.Context, dir string, pod *livePod, slots *room.Room, opts logOptions) io.ReadCloser {
	t.Helper()
	s := &fileStream{
		path: filepath.Join(dir, "0.log"), opts: opts, stdout: true, stderr: true, slots: slots,
		container: &container{get: pod.get, uid: "uid", name: "app", clock: clock.RealClock{}},
	}
	stream, _, contentType, err := s.InputStream(ctx, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if contentType != "text/plain" {
		t.Errorf("content type %q", contentType)
	}
	return stream
}

// next reads the next line of a followed log.
func next(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	got := make(chan string, 1)
	go func() {
		s, err := r.ReadString('\n')
		if err != nil {
			s += "[" + err.Error() + "]"
		}
		got <- strings.TrimSuffix(s, "\n")
	}()
	select {
	case s := <-got:
		return s
	case <-time.After(patience):
		t.Fatal("no line")
		return ""
	}
}

func appendLine(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestFollowThroughRotationUntilTheContainerEnds(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "0.log", line(1, "one"))
	pod := running()
	stream := open(t, t.Context(), dir, pod, room.New(1, 1), logOptions{follow: true})
	defer stream.Close()
	r := bufio.NewReader(stream)
	expect := func(want string) {
		t.Helper()
		if got := next(t, r); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	expect("one")
	path := filepath.Join(dir, "0.log")
	appendLine(t, path, line(2, "two"))
	expect("two")

	// Rotation as the kubelet does it: the file is renamed, the runtime
	// writes on into it until it is told to open the name again.
	if err := os.Rename(path, path+".20260101-000002"); err != nil {
		t.Fatal(err)
	}
	appendLine(t, path+".20260101-000002", line(3, "three, into the renamed file"))
	expect("three, into the renamed file")
	appendLine(t, path, line(4, "four, into the new file"))
	expect("four, into the new file")

	appendLine(t, path, line(5, "last words"))
	pod.change(func(p *api.Pod) {
		p.Status.ContainerStatuses[0].State = api.ContainerState{Terminated: &api.ContainerStateTerminated{}}
	})
	expect("last words")
	if got := next(t, r); got != "[EOF]" {
		t.Errorf("after the container ended: %q", got)
	}
}

// The log is rotated while its first part is being read, before the reader
// watches for that: the reader is held up by a client that does not read.
func TestRotationWhileTheBacklogIsRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	write(t, dir, "0.log", line(1, "one")+line(2, "two"))
	limit := int64(len("one\ntwo\nthree\nfo"))
	stream := open(t, t.Context(), dir, running(), room.New(1, 1), logOptions{follow: true, limitBytes: &limit})
	defer stream.Close()
	r := bufio.NewReaderSize(stream, 16) // one line at a time
	if got := next(t, r); got != "one" {
		t.Fatal(got)
	}
	if err := os.Rename(path, path+".20260101-000002"); err != nil {
		t.Fatal(err)
	}
	appendLine(t, path, line(3, "three")+line(4, "four"))
	got, err := io.ReadAll(r)
	if want := "two\nthree\nfo"; err != nil || string(got) != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestContainerHasEnded(t *testing.T) {
	status := func(restarts int32, state api.ContainerState) *livePod {
		l := running()
		l.pod.Status.ContainerStatuses[0] = api.ContainerStatus{Name: "app", RestartCount: restarts, State: state}
		return l
	}
	again := func(restarts int32) *livePod {
		l := status(restarts, api.ContainerState{Waiting: &api.ContainerStateWaiting{Reason: "CrashLoopBackOff"}})
		l.pod.Status.ContainerStatuses[0].LastTerminationState.Terminated = &api.ContainerStateTerminated{}
		return l
	}
	runs := api.ContainerState{Running: &api.ContainerStateRunning{}}
	ended := api.ContainerState{Terminated: &api.ContainerStateTerminated{}}
	for name, test := range map[string]struct {
		pod  *livePod
		want bool
	}{
		"runs":               {status(2, runs), true},
		"terminated":         {status(2, ended), false},
		"restarted since":    {status(3, runs), false},
		"waits":              {status(2, api.ContainerState{Waiting: &api.ContainerStateWaiting{}}), true},
		"waits to restart":   {again(2), false},
		"is being restarted": {again(1), true},
		"status unknown":     {&livePod{pod: &api.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}}}, true},
		"pod succeeded":      {&livePod{pod: &api.Pod{ObjectMeta: metav1.ObjectMeta{UID: "uid"}, Status: api.PodStatus{Phase: api.PodSucceeded}}}, false},
		"pod gone":           {&livePod{}, false},
		"another pod now":    {&livePod{pod: &api.Pod{ObjectMeta: metav1.ObjectMeta{UID: "other"}}}, false},
		"storage unreadable": {&livePod{err: errors.New("disk on fire")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := &container{get: test.pod.get, uid: "uid", name: "app", restarts: 2, clock: clock.RealClock{}}
			if got := c.running(t.Context()); got != test.want {
				t.Errorf("running is %v, want %v", got, test.want)
			}
		})
	}
}

// A hundred clients follow a log; half close their stream and half just leave.
// No goroutine, no slot and no inotify instance stays.
func TestFollowersLeaveNothingBehind(t *testing.T) {
	const followers = 100
	dir := t.TempDir()
	write(t, dir, "0.log", line(1, "one"))
	pod := running()
	slots := room.New(followers+1, followers)
	before := runtime.NumGoroutine()
	for round := range 2 { // the second round finds the system as the first did
		ctx, leave := context.WithCancel(t.Context())
		var streams []io.ReadCloser
		for i := range followers {
			parent := t.Context()
			if i%2 == 0 {
				parent = ctx
			}
			stream := open(t, parent, dir, pod, slots, logOptions{follow: true})
			streams = append(streams, stream)
			if got := next(t, bufio.NewReader(stream)); got != "one" {
				t.Fatalf("round %d, follower %d got %q", round, i, got)
			}
		}
		one := &fileStream{slots: slots}
		if _, _, _, err := one.InputStream(t.Context(), "", ""); !apierrors.IsTooManyRequests(err) {
			t.Errorf("one follower more than the limit of a user: %v, want 429", err)
		}
		alice := request.WithUser(t.Context(), &user.DefaultInfo{Name: "alice"})
		another := open(t, alice, dir, pod, slots, logOptions{follow: true})
		if _, _, _, err := one.InputStream(request.WithUser(t.Context(), &user.DefaultInfo{Name: "bob"}), "", ""); !apierrors.IsTooManyRequests(err) {
			t.Errorf("one follower more than the limit of all: %v, want 429", err)
		}
		if err := another.Close(); err != nil {
			t.Error(err)
		}
		leave()
		for i, stream := range streams {
			if i%2 == 0 {
				// The client left: the stream ends by itself.
				if rest, err := io.ReadAll(stream); err != nil || len(rest) > 0 {
					t.Errorf("after the client left: %q, %v", rest, err)
				}
				continue
			}
			if err := stream.Close(); err != nil {
				t.Error(err)
			}
		}
		deadline := time.Now().Add(patience)
		for !isFree(slots, followers+1) || runtime.NumGoroutine() > before+2 {
			if time.Now().After(deadline) {
				buf := make([]byte, 1<<16)
				t.Fatalf("slots or %d goroutines (%d before) are held\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
			}
			runtime.Gosched()
		}
	}
}

func TestUnreadableLogEndsWithTheReason(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "0.log", "neither CRI nor JSON\n")
	stream := open(t, t.Context(), dir, running(), room.New(1, 1), logOptions{})
	got, err := io.ReadAll(stream)
	if err != nil || !strings.Contains(string(got), "the log ends here because reading failed") {
		t.Errorf("got %q, %v", got, err)
	}
}

package podlogs

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/cri-client/pkg/logs"
	"k8s.io/klog/v2"
	api "k8s.io/kubernetes/pkg/apis/core"

	"github.com/tidewaiter/tidewaiter/internal/room"
)

// endless writes a log whose only line is of the given size, all of it but the
// beginning a hole in the file.
func endless(t *testing.T, size int64) (dir string) {
	t.Helper()
	dir = t.TempDir()
	write(t, dir, "0.log", "2026-01-01T00:00:01.000000000Z stdout F begins")
	if err := os.Truncate(filepath.Join(dir, "0.log"), size); err != nil {
		t.Fatal(err)
	}
	return dir
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A line of half a gigabyte takes no more memory than a short one, also where
// only its end or nothing of it is wanted.
func TestLineWithoutEnd(t *testing.T) {
	const size, enough = 512 << 20, 16 << 20
	dir := endless(t, size)
	one := int64(1)
	for name, test := range map[string]struct {
		opts logOptions
		want int64
	}{
		"all":        {logOptions{}, size - int64(len("2026-01-01T00:00:01.000000000Z stdout F "))},
		"timestamps": {logOptions{timestamps: true}, size - int64(len("stdout F "))},
		"tail":       {logOptions{tailLines: &one}, size - int64(len("2026-01-01T00:00:01.000000000Z stdout F "))},
		"later ones": {logOptions{since: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var n int64
			var err error
			took := allocated(func() {
				stream := open(t, t.Context(), dir, running(), room.New(1, 1), test.opts)
				n, err = io.Copy(io.Discard, stream)
			})
			if err != nil || n != test.want {
				t.Errorf("%d bytes, %v; want %d", n, err, test.want)
			}
			if took > enough {
				t.Errorf("%d MiB were allocated", took>>20)
			}
		})
	}
}

// Of a line that nobody could read to its end, limitBytes ends the reading, and
// so does a client that leaves.
func TestReadingOfALineWithoutEndEnds(t *testing.T) {
	const size = 1 << 40
	dir := endless(t, size)
	free := func(slots *room.Room) {
		t.Helper()
		for deadline := time.Now().Add(patience); !isFree(slots, 1); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the log is still being read")
			}
		}
	}
	slots := room.New(1, 1)
	limit := int64(3)
	got, err := io.ReadAll(open(t, t.Context(), dir, running(), slots, logOptions{limitBytes: &limit}))
	if err != nil || string(got) != "beg" {
		t.Errorf("got %q, %v", got, err)
	}
	free(slots)

	for _, opts := range []logOptions{{}, {follow: true}, {since: time.Now()}, {tailLines: &limit}} {
		// The client has the beginning, if there is one, and goes.
		ctx, leave := context.WithCancel(t.Context())
		stream := open(t, ctx, dir, running(), slots, opts)
		if opts.since.IsZero() && opts.tailLines == nil {
			if _, err := io.ReadFull(stream, make([]byte, 6)); err != nil {
				t.Fatal(err)
			}
		}
		leave()
		free(slots)
		// Or closes its stream.
		if err := open(t, t.Context(), dir, running(), slots, opts).Close(); err != nil {
			t.Fatal(err)
		}
		free(slots)
	}
}

// A client that leaves while the server waits for it to read is noticed.
func TestClientLeavesWithoutReading(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "0.log", strings.Repeat(line(1, strings.Repeat("x", 1000)), 1000))
	ctx, leave := context.WithCancel(t.Context())
	slots := room.New(1, 1)
	open(t, ctx, dir, running(), slots, logOptions{follow: true})
	leave()
	for deadline := time.Now().Add(patience); !isFree(slots, 1); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the log is still being read")
		}
	}
}

// A line that is written in pieces comes when it is whole, one that is larger
// than the buffer in pieces, and what has no end comes when the container ends.
func TestFollowedPieces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	whole := line(1, "one")
	write(t, dir, "0.log", whole[:10])
	pod := running()
	stream := open(t, t.Context(), dir, pod, room.New(1, 1), logOptions{follow: true})
	expect := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(stream, got); err != nil || string(got) != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	appendLine(t, path, whole[10:])
	expect("one\n")
	long := strings.Repeat("long", partSize)
	appendLine(t, path, "2026-01-01T00:00:02Z stdout F "+long)
	expect(long[:3*partSize])
	appendLine(t, path, "er\n"+line(3, "three"))
	expect(long[3*partSize:] + "er\nthree\n")
	appendLine(t, path, "2026-01-01T00:00:04Z stdout F no end")
	pod.change(func(p *api.Pod) { p.Status.Phase = api.PodSucceeded })
	expect("no end")
	if rest, err := io.ReadAll(stream); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
}

// FuzzReadLog holds what is made of a log to what the kubelet's reader makes of
// it.
func FuzzReadLog(f *testing.F) {
	const stamp = "2026-01-01T00:00:01.5Z "
	f.Add([]byte(line(1, "one")+line(2, "two")), int64(1), int64(100), int64(0), false, uint8(3))
	f.Add([]byte(stamp+"stdout P part\n"+stamp+"stderr F other\n"+stamp+"stdout F whole\n"), int64(-1), int64(-1), int64(0), true, uint8(3))
	f.Add([]byte(stamp+"stdout P \n"+stamp+"stdout P:x a\n"+stamp+"stdout F:y \n"+stamp+"stdout F no end"), int64(3), int64(9), int64(1), true, uint8(1))
	f.Add([]byte(stamp+"stdout F a\nno line\n\n"+stamp+"stdin F b\n"+stamp+"stderr F\n"+stamp+"stderr F c d\n"), int64(2), int64(-1), int64(0), true, uint8(2))
	f.Add([]byte(stamp+"stdout F "+strings.Repeat("long", partSize/2)+"\n"+stamp+"stdout P "+strings.Repeat("x", partSize)+"\n"), int64(1), int64(3*partSize), int64(0), true, uint8(3))
	f.Add([]byte("2026-01-01T00:00:00.9+01:00 stdout F early\n"+stamp+"stdout F late\n"), int64(0), int64(-1), int64(1), true, uint8(3))
	f.Add([]byte(stamp+"stdout F first\n\nno line\n"+stamp+"stdout F "), int64(4), int64(-1), int64(0), true, uint8(1))
	f.Fuzz(func(t *testing.T, content []byte, tail, limit, since int64, timestamps bool, streams uint8) {
		if bytes.HasPrefix(content, []byte("{")) {
			return // Docker's format, which is not read here
		}
		dir := t.TempDir()
		write(t, dir, "0.log", string(content))
		ours := logOptions{timestamps: timestamps}
		theirs := logs.LogOptions{Timestamp: timestamps}
		if tail >= 0 {
			ours.tailLines, theirs.TailLines = &tail, &tail
		}
		if limit > 0 {
			ours.limitBytes, theirs.LimitBytes = &limit, &limit
		}
		if since > 0 {
			ours.since = time.Date(2026, 1, 1, 0, 0, 0, int(since%2e9), time.UTC)
			theirs.Since = ours.since
		}
		stream := &fileStream{path: filepath.Join(dir, "0.log"), opts: ours, stdout: streams&1 != 0, stderr: streams&2 != 0}
		var got, want bytes.Buffer
		err := newLogReader(stream, &got).copy(t.Context())
		var stdout, stderr io.Writer
		if stream.stdout {
			stdout = &want
		}
		if stream.stderr {
			stderr = &want
		}
		theirErr := logs.ReadLogs(klog.NewContext(t.Context(), logr.Discard()), stream.path, "", &theirs, nil, stdout, stderr)
		if (err == nil) != (theirErr == nil) {
			t.Fatalf("error %v, upstream's %v", err, theirErr)
		}
		if !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("got %q, upstream %q", got.Bytes(), want.Bytes())
		}
	})
}

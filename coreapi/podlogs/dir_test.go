package podlogs

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// write writes a file below dir and what leads to it.
func write(t testing.TB, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestLogFile(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"ns_pod_uid/app/0.log", "ns_pod_uid/app/2.log", "ns_pod_uid/app/10.log", "ns_pod_uid/app/10.log.20260101-000000",
		"ns_pod_uid/app/11.log.gz", "ns_pod_uid/app/007.log", "ns_pod_uid/app/-1.log", "ns_pod_uid/app/99999999999.log", "ns_pod_uid/app/x.log",
		"ns_pod_uid/once/3.log", "ns_pod_uid/empty/note.txt", "outside.log",
	} {
		write(t, dir, name, "x")
	}
	if err := os.MkdirAll(filepath.Join(dir, "ns_pod_uid", "folder", "0.log"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, container string
		previous        bool
		want            string // below dir
		restarts        int
		none            bool
		fails           string
	}{
		{name: "the newest, by number", container: "app", want: "ns_pod_uid/app/10.log", restarts: 10},
		{name: "the one before it", container: "app", previous: true, want: "ns_pod_uid/app/2.log", restarts: 2},
		{name: "only one", container: "once", want: "ns_pod_uid/once/3.log", restarts: 3},
		{name: "none before the only one", container: "once", previous: true, none: true},
		{name: "no log yet", container: "empty", none: true},
		{name: "no such container", container: "missing", none: true},
		{name: "a folder named like a log", container: "folder", fails: "not a regular file"},
		{name: "up", container: "..", fails: "not a plain name"},
		{name: "here", container: ".", fails: "not a plain name"},
		{name: "deeper", container: "app/..", fails: "not a plain name"},
		{name: "nothing", container: "", fails: "not a plain name"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, restarts, err := logFile(dir, podDir("ns", "pod", "uid"), test.container, test.previous)
			switch {
			case test.none:
				if !errors.Is(err, errNoLog) {
					t.Errorf("got %q, %v; want no log", got, err)
				}
			case test.fails != "":
				if err == nil || !strings.Contains(err.Error(), test.fails) || errors.Is(err, errNoLog) {
					t.Errorf("got %q, %v; want an error with %q", got, err, test.fails)
				}
			default:
				if err != nil || got != filepath.Join(dir, test.want) || restarts != test.restarts {
					t.Errorf("got %q, %d, %v; want %q, %d", got, restarts, err, test.want, test.restarts)
				}
			}
		})
	}
}

// A symbolic link is refused wherever it stands and wherever it leads.
func TestLinksAreRefused(t *testing.T) {
	dir := t.TempDir()
	outside := t.TempDir()
	write(t, outside, "app/0.log", "secret")
	write(t, dir, "ns_real_uid/app/0.log", "x")
	link := func(target, name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link(outside, "ns_pod_uid")
	link(filepath.Join(outside, "app"), "ns_container_uid/app")
	link(filepath.Join(outside, "app", "0.log"), "ns_file_uid/app/0.log")
	link("../../ns_real_uid/app/0.log", "ns_inside_uid/app/0.log")
	link("/proc/self/environ", "ns_proc_uid/app/0.log")
	for _, pod := range []string{"pod", "container", "file", "inside", "proc"} {
		t.Run(pod, func(t *testing.T) {
			got, _, err := logFile(dir, podDir("ns", pod, "uid"), "app", false)
			if err == nil || !strings.Contains(err.Error(), "links are not followed") {
				t.Errorf("got %q, %v; want links to be refused", got, err)
			}
		})
	}
}

// No names, whatever they are, lead out of the directory or into another pod's.
func FuzzLogFile(f *testing.F) {
	f.Add("uid", "app", false)
	f.Add("../../ns_other_uid", "app", false)
	f.Add("uid/../..", "..", true)
	f.Add("uid\x00", "app\\..\\..", false)
	f.Add("", "", true)
	f.Add(strings.Repeat("a", 300), "app", false)
	dir := f.TempDir()
	write(f, dir, "logs/ns_pod_uid/app/0.log", "x")
	write(f, dir, "logs/ns_pod_uid/app/1.log", "x")
	write(f, dir, "logs/ns_other_uid/app/0.log", "x")
	write(f, dir, "0.log", "x")
	write(f, dir, "app/0.log", "x")
	logs := filepath.Join(dir, "logs")
	f.Fuzz(func(t *testing.T, uid, container string, previous bool) {
		path, restarts, err := logFile(logs, podDir("ns", "pod", uid), container, previous)
		if err != nil {
			return
		}
		want := filepath.Join(logs, "ns_pod_uid", "app", strconv.Itoa(restarts)+".log")
		if path != want || uid != "uid" || container != "app" {
			t.Errorf("UID %q and container %q lead to %s", uid, container, path)
		}
	})
}

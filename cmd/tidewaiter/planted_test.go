package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	tidewaiterserver "github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// execKubeconfig names a program that leaves a file called marker.
func execKubeconfig(server, marker string) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: x
clusters: [{name: x, cluster: {server: %q, insecure-skip-tls-verify: true}}]
contexts: [{name: x, context: {cluster: x, user: x}}]
users:
- name: x
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, args: [%q], interactiveMode: Never}
`, server, marker)
}

// holdLock holds a data directory as a server at url does.
func holdLock(t *testing.T, dir, url string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := fmt.Fprintf(f, `{"pid":1,"info":%q}`, url); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
}

// A verb that finds the server through ./tidewaiter-data runs no program that a
// planted admin.kubeconfig names, not even in a directory that it owns.
func TestPlantedKubeconfigRunsNothing(t *testing.T) {
	t.Chdir(t.TempDir())
	marker := filepath.Join(t.TempDir(), "ran")
	if err := os.MkdirAll("tidewaiter-data/pki", 0o700); err != nil {
		t.Fatal(err)
	}
	const url = "https://127.0.0.1:1"
	holdLock(t, "tidewaiter-data", url)
	for _, name := range []string{"admin.kubeconfig", "pki/local.json"} {
		if err := os.WriteFile(filepath.Join("tidewaiter-data", name), execKubeconfig(url, marker), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"spool", "list"}, {"import", "127.0.0.1:1/a:b"}, {"verify", "--all"}, {"import", "--from-pods"}} {
		code, _, stderr := tidewaiter(t, args...)
		if code == cli.ExitOK || !strings.Contains(stderr, "its credential cannot be used") || !strings.Contains(stderr, "local.json") {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
		if _, err := os.Stat(marker); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%v ran the planted command: %v", args, err)
		}
	}
}

// A data directory that another user made is not used, by no verb.
func TestDataDirectoryOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("NOT CHECKED: only root can give a directory to another user")
	}
	t.Chdir(t.TempDir())
	if err := errors.Join(os.Mkdir("tidewaiter-data", 0o700), os.Chown("tidewaiter-data", 4242, 4242)); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"serve", "--secure-port", "0"}, {"import", "127.0.0.1:1/a:b"}, {"spool", "list"}, {"verify", "--all"}, {"db", "stats"}, {"backup", "b.db"},
	} {
		code, _, stderr := tidewaiter(t, args...)
		if args[0] == "db" || args[0] == "backup" {
			// They look for the database first.
			if code == cli.ExitOK {
				t.Errorf("%v: exit code 0", args)
			}
			continue
		}
		for _, want := range []string{"tidewaiter-data is refused, as it belongs to another user, 4242", "drwx------ 4242 4242 ", "chown root "} {
			if code == cli.ExitOK || !strings.Contains(stderr, want) {
				t.Errorf("%v: exit code %d, %q lacks %q", args, code, stderr, want)
			}
		}
	}
	if got := entries(t, "tidewaiter-data"); len(got) > 0 {
		t.Errorf("the directory holds %v", got)
	}
}

// Every file of a data directory that another user could have changed keeps a server
// from starting, and so does one in the configuration. The error has the command
// that mends it.
func TestFilesThatAnotherUserCanWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	listener := listen(t)
	s, err := tidewaiterserver.Open(t.Context(), tidewaiterserver.Options{DataDir: dir}, listener)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.DB.Close(), listener.Close()); err != nil {
		t.Fatal(err)
	}
	config := servertest.WriteConfig(t, "registries: []\n")
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		dir, filepath.Join(dir, "pki"), filepath.Join(dir, "tidewaiter.db"), filepath.Join(dir, "lock"), filepath.Join(dir, "admin.kubeconfig"),
		filepath.Join(dir, "pki", "tokens.csv"), filepath.Join(dir, "pki", "local.json"), filepath.Join(dir, "pki", "ca.crt"),
		filepath.Join(dir, "pki", "ca.key"), filepath.Join(dir, "pki", "serving.crt"), filepath.Join(dir, "pki", "serving.key"),
		config, policy, filepath.Dir(policy),
	} {
		t.Run(filepath.Base(path), func(t *testing.T) {
			fi, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(path, fi.Mode().Perm()|0o002); err != nil {
				t.Fatal(err)
			}
			defer os.Chmod(path, fi.Mode())
			args := []string{"serve", "--secure-port", "0", "--data-dir", dir, "--config", config}
			switch path {
			case policy:
				args = append(args, "--policy", policy)
			case filepath.Dir(policy):
				args = append(args, "--policy", path)
			}
			code, _, stderr := tidewaiter(t, args...)
			for _, want := range []string{path + " is refused, as every user can write it (", "rw", " " + path + "): ", "run chmod go-"} {
				if code == cli.ExitOK || !strings.Contains(stderr, want) {
					t.Errorf("exit code %d, %q lacks %q", code, stderr, want)
				}
			}
		})
	}
	for _, name := range []string{"tokens.csv", "local.json", "ca.key", "serving.key"} {
		t.Run("read "+name, func(t *testing.T) {
			path := filepath.Join(dir, "pki", name)
			if err := os.Chmod(path, 0o644); err != nil {
				t.Fatal(err)
			}
			defer os.Chmod(path, 0o600)
			if code, _, stderr := tidewaiter(t, "serve", "--secure-port", "0", "--data-dir", dir); code == cli.ExitOK || !strings.Contains(stderr, "it is a secret, and every user can read it") {
				t.Errorf("exit code %d, %s", code, stderr)
			}
		})
	}
}

// A kubeconfig may name a program, so one that others can write is not used.
func TestKubeconfigThatAnotherUserCanWrite(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "ran")
	path := filepath.Join(t.TempDir(), "config")
	if err := errors.Join(os.WriteFile(path, execKubeconfig("https://127.0.0.1:1", marker), 0o600), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
	for _, args := range [][]string{{"spool", "list"}, {"spool", "list", "--kubeconfig", path}, {"import", "--dry-run", "--from-pods", "--source-kubeconfig", path}} {
		if code, _, stderr := tidewaiter(t, args...); code == cli.ExitOK || !strings.Contains(stderr, "every user can write it") {
			t.Errorf("%v: exit code %d, %s", args, code, stderr)
		}
	}
	if _, err := os.Stat(marker); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the command ran: %v", err)
	}
}

// What a client such as oc does to the kubeconfig is not a concern of the verbs.
func TestVerbsDoNotNeedTheKubeconfig(t *testing.T) {
	dir := t.TempDir()
	serveOn(t, dir, listen(t))
	if err := os.WriteFile(tidewaiterserver.KubeconfigPath(dir), []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		// after oc logout
		t.Fatal(err)
	}
	if code, stdout, stderr := tidewaiter(t, "spool", "list", "--data-dir", dir); code != cli.ExitOK || !strings.Contains(stdout, "the spool is empty") {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
}

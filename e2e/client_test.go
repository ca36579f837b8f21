//go:build imagetest

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// What krew and Homebrew install is each archive by its sum; krew's own validation accepts the manifest.
func TestClientManifests(t *testing.T) {
	const systems = 2 // those that TestClient compiles, because each takes minutes the first time
	arch := goEnv(t, "GOHOSTARCH")
	makeTarget(t, "clients", "CLIENTS=linux/"+arch+" windows/"+arch)
	dir := filepath.Join(filepath.Dir(harness.ModuleDir(t)), "bin", "clients")
	harness.MustRun(t, harness.Command{Path: harness.Tool(t, "validate-krew-manifest"), Args: []string{"-manifest", filepath.Join(dir, "tidewaiter.yaml"), "-skip-install"}})
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		return string(text)
	}
	krew, formula := read("tidewaiter.yaml"), read("tidewaiter-client.rb")
	sums := lines(read("SHA256SUMS"))
	if len(sums) != systems {
		t.Errorf("%d archives", len(sums))
	}
	for _, line := range sums {
		sum, archive, _ := strings.Cut(line, "  ")
		url := "https://github.com/tidewaiter/tidewaiter/releases/download/v" + released + "/" + archive
		wantContains(t, "the manifest of krew", krew, "uri: "+url+"\n    sha256: "+sum+"\n")
		if strings.Contains(archive, "windows") {
			continue
		}
		wantContains(t, "the formula", formula, "url \""+url+"\"\n      sha256 \""+sum+"\"\n")
	}
	if ruby, err := exec.LookPath("ruby"); err == nil {
		harness.MustRun(t, harness.Command{Path: ruby, Args: []string{"-c", filepath.Join(dir, "tidewaiter-client.rb")}})
	}
	// kubectl finds the program as a plugin, which calls itself by that name.
	path := t.TempDir()
	harness.MustRun(t, harness.Command{Path: "tar", Args: []string{"-xzf", filepath.Join(dir, "tidewaiter-client_"+released+"_linux_"+arch+".tar.gz"), "-C", path}})
	must(t, os.Rename(filepath.Join(path, "tidewaiter"), filepath.Join(path, "kubectl-tidewaiter")))
	s := harness.SharedServer(t)
	help := s.KubectlCommand(t, "tidewaiter", "get", "--help")
	help.Args, help.Env = help.Args[2:], append(help.Env, "PATH="+path+":"+os.Getenv("PATH"))
	wantContains(t, "its help", harness.MustRun(t, help), "kubectl tidewaiter get")
}

// The client needs no C compiler, is small, asks a server as the whole program does, and says what it cannot do.
func TestClient(t *testing.T) {
	out := t.TempDir()
	build := func(system, to string) string {
		program := filepath.Join(out, to)
		harness.MustRun(t, harness.Command{
			Path: "go", Args: []string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, "./cmd/tidewaiter"},
			Dir: filepath.Dir(harness.ModuleDir(t)), Env: []string{"CGO_ENABLED=0", "GOOS=" + system},
		})
		const most = 60 << 20
		if info, err := os.Stat(program); err != nil || info.Size() > most {
			t.Errorf("the client for %s: %d bytes, %v; want %d at most", system, info.Size(), err, most)
		}
		return program
	}
	build("windows", "tidewaiter.exe")
	client := build("linux", "tidewaiter")

	s := harness.StartServer(t)
	ask := func(args ...string) harness.Result {
		return harness.Run(t, harness.Command{Path: client, Args: append(args, "--kubeconfig", s.Kubeconfig)})
	}
	for _, args := range [][]string{{"get", "sha256:abcdef"}, {"pods"}, {"prune", "--older-than", "1h"}} {
		whole := harness.Run(t, harness.Command{Path: harness.Binary(t), Args: append(args, "--kubeconfig", s.Kubeconfig)})
		if got := ask(args...); got.Code != whole.Code || got.Stdout != whole.Stdout || got.Stderr != whole.Stderr {
			t.Errorf("tidewaiter %s: the client says\n%d %s%s, the whole program\n%d %s%s", strings.Join(args, " "), got.Code, got.Stdout, got.Stderr, whole.Code, whole.Stdout, whole.Stderr)
		}
	}
	// As for kubectl, the kubeconfig of the environment names the server.
	env := []string{"KUBECONFIG=" + s.Kubeconfig}
	if got := harness.Run(t, harness.Command{Path: client, Args: []string{"verify", "--all"}, Env: env}); got.Code != 0 {
		t.Errorf("with KUBECONFIG: %d, %s", got.Code, got.Stderr)
	}
	for _, verb := range []string{"serve", "demo", "backup"} {
		got := harness.Run(t, harness.Command{Path: client, Args: []string{verb, "--data-dir", out}})
		wantContains(t, verb, got.Stderr, "it has no SQLite", "install a C compiler", "--server")
		if got.Code == 0 {
			t.Errorf("%s ended with 0", verb)
		}
	}
}

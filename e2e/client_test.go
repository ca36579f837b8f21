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

// The clients need no C compiler, are small, ask a server as the whole program does, and say what
// they cannot do. What krew and Homebrew install is each archive by its sum; krew's own validation
// accepts the manifest.
func TestClient(t *testing.T) {
	t.Parallel()
	makeRelease(t)
	arch := goEnv(t, "GOHOSTARCH")
	dir := filepath.Join(filepath.Dir(harness.ModuleDir(t)), "bin", "clients")
	programs := map[string]string{}
	for _, system := range clientSystems {
		archive := filepath.Join(dir, "tidewaiter-client_"+released+"_"+system+"_"+arch+".tar.gz")
		to := t.TempDir()
		harness.MustRun(t, harness.Command{Path: "tar", Args: []string{"-xzf", archive, "-C", to}})
		found, err := filepath.Glob(filepath.Join(to, "tidewaiter*"))
		if must(t, err); len(found) != 1 {
			t.Fatalf("%s has %q", archive, found)
		}
		programs[system] = found[0]
		const most = 64 << 20
		if info, err := os.Stat(found[0]); err != nil || info.Size() > most {
			t.Errorf("the client for %s: %d bytes, %v; want %d at most", system, info.Size(), err, most)
		}
	}
	t.Run("manifests", func(t *testing.T) { checkManifests(t, dir, len(clientSystems)) })
	s := harness.StartServer(t)
	t.Run("of kubectl", func(t *testing.T) {
		// which finds the program as a plugin, and that calls itself by that name
		path := t.TempDir()
		for name, verb := range map[string]string{"tidewaiter": "get", "images": ""} {
			must(t, os.Symlink(programs["linux"], filepath.Join(path, "kubectl-"+name)))
			called := strings.TrimSpace(name + " " + verb)
			help := s.KubectlCommand(t, append(strings.Fields(called), "--help")...)
			help.Args, help.Env = help.Args[2:], append(help.Env, "PATH="+path+":"+os.Getenv("PATH"))
			wantContains(t, "its help", harness.MustRun(t, help), "Usage:\n  kubectl "+called+" ")
		}
	})
	t.Run("asks", func(t *testing.T) { asksAsTheWholeProgram(t, s, programs["linux"]) })
}

// checkManifests checks what is beside the archives in a folder.
func checkManifests(t *testing.T, dir string, archives int) {
	for _, plugin := range []string{"tidewaiter", "images"} {
		harness.MustRun(t, harness.Command{Path: harness.Tool(t, "validate-krew-manifest"), Args: []string{"-manifest", filepath.Join(dir, plugin+".yaml"), "-skip-install"}})
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		return string(text)
	}
	krew, images, formula := read("tidewaiter.yaml"), read("images.yaml"), read("tidewaiter-client.rb")
	sums := lines(read("SHA256SUMS"))
	if len(sums) != archives {
		t.Errorf("%d archives", len(sums))
	}
	for _, line := range sums {
		sum, archive, _ := strings.Cut(line, "  ")
		url := "https://github.com/tidewaiter/tidewaiter/releases/download/v" + released + "/" + archive
		wantContains(t, "the manifest of krew", krew, "uri: "+url+"\n    sha256: "+sum+"\n")
		wantContains(t, "that of the plugin images", images, "uri: "+url+"\n    sha256: "+sum+"\n")
		if strings.Contains(archive, "windows") {
			continue
		}
		wantContains(t, "the formula", formula, "url \""+url+"\"\n      sha256 \""+sum+"\"\n")
	}
	if ruby, err := exec.LookPath("ruby"); err == nil {
		harness.MustRun(t, harness.Command{Path: ruby, Args: []string{"-c", filepath.Join(dir, "tidewaiter-client.rb")}})
	}
}

func asksAsTheWholeProgram(t *testing.T, s *harness.Server, client string) {
	ask := func(args ...string) harness.Result {
		return harness.Run(t, harness.Command{Path: client, Args: append(args, "--kubeconfig", s.Kubeconfig)})
	}
	for _, args := range [][]string{{"get", "sha256:abcdef"}, {"pods"}, {"images", "-A"}, {"prune", "--older-than", "1h"}} {
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
		got := harness.Run(t, harness.Command{Path: client, Args: []string{verb, "--data-dir", t.TempDir()}})
		wantContains(t, verb, got.Stderr, "it has no SQLite", "install a C compiler", "--server")
		if got.Code == 0 {
			t.Errorf("%s ended with 0", verb)
		}
	}
}

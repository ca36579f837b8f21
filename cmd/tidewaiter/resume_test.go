package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

var resumed = flag.Int("resume", 300, "how many references TestImportIsResumed imports")

// A run is killed, the next one is interrupted, and the third one, from the same list, ends:
// nothing is lost, and nothing was read twice but what was under way.
func TestImportIsResumed(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("-short: no processes are killed")
	}
	// underWay is how many references an interruption may leave half done: jobs that ask the registry,
	// and those that have left their slots while the server records (hostlimit.maxLeft).
	const jobs, underWay = 4, 2*4 + 64
	registry := registrytest.New(t)
	dir := t.TempDir()
	list, err := os.Create(filepath.Join(dir, "references.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	for n := range *resumed {
		image, err := sample.New(sample.Spec{Name: fmt.Sprint(n), Layers: 1, LayerSize: 16})
		if err != nil {
			t.Fatal(err)
		}
		ref := fmt.Sprintf("team/app-%d:v%d", n%10, n)
		registry.Push(ref, image)
		if _, err := fmt.Fprintf(list, "%s/%s\n", registry.Host, ref); err != nil {
			t.Fatal(err)
		}
	}

	// Manifests are read by their digests. Signal is called when so many were, and no other is
	// answered before the next run.
	var mu sync.Mutex
	reads, total, at, signal := map[string]int{}, 0, 0, func() {}
	registry.Inject("GET .*/manifests/", 0, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			mu.Lock()
			reads[req.URL.Path]++
			if total++; total == at {
				signal()
			}
			over := total >= at
			mu.Unlock()
			if over {
				<-req.Context().Done()
				return
			}
			next.ServeHTTP(w, req)
		})
	})
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// run imports the list in a process that gets a signal after so many manifests.
	run := func(after int, sig syscall.Signal) (report bulk.Summary, state *os.ProcessState, stderr string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), self, "import", "-f", list.Name(), "--jobs", fmt.Sprint(jobs), "--no-signatures", "--data-dir", filepath.Join(dir, "data"), "--create-data-dir", "-o", "jsonl")
		cmd.Env = append(os.Environ(), serveEnv+"=1", "KUBECONFIG=")
		var out, errOut servertest.LogBuffer
		cmd.Stdout, cmd.Stderr = &out, &errOut
		mu.Lock() // until there is a process to signal
		err := cmd.Start()
		at, signal = total+after, func() { _ = cmd.Process.Signal(sig) } // it may have ended
		mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // its state is looked at
		for text := range strings.Lines(out.String()) {
			var last struct{ Report *bulk.Summary }
			if json.Unmarshal([]byte(text), &last) == nil && last.Report != nil {
				report = *last.Report
			}
		}
		return report, cmd.ProcessState, errOut.String()
	}

	if _, state, stderr := run(*resumed/3, syscall.SIGKILL); state.Success() || state.Exited() {
		t.Fatalf("the first run was not killed: %v, %s", state, stderr)
	}
	report, state, stderr := run(*resumed/3, syscall.SIGINT)
	if state.ExitCode() != cli.ExitSome || report.NotTried == 0 || len(report.Failed) > 0 || !strings.Contains(stderr, "interrupted") {
		t.Fatalf("the second run was not interrupted: %v, %+v, %s", state, report, stderr)
	}
	if n := report.Outcomes["imported"] + report.Outcomes["unchanged"] + report.NotTried; n != *resumed {
		t.Errorf("an interrupted run tells of %d references, %d were listed", n, *resumed)
	}
	report, state, stderr = run(*resumed*2, syscall.SIGINT)
	if !state.Success() || report.Outcomes["imported"]+report.Outcomes["unchanged"] != *resumed || report.Outcomes["unchanged"] < *resumed/3*2-2*underWay {
		t.Fatalf("the last run: %v, %+v, %s", state, report, stderr)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(reads) != *resumed {
		t.Errorf("%d manifests were read, there are %d", len(reads), *resumed)
	}
	if twice := total - *resumed; twice > 2*underWay { // two interruptions
		t.Errorf("%d manifests were read twice", twice)
	}
	t.Logf("%d manifests were read twice", total-*resumed)
}

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// A push that waits because its registry asked for a pause says when it is tried, and spool retry
// has the registry asked at once.
func TestSpoolRetryEndsAPause(t *testing.T) {
	t.Parallel()
	registry := registrytest.New(t)
	image, err := sample.New(sample.Spec{Name: "app"})
	if err != nil {
		t.Fatal(err)
	}
	digest := registry.Push("team/app:v1", image)
	registry.Inject(".", 0, registrytest.Status(429, "TOOMANYREQUESTS", "Retry-After", "3000"))
	const secret = "whoever-reads-this-is-a-receiver"
	config := servertest.WriteConfig(t, "receivers:\n- {name: harbour, type: distribution, hosts: ['"+registry.Host+"'], secretFile: secret}\n")
	if err := os.WriteFile(filepath.Join(filepath.Dir(config), "secret"), []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	data := t.TempDir()
	serving := serveWith(t, server.Options{DataDir: data, ConfigFile: config, Isolated: true}, listen(t))
	body := fmt.Sprintf(`{"events":[{"id":"1","timestamp":"2026-05-28T20:26:40Z","action":"push","target":{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"repository":"team/app","tag":"v1"},"request":{"host":%q}}]}`, digest, registry.Host)
	if code := send(t, serving, "POST", "/hooks/harbour", secret, body); code != 202 {
		t.Fatalf("the push is answered %d", code)
	}
	spool := func(args ...string) string {
		t.Helper()
		code, out, errs := tidewaiter(t, append(append([]string{"spool"}, args...), "--kubeconfig", server.KubeconfigPath(data))...)
		if code != cli.ExitOK {
			t.Fatalf("spool %q ends with %d: %s%s", args, code, out, errs)
		}
		return out
	}
	id := ""
	soon(t, "the job waits for the end of the pause", func() bool {
		var list struct{ Jobs []job.Shown }
		if err := json.Unmarshal([]byte(spool("list", "-o", "json")), &list); err != nil {
			t.Fatal(err)
		}
		if len(list.Jobs) != 1 {
			t.Fatalf("the jobs are %+v", list.Jobs)
		}
		next := list.Jobs[0].NextTry
		id = fmt.Sprint(list.Jobs[0].ID)
		return next != nil && time.Until(*next) > 30*time.Minute
	})
	if out := spool("list"); !strings.Contains(out, "NEXT TRY") || !strings.Contains(out, "in 4") && !strings.Contains(out, "in 50m") && !strings.Contains(out, "in 3") {
		t.Errorf("it is listed as\n%s", out)
	}
	registry.Heal()
	if out := spool("retry", id); out != "1 job to be tried again\n" {
		t.Errorf("spool retry says %q", out)
	}
	images, err := imageclient.New(serving)
	if err != nil {
		t.Fatal(err)
	}
	soon(t, "the push is imported", func() bool {
		_, err := images.Get(t.Context(), digest, metav1.GetOptions{})
		return err == nil
	})
}

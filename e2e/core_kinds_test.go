package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

const corePod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"app","labels":{"run":"app"}},
"spec":{"nodeName":"worker-1","containers":[{"name":"main","image":"registry.example.com/app:1"}]}}`

// What people type for pods, services, events and leases, with the unmodified
// kubectl, in a namespace nobody created.
func TestCoreKindsWithKubectl(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	s := harness.StartServer(t, "--pod-logs-dir", logs)
	in := func(args ...string) []string { return append([]string{"-n", "team"}, args...) }

	wantContains(t, "apply --server-side", s.KubectlStdin(t, corePod, in("apply", "--server-side", "-f", "-")...), "pod/app serverside-applied")
	wantContains(t, "namespaces", s.Kubectl(t, "get", "namespaces"), "default", "kube-system", "team")
	wantContains(t, "the table", s.Kubectl(t, in("get", "pods", "-o", "wide")...), "NAME", "READY", "STATUS", "RESTARTS", "NODE", "worker-1")

	s.Kubectl(t, in("patch", "pod", "app", "--subresource=status", "--type=merge", "-p",
		`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}],"containerStatuses":[{"name":"main","image":"x","imageID":"x","ready":true,"restartCount":0,"state":{"running":{}},"lastState":{}}]}}`)...)
	wantContains(t, "wait", s.Kubectl(t, in("wait", "--for=condition=Ready", "pod/app", "--timeout=30s")...), "pod/app condition met")

	s.Kubectl(t, in("expose", "pod", "app", "--port=80", "--type=NodePort")...)
	wantContains(t, "describe service", s.Kubectl(t, in("describe", "service", "app")...), "Name:", "Selector:", "run=app", "NodePort:")

	uid := s.Kubectl(t, in("get", "pod", "app", "-o", "jsonpath={.metadata.uid}")...)
	s.KubectlStdin(t, `{"apiVersion":"v1","kind":"Event","metadata":{"name":"e"},"involvedObject":{"apiVersion":"v1","kind":"Pod","name":"app","namespace":"team","uid":"`+uid+`"},"type":"Normal","reason":"Pulled","message":"it is there","source":{"component":"kubelet"}}`,
		in("create", "-f", "-")...)
	wantContains(t, "events", s.Kubectl(t, in("get", "events")...), "Pulled", "pod/app", "it is there")
	wantContains(t, "kubectl events", s.Kubectl(t, in("events", "--for", "pod/app")...), "Pulled")
	wantContains(t, "describe pod", s.Kubectl(t, in("describe", "pod", "app")...), "Node:", "worker-1", "registry.example.com/app:1", "Events:", "it is there")

	wantContains(t, "the server's lease", s.Kubectl(t, "-n", "kube-system", "get", "leases"), "tidewaiter-")
	lease := strings.TrimSpace(s.Kubectl(t, "-n", "kube-system", "get", "leases", "-o", "name"))
	wantContains(t, "describe lease", s.Kubectl(t, "-n", "kube-system", "describe", lease), "Holder Identity", "Renew Time")

	dir := filepath.Join(logs, fmt.Sprintf("team_app_%s", uid), "main")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "0.log")
	if err := os.WriteFile(file, []byte("2026-01-01T00:00:01Z stdout F one\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	follow := harness.Start(t, s.KubectlCommand(t, in("logs", "-f", "app")...))
	follow.Stdout.Await(t, "line one", func(written string) bool { return strings.Contains(written, "one\n") })
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("2026-01-01T00:00:02Z stdout F two\n"); err != nil {
		t.Fatal(err)
	}
	follow.Stdout.Await(t, "line two", func(written string) bool { return strings.Contains(written, "two\n") })
	s.Kubectl(t, in("patch", "pod", "app", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Succeeded"}}`)...)
	if code := follow.Wait(t); code != 0 {
		t.Errorf("kubectl logs -f ended with %d: %s", code, follow.Stderr.String())
	}

	s.Kubectl(t, in("delete", "pod", "app", "--force", "--grace-period=0")...)
	s.Kubectl(t, "delete", "namespace", "team", "--timeout=60s")
	if left := s.Kubectl(t, in("get", "services,events,pods", "-o", "name")...); left != "" {
		t.Errorf("left in the deleted namespace: %s", left)
	}
}

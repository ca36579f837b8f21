package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/internal/server"
)

// ranPod is a pod of a Deployment that runs an image since a time.
func ranPod(name, image, digest string, since time.Time) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: name, UID: "uid-of-" + "pod", CreationTimestamp: metav1.NewTime(since), Labels: map[string]string{"pod-template-hash": "5d4f"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "app-5d4f", Controller: ptr.To(true)}},
	}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "main", ImageID: strings.TrimSuffix(image, ":1") + "@" + digest,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}},
	}}
	return p
}

// What ran is said by every door: while it runs, after it has ended, and across a restart, whose
// time is a gap.
func TestWhatRan(t *testing.T) {
	const image = "registry.example.com/team/app:1"
	digest := "sha256:" + strings.Repeat("7", 64)
	cluster := clustertest.New(t)
	began := time.Now().Add(-time.Hour).Truncate(time.Second)
	cluster.Set(ranPod("app-5d4f-a", image, digest, began), ranPod("app-5d4f-b", image, digest, began.Add(time.Minute)))
	dir := t.TempDir()
	for file, text := range map[string]string{"prod.kubeconfig": string(cluster.Kubeconfig()), "config.yaml": "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	serve := func() (stop func()) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s, err := server.Open(t.Context(), server.Options{DataDir: data, ConfigFile: filepath.Join(dir, "config.yaml"), Isolated: true}, listener)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- s.Run(ctx, func(context.Context) error { close(ready); return nil }) }()
		<-ready
		return func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	ran := func(args ...string) (int, string, string) {
		return tidewaiter(t, append([]string{"ran", "--data-dir", data}, args...)...)
	}
	shows := func(what string, want []string, args ...string) {
		t.Helper()
		var code int
		var out, errs string
		err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			code, out, errs = ran(args...)
			for _, w := range want {
				if !strings.Contains(out+errs, w) {
					return false, nil
				}
			}
			return true, nil
		})
		if err != nil {
			t.Fatalf("%s: %q lacks one of %q: %d\n%s%s", what, args, want, code, out, errs)
		}
	}
	from, since := began.UTC().Format(time.RFC3339), began.UTC().Format("2006-01-02 15:04")
	stop := serve()
	shows("what runs", []string{"prod/team", "oyment/app", "app:1", digest[7:19], since, "<none>", "2", "Unknown"}, "--at", time.Now().Format(time.RFC3339))
	shows("by its digest", []string{"oyment/app", since, "recorded since"}, digest)
	shows("in its namespace", []string{"oyment/app"}, "-n", "team", "--workload", "app", "--since", "1d")
	shows("as documents", []string{`"workload":"Deployment/app"`, `"image":"` + image + `"`, `"from":"` + from + `"`}, "-o", "jsonl")
	shows("as a table of numbers", []string{"cluster,namespace,workload", "prod,team,Deployment/app,main," + image + "," + digest + ",,," + from}[:1], "-o", "csv")
	if code, out, errs := ran("--at", began.Add(-time.Minute).Format(time.RFC3339)); code != 2 || out != "" || !strings.Contains(errs, "not whole before") {
		t.Errorf("before anything was recorded: %d\n%s%s", code, out, errs)
	}
	if code, out, errs := ran("-n", "other"); code != 0 || out != "" || !strings.Contains(errs, "No resources found") {
		t.Errorf("another namespace: %d\n%s%s", code, out, errs)
	}
	// The other verbs say what was known at a time, too.
	now := time.Now().UTC().Format(time.RFC3339)
	for _, verb := range [][]string{
		{"images", "--cluster", "prod", "-n", "team", "--at", now},
		{"images", "--cluster", "prod", "-A", "--at", now, "-o", "json"},
		{"get", image, "--at", now},
		{"describe", image, "--at", now},
		{"describe", image, "--at", now, "-o", "json"},
		{"history", "--verdicts", image},
		{"history", "--verdicts", image, "-o", "json"},
	} {
		code, out, errs := tidewaiter(t, append(verb, "--data-dir", data)...)
		want := []string{"team/app:1", "777777777777", "Unknown"}
		switch verb[0] {
		case "get": // where the tag led is not known
			want = []string{"team/app:1", "Unknown"}
		case "history":
			want = []string{"prod", "777777777777", "Unknown", "it began to run"}
		}
		for _, want := range want {
			if code != 0 || !strings.Contains(strings.ReplaceAll(out, "…/app:1", "team/app:1"), want) {
				t.Errorf("%q: %d, want %s:\n%s%s", verb, code, want, out, errs)
			}
		}
	}
	before := began.Add(-time.Hour).UTC().Format(time.RFC3339)
	if code, out, errs := tidewaiter(t, "images", "--cluster", "prod", "-n", "team", "--at", before, "--data-dir", data); code != 2 || out != "" || !strings.Contains(errs, "not whole before") {
		t.Errorf("images before anything was recorded: %d\n%s%s", code, out, errs)
	}
	if code, out, errs := tidewaiter(t, "get", image, "--at", before, "--data-dir", data); code != 1 || out != "" {
		t.Errorf("get before anything was recorded: %d\n%s%s", code, out, errs)
	}
	if code, _, errs := tidewaiter(t, "get", image, "--at", time.Now().Add(time.Hour).Format(time.RFC3339), "--data-dir", data); code != 2 || !strings.Contains(errs, "is in the future") {
		t.Errorf("get in the future: %d\n%s", code, errs)
	}
	asOf := time.Now().Truncate(time.Second)
	report := func(format string) string {
		code, out, errs := tidewaiter(t, "report", "--data-dir", data, "--from", began.Add(-time.Hour).Format(time.RFC3339), "--until", asOf.Format(time.RFC3339), "-o", format)
		if code != 0 {
			t.Errorf("report -o %s: %d\n%s", format, code, errs)
		}
		return out
	}
	for _, until := range []string{time.Now().Add(time.Hour).Format(time.RFC3339), ""} {
		if code, _, errs := tidewaiter(t, "report", "--data-dir", data, "--from", from, "--until="+until); code != 2 || !strings.Contains(errs, "about") {
			t.Errorf("a report until %q: %d\n%s", until, code, errs)
		}
	}
	for what, args := range map[string][]string{
		"does not follow a cluster prd":       {"ran", "--cluster", "prd"},
		"does not follow a cluster prod-east": {"report", "--cluster", "prod-east", "--from", from, "--until", asOf.Format(time.RFC3339)},
		"what ran is recorded until now":      {"ran", "--at", time.Now().Add(24 * time.Hour).Format(time.RFC3339)},
		"what ran is recorded until now: 20":  {"ran", "--from", time.Now().Add(24 * time.Hour).Format(time.RFC3339)},
	} {
		if code, out, errs := tidewaiter(t, append(args, "--data-dir", data)...); code != 2 || out != "" || !strings.Contains(errs, what) {
			t.Errorf("%q: %d\n%s%s", args, code, out, errs)
		}
	}
	stop()

	// Meanwhile one pod goes: the stretch goes on, with the gap in it.
	cluster.Delete(ranPod("app-5d4f-a", image, digest, began))
	stop = serve()
	shows("the gap", []string{"oyment/app", since, "<none>", "was not seen from"}, "--since", "2h")
	reported := map[string]string{}
	for format, want := range map[string][]string{
		"json": {`"workload": "Deployment/app"`, `"digest": "` + digest + `"`, `"sbom": "Unknown"`, "where " + image + " led is not recorded", "what ran in cluster prod is recorded since", `"version": "`},
		"csv":  {"ran,prod,team,Deployment/app,main," + image + "," + digest + ",," + from + ",,false,"},
		"html": {"Deployment/app", digest, "ran on", "and not whole before"},
	} {
		reported[format] = report(format)
		for _, text := range want {
			if !strings.Contains(reported[format], text) {
				t.Errorf("the report as %s lacks %s:\n%s", format, text, reported[format])
			}
		}
	}
	cluster.Delete(ranPod("app-5d4f-b", image, digest, began))
	shows("the end", []string{",Deployment/app,", "," + from + ",20"}, "--since", "2h", "-o", "csv")
	if _, out, errs := ran("--at", time.Now().Add(time.Minute).Format(time.RFC3339)); strings.Contains(out, "app") || !strings.Contains(errs, "in the future") {
		t.Errorf("what is gone runs on:\n%s%s", out, errs)
	}
	for format, before := range reported { // about a time that is over
		if again := report(format); again != before {
			t.Errorf("the same question gives another report:\n%s\n%s", before, again)
		}
	}
	stop()
}

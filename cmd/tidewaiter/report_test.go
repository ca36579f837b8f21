package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	imagev1 "github.com/openshift/api/image/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// What failed is written down in the form that the next run reads, and a line at the end says what
// became of all and what it cost.
func TestWhatFailedIsTriedAgain(t *testing.T) {
	registry := registrytest.New(t)
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:v1", image)
	registry.Push("team/app:v2", image)
	dir := t.TempDir()
	list, failed := filepath.Join(dir, "references.txt"), filepath.Join(dir, "failed.txt")
	text := registry.Host + "/team/app:v1\n" + registry.Host + "/team/app:later # soon\n" + registry.Host + "/team/app:v2\n"
	if err := os.WriteFile(list, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := tidewaiter(t, "import", "--dry-run", "-f", list, "--failures", failed)
	if code != cli.ExitSome {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
	if !strings.Contains(stderr, "2 dry run, 1 failed (1 NotFound); ") || !strings.Contains(stderr, " requests, ") {
		t.Errorf("the sum is not right: %s", stderr)
	}
	written, err := os.ReadFile(failed)
	if want := registry.Host + "/team/app:later # NotFound\n"; err != nil || string(written) != want {
		t.Errorf("%q was written, want %q, %v", written, want, err)
	}
	registry.Push("team/app:later", image)
	if code, stdout, stderr = tidewaiter(t, "import", "--dry-run", "-f", failed, "--failures", failed); code != cli.ExitOK {
		t.Errorf("the next run: exit code %d, %s%s", code, stdout, stderr)
	}
	if written, err = os.ReadFile(failed); err != nil || len(written) > 0 {
		t.Errorf("%q is left, %v", written, err)
	}

	// What cannot be listed is tried again, too. A list that is not found is asked for twice.
	registry.Inject("/tags/list", 2, registrytest.Status(404, "NAME_UNKNOWN"))
	registry.Inject("/_catalog", 1, registrytest.Status(404, "NAME_UNKNOWN"))
	if code, _, stderr = tidewaiter(t, "import", "--dry-run", "--all-tags", registry.Host+"/team/app", "--failures", failed); code != cli.ExitNone {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if written, _ = os.ReadFile(failed); string(written) != registry.Host+"/team/app:* # NotFound\n" {
		t.Errorf("%q was written", written)
	}
	if code, _, stderr = tidewaiter(t, "import", "--dry-run", "--catalog", registry.Host, "-f", failed, "--failures", failed); code != cli.ExitSome {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if written, _ = os.ReadFile(failed); string(written) != registry.Host+"/** # NotFound\n" {
		t.Errorf("%q was written", written)
	}
	if code, stdout, stderr = tidewaiter(t, "import", "--dry-run", "--newest", "5", "-f", failed, "--failures", failed); code != cli.ExitOK || strings.Count(stdout, "/team/app:") != 3 {
		t.Errorf("exit code %d, %s%s", code, stdout, stderr)
	}
}

// Who interrupts a run is not told that the rest failed.
func TestInterruptedIsNotFailed(t *testing.T) {
	registry := registrytest.New(t)
	image, err := sample.New(sample.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:v1", image)
	ctx, interrupt := context.WithCancel(t.Context())
	registry.Inject("team/app/manifests/v2", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
			interrupt()
			<-req.Context().Done()
		})
	})
	failed := filepath.Join(t.TempDir(), "failed.txt")
	args := []string{"import", "--dry-run", "--jobs", "1", "--failures", failed}
	for _, tag := range []string{"v1", "v2", "v3", "v4"} {
		args = append(args, registry.Host+"/team/app:"+tag)
	}
	var stdout, stderr servertest.LogBuffer
	if code := run(ctx, args, strings.NewReader(""), &stdout, &stderr); code != cli.ExitSome {
		t.Errorf("exit code %d", code)
	}
	if s := stderr.String(); !strings.Contains(s, "1 dry run, 3 not tried; ") || strings.Contains(s, "failed") {
		t.Errorf("it says %s", s)
	}
	written, err := os.ReadFile(failed)
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"v2", "v3", "v4"} {
		if !strings.Contains(string(written), registry.Host+"/team/app:"+tag+" # interrupted\n") {
			t.Errorf("%s is not among %q", tag, written)
		}
	}
}

// What a program reads: a line for each reference, with the Image, its config and what an index
// skipped and why, and the closing report, which -o json has, too.
func TestReportForPrograms(t *testing.T) {
	registry := registrytest.New(t)
	index, err := sample.MultiPlatform(sample.Spec{}, true, "linux/amd64", "linux/arm64")
	if err != nil {
		t.Fatal(err)
	}
	digest := registry.PushIndex("team/app:v1", index)
	chart, err := sample.Artifact("application/vnd.cncf.helm.config.v1+json", []byte("chart"))
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("team/app:chart", chart)
	args := []string{"import", "--dry-run", "--platform", "linux/amd64"}
	for _, tag := range []string{"v1", "chart", "none"} {
		args = append(args, registry.Host+"/team/app:"+tag)
	}
	check := func(s bulk.Summary) {
		t.Helper()
		if s.Outcomes["dry run"] != 1 || s.Skipped != 1 || s.Failed[pull.NotFound] != 1 || s.NotTried != 0 || s.Requests < 4 || s.Bytes == 0 || s.Seconds <= 0 {
			t.Errorf("the report is %+v", s)
		}
	}

	code, stdout, stderr := tidewaiter(t, append(args, "-o", "jsonl")...)
	if code != cli.ExitSome {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	got := map[string]bulk.Line{}
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	for _, text := range lines[:len(lines)-1] {
		var l bulk.Line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		got[strings.TrimPrefix(l.Reference, registry.Host+"/team/app:")] = l
	}
	var last struct{ Report bulk.Summary }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil {
		t.Fatal(err)
	}
	check(last.Report)
	l := got["v1"]
	reasons := map[string]int{}
	for _, s := range l.Skipped {
		reasons[s.Reason]++
	}
	if l.Outcome != "dry run" || l.Digest != digest || len(l.Images) != 2 || l.Images[0].Image != nil || l.Images[1].Platform != "linux/amd64" || l.Images[1].Image.Name != l.Images[1].Name || l.Image == nil || l.Image.Kind != "Image" ||
		reasons[importer.SkippedPlatform] != 1 || reasons[importer.SkippedAttestation] != 2 {
		t.Errorf("%+v", l)
	}
	if l := got["chart"]; l.Outcome != "skipped" || l.Reason != pull.NotAnImage || l.Error == "" {
		t.Errorf("%+v", l)
	}
	if l := got["none"]; l.Outcome != "failed" || l.Reason != pull.NotFound {
		t.Errorf("%+v", l)
	}

	code, stdout, stderr = tidewaiter(t, append(args, "-o", "json")...)
	var list struct {
		Kind   string
		Items  []map[string]any
		Report bulk.Summary
	}
	if err := json.Unmarshal([]byte(stdout), &list); err != nil || code != cli.ExitSome || list.Kind != "List" || len(list.Items) != 2 {
		t.Fatalf("exit code %d, %v, %s%s", code, err, stdout, stderr)
	}
	check(list.Report)

	// Configs are those of platforms, and attestations those of what they are attached to.
	sbom, err := sample.Artifact("application/spdx+json", []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	platform := manifests.Manifests[0]
	registry.Push("team/app:sbom", mutate.Subject(sbom, platform).(v1.Image))
	for _, arguments := range [][]string{{"--dry-run"}, {"--data-dir", filepath.Join(t.TempDir(), "data"), "--create-data-dir"}} {
		_, stdout, stderr = tidewaiter(t, append([]string{"import", "-o", "json", registry.Host + "/team/app:v1"}, arguments...)...)
		var list imagev1.ImageList
		if err := json.Unmarshal([]byte(stdout), &list); err != nil || len(list.Items) != 3 {
			t.Fatalf("%v: %v, %s%s", arguments, err, stdout, stderr)
		}
		names := map[string]bool{}
		for n, image := range list.Items {
			names[image.Name] = true
			if hasConfig := strings.Contains(image.DockerImageConfig, `"rootfs"`); hasConfig != (n > 0) {
				t.Errorf("%v: the config of item %d is %q", arguments, n, image.DockerImageConfig)
			}
			if attested := strings.Contains(image.Annotations[annotation.Repositories], "application/spdx+json"); attested != (image.Name == platform.Digest.String()) {
				t.Errorf("%v: the annotations of item %d are %v", arguments, n, image.Annotations)
			}
		}
		if len(names) != 3 || list.Items[0].Name != digest {
			t.Errorf("%v: the items are %v", arguments, names)
		}
	}

	// People are told as well, but for attestations, which each build brings.
	if _, stdout, _ = tidewaiter(t, args...); !strings.Contains(stdout, "(dry run, 2 images, skipped 1: platform not requested)") {
		t.Errorf("%s", stdout)
	}
}

// An error that is not a registry's has a reason, too.
func TestFailureOfTheAPIHasAReason(t *testing.T) {
	var out, errOut bytes.Buffer
	r := bulk.NewReport("jsonl", "https://127.0.0.1:1", &out, &errOut, bulk.NewProgress(io.Discard))
	r.Add("registry.example/team/app:v1", nil, errors.New("storing image: it was refused"))
	r.Add("registry.example/team/app:v2", nil, errors.New("storing image: it was refused"))
	r.Sum(pull.Traffic{}, time.Second)
	if n := strings.Count(out.String(), `"reason":"Failed"`); n != 2 {
		t.Errorf("programs are told %s", &out)
	}
	if !strings.Contains(errOut.String(), "2 failed (2 Failed)") {
		t.Errorf("people are told %s", &errOut)
	}
}

func TestProgressTellsWhatIsLeft(t *testing.T) {
	var out strings.Builder
	p := bulk.NewProgress(&out)
	p.Width = func() int { return 200 }
	clock := testclock.NewFakePassiveClock(time.Unix(0, 0))
	p.Clock = clock
	p.Planned(100)
	for range 20 {
		p.Started(bulk.Job{Ref: reference.Reference{Host: "h", Repository: "a"}})
	}
	clock.SetTime(clock.Now().Add(4 * time.Second))
	for range 10 {
		p.Done(func() {})
	}
	if s := out.String(); !strings.Contains(s, "10 of 100 done, 10 running, 2.5 a second, 36s left: h/a") {
		t.Errorf("%q", s)
	}
}

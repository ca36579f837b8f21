package main

import (
	"archive/zip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// sbomWith is an SBOM of packages by their package URLs.
func sbomWith(purls ...string) string {
	var components []string
	for _, purl := range purls {
		name, version, _ := strings.Cut(purl, "@")
		version, _, _ = strings.Cut(version, "?")
		components = append(components, fmt.Sprintf(`{"type":"library","name":%q,"version":%q,"purl":%q}`, name[strings.LastIndexByte(name, '/')+1:], version, purl))
	}
	return `{"bomFormat":"CycloneDX","specVersion":"1.6","components":[` + strings.Join(components, ",") + `]}`
}

// osv is an advisory about a package before a version.
func osv(id, aliases, ecosystem, name, fixed string) string {
	return fmt.Sprintf(`{"schema_version":"1.7.3","id":%q,"aliases":[%s],"modified":"2026-01-01T00:00:00Z","summary":"a hole","affected":[{"package":{"ecosystem":%q,"name":%q},"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"0"},{"fixed":%q}]}]}]}`, id, aliases, ecosystem, name, fixed)
}

// Advisories are found in the images of the right release, with the fix that is here.
func TestAdvisories(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	attach := func(called, repository, content string) {
		r := l.a
		if called == "other" || called == "lone" {
			r = l.b
		}
		typ := "application/vnd.cyclonedx+json"
		if strings.Contains(content, "openvex") {
			typ = "application/vnd.openvex+json"
		}
		attachSBOM(t, r, repository, l.digests[called], typ, content)
	}
	attach("old", "team/app", sbomWith("pkg:deb/debian/libssl3@3.0.11-1?distro=debian-12&upstream=openssl", "pkg:maven/org.apache.logging.log4j/log4j-core@2.14.1"))
	attach("new", "team/app", sbomWith("pkg:deb/debian/libssl3@3.0.14-1?distro=debian-12&upstream=openssl", "pkg:maven/org.apache.logging.log4j/log4j-core@2.17.1"))
	attach("other", "team/app", sbomWith("pkg:deb/debian/libssl1.1@1.1.1-1?distro=debian-11&upstream=openssl"))
	attach("lone", "team/lone", sbomWith("pkg:maven/org.apache.logging.log4j/log4j-core@2.11.0", "pkg:npm/a@1.0.0"))
	attach("lone", "team/lone", `{"@context":"https://openvex.dev/ns/v0.2.0","author":"Ann","statements":[{"vulnerability":{"name":"CVE-2021-44228"},"status":"not_affected"}]}`)
	l.run("import", l.a.Host+"/team/app:v1", l.a.Host+"/team/app@"+l.digests["old"], l.b.Host+"/team/app:v1", l.b.Host+"/team/lone:v2")

	dir := t.TempDir()
	documents := map[string]string{
		"log4shell.json": osv("GHSA-jfh8-c2jp-5v3q", `"CVE-2021-44228"`, "Maven", "org.apache.logging.log4j:log4j-core", "2.15.0"),
		"openssl.json":   osv("DSA-1", "", "Debian:12", "openssl", "3.0.14-1"),
		"old.json":       osv("DSA-2", "", "Debian:11", "openssl", "1.1.1-2"),
		"none.json":      osv("GHSA-none", "", "npm", "b", "1.0.0"),
		"withdrawn.json": strings.Replace(osv("GHSA-w", "", "npm", "a", "9.0.0"), `"summary"`, `"withdrawn":"2026-01-02T00:00:00Z","summary"`, 1),
	}
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	zipped, err := os.Create(filepath.Join(dir, "all.zip"))
	if err != nil {
		t.Fatal(err)
	}
	archive := zip.NewWriter(zipped)
	var lines []string
	for name, text := range documents {
		file("all/"+name, text)
		lines = append(lines, text)
		w, err := archive.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := archive.Close(); err != nil {
		t.Fatal(err)
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	file("all.jsonl", strings.Join(lines, "\n"))
	file("array.json", "["+strings.Join(lines, ",")+"]")
	file("git.json", strings.Replace(documents["none.json"], "ECOSYSTEM", "GIT", 1))
	file("linux.json", osv("L-1", "", "Linux", "Kernel", "6.1"))
	file("some/none.json", documents["none.json"])
	file("some/bad.json", "{")
	file("some/README.md", "advisories")

	for _, tc := range []struct {
		from   string
		want   []string
		absent []string
	}{
		{
			"all/log4shell.json",
			[]string{"what the advisory GHSA-jfh8-c2jp-5v3q, CVE-2021-44228 touches: 2 images by", "log4j-core 2.14.1", "2.15.0     v1           ", "Contains", "team/lone:v2"},
			[]string{"DSA-1", "NotAffected"},
		},
		{"all/openssl.json", []string{"1 image by 1 reference", "libssl3 3.0.11-1", "3.0.14-1   v1 ", l.digests["old"][60:], "DSA-1"}, []string{l.b.Host}},
		{"all/old.json", []string{"1 image by", "libssl1.1 1.1.1-1", l.b.Host + "/team/app:v1"}, []string{l.a.Host + "/team/app"}},
		{"all/none.json", []string{"nothing is known to be touched"}, nil},
		{"git.json", []string{"nothing is known to be touched", "git commits alone"}, nil},
		{"linux.json", []string{"nothing is known to be touched", "the ecosystem Linux"}, nil},
		{"some", []string{"nothing is known to be touched", "what some advisories are about is not known", "bad.json"}, []string{"README"}},
	} {
		stdout, stderr, code := l.run("impact", "--advisory", filepath.Join(dir, tc.from))
		all := stdout + stderr
		for _, text := range tc.want {
			if !strings.Contains(all, text) {
				t.Errorf("%s lacks %q:\n%s", tc.from, text, all)
			}
		}
		for _, text := range append(tc.absent, "panic") {
			if strings.Contains(stdout, text) {
				t.Errorf("%s has %q:\n%s", tc.from, text, all)
			}
		}
		want := cli.ExitOK
		if strings.Contains(stderr, "advisories") {
			want = cli.ExitSome // it is unknown whether they touch something that runs
		}
		if code != want || !strings.Contains(stderr, "no SBOM was read") {
			t.Errorf("%s ends with %d, want %d: %s", tc.from, code, want, stderr)
		}
	}
	if stdout, _, _ := l.run("impact", "-o", "wide", "--advisory", filepath.Join(dir, "all", "log4shell.json")); !strings.Contains(stdout, "VEX: CVE-2021-44228 not_affected, says Ann (Unsigned)") || !strings.Contains(stdout, "fixed in 2.15.0, and in "+l.a.Host+"/team/app:v1") {
		t.Error(stdout)
	}

	// The same advisories touch the same, however they come.
	var first answers.ImpactReviewStatus
	for _, from := range []string{"all", "all.zip", "all.jsonl", "array.json", "-"} {
		stdout, stderr, code := l.run("impact", "-o", "json", "--advisory", filepath.Join(dir, from))
		if from == "-" { // standard input
			code, stdout, stderr = tidewaiterReading(t, strings.Join(lines, "\n"), "impact", "-o", "json", "--advisory", from, "--kubeconfig", l.kubeconfig)
		}
		var got answers.ImpactReview
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != cli.ExitOK {
			t.Fatalf("%s: %v, %d: %s", from, err, code, stderr)
		}
		got.Status.AsOf = metav1.Time{}
		if s := got.Status.Summary; s.Images != 3 || int(s.References) != len(got.Status.Rows) || s.Unlisted == 0 || s.Unchecked != 0 || got.Status.Touched != nil {
			t.Errorf("%s: %+v", from, got.Status)
		}
		if from == "all" {
			first = got.Status
		} else if a, b := marshal(t, first), marshal(t, got.Status); a != b {
			t.Errorf("%s touches\n%s\nand all\n%s", from, b, a)
		}
	}
	for _, from := range []string{"missing.json", "some/bad.json", "all/..", "some/README.md"} {
		if _, stderr, code := l.run("impact", "--advisory", filepath.Join(dir, from)); (code != cli.ExitNone) != (from == "all/..") {
			t.Errorf("%s ends with %d: %s", from, code, stderr)
		}
	}

	// What runs an affected image is counted.
	config, err := kubeconfigConfig(l.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "affected"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: l.a.Host + "/team/app@" + l.digests["old"]}}}}
	if _, err := newClientset(t, config).CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	soon(t, "a pod runs what is affected", func() bool {
		stdout, _, code := l.run("impact", "--advisory", filepath.Join(dir, "all.zip"))
		return code == exitTouched && strings.Contains(stdout, "1 pod runs them")
	})
	if _, stderr, code := l.run("impact", "--advisory", filepath.Join(dir, "all", "old.json")); code != cli.ExitOK {
		t.Errorf("an advisory about nothing that runs ends with %d: %s", code, stderr)
	}

	// What ran before and is gone is found by --ever alone; and what ran without an SBOM is unknown.
	pods := newClientset(t, config).CoreV1().Pods("default")
	ran := func(name, image, imageID string) {
		t.Helper()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}}}
		if name != "affected" {
			if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		pod, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: image, ImageID: imageID, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}}}
		if _, err := pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		soon(t, name+" is recorded", func() bool { stdout, _, _ := l.run("ran", "--workload", name); return stdout != "" })
		if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
		soon(t, name+" has ended", func() bool {
			stdout, _, _ := l.run("ran", "--workload", name, "-o", "json")
			return strings.Contains(stdout, `"until"`)
		})
	}
	ever := func(file string, want int, texts ...string) {
		t.Helper()
		stdout, stderr, code := l.run("impact", "--ever", "--advisory", filepath.Join(dir, "all", file))
		for _, text := range texts {
			if !strings.Contains(stdout+stderr, text) {
				t.Errorf("%s lacks %q:\n%s%s", file, text, stdout, stderr)
			}
		}
		if code != want {
			t.Errorf("%s ends with %d, want %d:\n%s%s", file, code, want, stdout, stderr)
		}
	}
	ran("affected", pod.Spec.Containers[0].Image, l.a.Host+"/team/app@"+l.digests["old"])
	if _, stderr, code := l.run("impact", "--advisory", filepath.Join(dir, "all", "log4shell.json")); code != cli.ExitOK {
		t.Errorf("what no longer runs ends with %d: %s", code, stderr)
	}
	ever("log4shell.json", exitTouched, "What ran:", "Pod/affected", "GHSA-jfh8-c2jp-5v3q", "recorded since")
	ever("old.json", cli.ExitOK, "nothing that is touched is recorded to have run")
	var got everReview
	stdout, _, _ := l.run("impact", "--ever", "-o", "json", "--advisory", filepath.Join(dir, "all", "log4shell.json"))
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || len(got.Ran) != 1 || got.Ran[0].Image != l.digests["old"] || got.Ran[0].Run.Spec.Workload != "Pod/affected" || len(got.Status.Rows) == 0 {
		t.Errorf("as a document: %v\n%s", err, stdout)
	}
	ran("stranger", "registry.example.com/gone:1", "registry.example.com/gone@sha256:"+strings.Repeat("9", 64))
	ever("old.json", cli.ExitSome, "no SBOM is here of 1 image that ran at some time", "it is unknown whether something that ran is touched")
	ever("log4shell.json", exitTouched, "no SBOM is here of 1 image")
	if _, stderr, code := l.run("impact", "--ever", "--at", "1h"); code != cli.ExitUsage || !strings.Contains(stderr, "--ever is about advisories") {
		t.Errorf("--ever without advisories ends with %d: %s", code, stderr)
	}
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

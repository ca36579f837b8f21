package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

var update = flag.Bool("update", false, "write the real output of the README's commands into it")

// What the README shows is what happens. A block is run when the line before
// it is "<!-- e2e -->":
//
//	<!-- e2e -->
//	```console
//	$ command
//	its output
//	```
//
// Lines with "$ " are commands (after "<!-- e2e: one command -->" only the first), run in order in
// one empty folder, with tidewaiter and kubectl on PATH; "export NAME=VALUE" holds for those after
// it. The others are the output, standard error included. A command that goes on when all of that
// was seen is left running, as a reader would leave it in another terminal. "go run
// ./cmd/tidewaiter" runs the program under test. The registry localhost:5000 is a real one that
// holds library/hello-world:latest, library/busybox:latest and team/app:v1, the last for three
// platforms. Digests, ports, ages and dates may differ, and a line that is only "…" stands for any
// lines.
func TestREADME(t *testing.T) {
	t.Parallel()
	runDocument(t, "README.md", newSession(t))
}

// What docs/reference/access.md shows is what happens, to an administrator.
func TestAccessDocument(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t)
	run := newSession(t)
	run.env = append(run.env, "KUBECONFIG="+s.Kubeconfig)
	runDocument(t, filepath.Join("docs", "reference", "access.md"), run)
}

// What docs/tasks/access.md shows is what happens, in the folder of a data directory. A new token
// counts within a second, so kubectl asks again until it does. Who logs in at a real provider of
// OpenID Connect is let in at the end, with the file of docs/reference/access.md. In place of
// kubelogin, which wants a browser, a script gives that person's token.
func TestAccessTask(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	authentication := openGuide(t, "reference/access.md", nil, "https://sso.example.com", p.issuer, "audiences: [kubectl]", fmt.Sprintf("audiences: [kubectl], certificateAuthority: %q", p.ca),
		// this provider tells no groups
		`{claim: groups, prefix: "sso:"}`, `{expression: "['sso:staff']"}`)
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	must(t, os.WriteFile(file, []byte(authentication.block("kind: AuthenticationConfiguration")), 0o600))
	s := harness.StartServer(t, "--authentication-config", file)
	run := &session{dir: filepath.Dir(s.DataDir), bin: t.TempDir(), registry: &registry.Registry{Host: strings.TrimPrefix(s.URL, "https://")}, shown: "tidewaiter.example.com:6443"}
	run.env = []string{"PATH=" + run.bin + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + t.TempDir(), "KUBECONFIG=" + s.Kubeconfig}
	must(t, os.Symlink(s.DataDir, filepath.Join(run.dir, "tidewaiter-data")))
	run.install(t, "kubectl", fmt.Sprintf(`#!/bin/bash
for _ in {1..100}; do
	said=$(%s "$@" 2>&1); code=$?
	[[ $code = 0 || "$*" != *" auth can-i "* ]] && break
done
echo "$said"
exit $code
`, harness.Tool(t, "kubectl")))
	run.install(t, "kubectl-oidc_login", fmt.Sprintf(`#!/bin/bash
[[ "$*" = "get-token --oidc-issuer-url=https://sso.example.com --oidc-client-id=kubectl" ]] || exit 1
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
`, p.login(t, "test-user@127.0.0.1")))
	runDocument(t, filepath.Join("docs", "tasks", "access.md"), run)
	g := openGuide(t, "tasks/access.md", run)
	for line := range strings.Lines(g.block("create clusterrolebinding sso-reads")) {
		if strings.HasPrefix(line, "kubectl ") {
			g.typed(line)
		}
	}
	wantContains(t, "who logged in", g.typed("kubectl --kubeconfig person.kubeconfig auth whoami"), "sso:id1", "sso:staff")
	wantContains(t, "what they may do", g.typed("kubectl --kubeconfig person.kubeconfig auth can-i list images"), "yes")
}

// What docs/reference/signatures.md shows is what happens, with the real cosign and the first of
// its policies as demo.yaml; its examples without output are answered, too.
func TestSignaturesDocument(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t)
	run := newSession(t)
	run.shown = "registry.example.com"
	run.env = append(run.env, "KUBECONFIG="+s.Kubeconfig)
	c := newCosign(t)
	withCosign(t, run, c)
	run.registry.Push(t, "demo/app:v1", images.Busybox(t))
	text, err := os.ReadFile(filepath.Join(harness.ModuleDir(t), "..", "docs", "reference", "signatures.md"))
	must(t, err)
	_, policy, _ := strings.Cut(string(text), "```yaml\n")
	policy, _, _ = strings.Cut(policy, "```")
	for _, name := range []string{"demo.yaml", "new.yaml"} {
		must(t, os.WriteFile(filepath.Join(run.dir, name), []byte(strings.ReplaceAll(policy, run.shown, run.registry.Host)), 0o600))
	}
	runDocument(t, filepath.Join("docs", "reference", "signatures.md"), run)

	ran, fenced, plain := 0, false, false
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
			plain = fenced && line == "```\n"
		case plain:
			ran++
			run.step(t, step{command: strings.TrimSpace(line)})
		}
	}
	if ran < 7 {
		t.Errorf("%d examples were run", ran)
	}
}

// What docs/tasks/impact.md shows is what happens: a policy that trusts a key of nobody, and an
// image that is built on a base which was updated since, signed, and attested to have a package.
func TestImpactTask(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t)
	run, c := newSession(t), newCosign(t)
	run.env = append(run.env, "KUBECONFIG="+s.Kubeconfig)
	r := run.registry
	c.key("release", "p256")
	c.key("nobody", "p256")
	must(t, os.Rename(filepath.Join(c.dir, "release.pub"), filepath.Join(run.dir, "release.pub")))
	must(t, os.Symlink(filepath.Join(run.dir, "release.pub"), filepath.Join(c.dir, "release.pub")))
	must(t, os.WriteFile(filepath.Join(run.dir, "strict.yaml"), []byte(c.keysPolicy("strict", r.Host+"/team", "nobody")), 0o600))

	all := images.Numbered(t, 3)
	base, web := r.Push(t, "library/base:v1", all[0]), images.On(t, all[0], r.Host+"/library/base:v1")
	at := r.Host + "/shop/web@" + images.Digest(t, web).String()
	s.Import(t, base)
	r.Push(t, "library/base:v1", all[1])
	s.Import(t, base)
	shop := c.keysPolicy("shop", r.Host+"/shop", "release")
	s.KubectlStdin(t, shop, "create", "-f", "-")
	pushed := r.Push(t, "shop/web:v1", web)
	c.sign("legacy", "release", at)
	c.attest("legacy", "release", at, "spdxjson", `{"spdxVersion":"SPDX-2.3","dataLicense":"CC0-1.0","SPDXID":"SPDXRef-DOCUMENT","name":"web","documentNamespace":"https://example.com/web","packages":[
		{"SPDXID":"SPDXRef-1","name":"openssl","versionInfo":"3.0.1-1","downloadLocation":"NOASSERTION","externalRefs":[{"referenceCategory":"PACKAGE-MANAGER","referenceType":"purl","referenceLocator":"pkg:deb/debian/openssl@3.0.1-1"}]}]}`)
	s.Import(t, pushed)
	old := r.Push(t, "shop/old:v1", all[2])
	s.Import(t, old)
	awaitVerdict(t, s, images.Digest(t, web).String(), "True", r.Host+"/shop/web")
	awaitVerdict(t, s, images.Digest(t, all[2]).String(), "Unsigned", r.Host+"/shop/old")
	exception := shop + fmt.Sprintf("  exceptions:\n  - {images: [%q], until: %q, by: ann@example.com, reason: it is signed in the next release}\n",
		r.Host+"/shop/old@"+images.Digest(t, all[2]).String(), time.Now().Add(100*24*time.Hour).UTC().Format(time.RFC3339))
	must(t, os.WriteFile(filepath.Join(run.dir, "exception.yaml"), []byte(exception), 0o600))
	runDocument(t, filepath.Join("docs", "tasks", "impact.md"), run)
}

// What docs/tasks/advisories.md shows is what happens: an image with an affected package, its next
// version with the fix, and one that is not affected by the word of whom the policies trust.
func TestAdvisoriesTask(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t)
	run, c := newSession(t), newCosign(t)
	run.env = append(run.env, "KUBECONFIG="+s.Kubeconfig)
	r := run.registry
	c.key("release", "p256")
	s.KubectlStdin(t, c.keysPolicy("shop", r.Host+"/shop", "release"), "create", "-f", "-")
	all := images.Numbered(t, 3)
	for i, tag := range []string{"shop/web:v1", "shop/web:v2", "shop/jobs:v1"} {
		pushed := r.Push(t, tag, all[i])
		digest := images.Digest(t, all[i]).String()
		repository, _, _ := strings.Cut(tag, ":")
		at := r.Host + "/" + repository + "@" + digest
		c.sign("legacy", "release", at)
		version := []string{"2.14.1", "2.17.1", "2.14.1"}[i]
		c.attest("legacy", "release", at, "spdxjson", `{"spdxVersion":"SPDX-2.3","dataLicense":"CC0-1.0","SPDXID":"SPDXRef-DOCUMENT","name":"web","documentNamespace":"https://example.com/web","packages":[
			{"SPDXID":"SPDXRef-1","name":"log4j-core","versionInfo":"`+version+`","downloadLocation":"NOASSERTION","externalRefs":[{"referenceCategory":"PACKAGE-MANAGER","referenceType":"purl","referenceLocator":"pkg:maven/org.apache.logging.log4j/log4j-core@`+version+`"}]}]}`)
		if repository == "shop/jobs" {
			c.attest("legacy", "release", at, "openvex", `{"@context":"https://openvex.dev/ns/v0.2.0","@id":"https://example.com/vex-1","author":"Ann","timestamp":"2026-01-01T00:00:00Z","version":1,"statements":[{"vulnerability":{"name":"CVE-2021-44228"},"products":[{"@id":"pkg:oci/jobs"}],"status":"not_affected","justification":"vulnerable_code_not_present"}]}`)
		}
		s.Import(t, pushed)
		awaitVerdict(t, s, digest, "True", r.Host+"/"+repository)
	}
	must(t, os.WriteFile(filepath.Join(run.dir, "GHSA-jfh8-c2jp-5v3q.json"), []byte(`{"schema_version":"1.4.0","id":"GHSA-jfh8-c2jp-5v3q","aliases":["CVE-2021-44228"],"modified":"2024-01-01T00:00:00Z","summary":"Remote code injection in Log4j","affected":[
		{"package":{"ecosystem":"Maven","name":"org.apache.logging.log4j:log4j-core"},"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"2.13.0"},{"fixed":"2.15.0"}]}]},
		{"package":{"ecosystem":"Maven","name":"org.apache.logging.log4j:log4j-core"},"ranges":[{"type":"ECOSYSTEM","events":[{"introduced":"2.4"},{"fixed":"2.12.2"}]}]}]}`), 0o600))
	runDocument(t, filepath.Join("docs", "tasks", "advisories.md"), run)
}

// What docs/tasks/overwritten.md shows is what happens: both images are signed by whom the policy
// trusts, and the tag must not move.
func TestOverwrittenTask(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t)
	run, c := newSession(t), newCosign(t)
	run.env = append(run.env, "KUBECONFIG="+s.Kubeconfig)
	r := run.registry
	c.key("release", "p256")
	s.KubectlStdin(t, strings.Replace(c.keysPolicy("shop", r.Host+"/shop", "release"), "metadata: {", `metadata: {annotations: {tidewaiter.dev/immutable-tags: "v*"}, `, 1), "create", "-f", "-")
	for _, image := range images.Numbered(t, 2) {
		pushed := r.Push(t, "shop/web:v1", image)
		digest := images.Digest(t, image).String()
		c.sign("legacy", "release", r.Host+"/shop/web@"+digest)
		s.Import(t, pushed)
		awaitVerdict(t, s, digest, "True", r.Host+"/shop/web")
	}
	runDocument(t, filepath.Join("docs", "tasks", "overwritten.md"), run)
}

// runDocument runs the blocks of a document of the project.
func runDocument(t *testing.T, name string, run *session) {
	t.Helper()
	path := filepath.Join(harness.ModuleDir(t), "..", name)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	blocks := readmeBlock.FindAllStringSubmatchIndex(string(text), -1)
	if len(blocks) == 0 {
		t.Fatalf("%s has no block to run; mark one with <!-- e2e -->", path)
	}
	updated, end := strings.Builder{}, 0
	for _, b := range blocks {
		var block strings.Builder
		for _, step := range parseSteps(t, string(text[b[4]:b[5]]), b[2] >= 0) {
			got := run.step(t, step)
			if n := normalise(got); !matches(normalise(step.output), n) && !*update {
				t.Errorf("$ %s\nprinted:\n%s\n%s shows:\n%s", step.command, n, name, normalise(step.output))
			}
			fmt.Fprintf(&block, "$ %s\n%s", step.command, got)
		}
		updated.Write(text[end:b[4]])
		updated.WriteString(block.String())
		end = b[5]
	}
	if *update && !t.Failed() {
		updated.Write(text[end:])
		if err := os.WriteFile(path, []byte(updated.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

var readmeBlock = regexp.MustCompile("(?s)<!-- e2e(: one command)? -->\n```console\n(.*?)```\n")

// A step is a command and the output shown for it, "" or ending in a newline.
type step struct{ command, output string }

func parseSteps(t *testing.T, block string, oneCommand bool) []step {
	t.Helper()
	var steps []step
	for line := range strings.Lines(block) {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case isCommand && (len(steps) == 0 || !oneCommand):
			steps = append(steps, step{command: strings.TrimSuffix(command, "\n")})
		case len(steps) == 0:
			t.Fatalf("a block begins with output: %q", line)
		default:
			steps[len(steps)-1].output += line
		}
	}
	return steps
}

// session is the terminal the README's commands are typed into.
type session struct {
	dir, bin string
	env      []string
	registry *registry.Registry
	shown    string // what the document calls the registry
}

func newSession(t *testing.T) *session {
	t.Helper()
	r := registry.Start(t, registry.Distribution)
	r.Push(t, "library/hello-world:latest", images.HelloWorld(t))
	r.Push(t, "library/busybox:latest", images.Busybox(t))
	r.Push(t, "team/app:v1", images.MultiArch(t))
	bin, home := t.TempDir(), t.TempDir()
	for name, path := range map[string]string{"tidewaiter": harness.Binary(t), "kubectl": harness.Tool(t, "kubectl")} {
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	s := &session{dir: t.TempDir(), bin: bin, registry: r, shown: "localhost:5000", env: []string{
		"PATH=" + bin + string(os.PathListSeparator) + os.Getenv("PATH"),
		"HOME=" + home, "DOCKER_CONFIG=" + home, "KUBECONFIG=", "TERM=dumb",
	}}
	return s
}

// install puts a script on PATH.
func (s *session) install(t *testing.T, name, script string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(s.bin, name), []byte(script), 0o700))
}

// step types a command and returns what it printed, once it has ended or has
// printed what is shown.
func (s *session) step(t *testing.T, step step) string {
	t.Helper()
	if assignment, ok := strings.CutPrefix(step.command, "export "); ok {
		s.env = append(s.env, os.Expand(assignment, func(name string) string {
			for _, e := range s.env {
				if v, ok := strings.CutPrefix(e, name+"="); ok {
					return v
				}
			}
			return ""
		}))
		return ""
	}
	command := strings.TrimSuffix(strings.TrimSpace(step.command), "&")
	command = strings.ReplaceAll(command, s.shown, s.registry.Host)
	command = strings.Replace(command, "go run ./cmd/tidewaiter", "tidewaiter", 1)
	p := harness.Start(t, harness.Command{Path: "bash", Args: []string{"-c", "exec 2>&1; exec " + command}, Dir: s.dir, Env: s.env})
	t.Cleanup(func() { p.Signal(t, syscall.SIGTERM); p.Wait(t) })

	done := func(got string) bool {
		return strings.Count(got, "\n") > 0 && matches(normalise(step.output), normalise(got))
	}
	patience := harness.Patience
	if *update { // nobody knows what will come: take what there is when it goes quiet
		done, patience = func(string) bool { return false }, 5*time.Second
	}
	quiet := time.NewTimer(patience)
	for last := ""; p.Running() && !done(last); {
		select {
		case <-p.Exited():
		case <-quiet.C:
			return s.restore(p.Stdout.String())
		case <-time.After(20 * time.Millisecond):
			if got := p.Stdout.String(); got != last {
				last = got
				quiet.Reset(patience)
			}
		}
	}
	if !p.Running() {
		if code := p.Wait(t); code != 0 {
			t.Errorf("$ %s: exit code %d", step.command, code)
		}
	}
	return s.restore(p.Stdout.String())
}

// restore puts the document's registry where the real one was printed.
func (s *session) restore(output string) string {
	return strings.ReplaceAll(output, s.registry.Host, s.shown)
}

// normalise replaces what differs from run to run with its name.
func normalise(s string) string {
	for _, r := range volatile {
		s = r.pattern.ReplaceAllString(s, r.name)
	}
	return s
}

var volatile = []struct {
	pattern *regexp.Regexp
	name    string
}{
	{regexp.MustCompile(`sha256:[0-9a-f]{6,64}(…|\.\.\.)?`), "<digest>"},
	{regexp.MustCompile(`(?m)^[0-9a-f]{12} `), "<digest> "}, // of `tidewaiter verify`
	{regexp.MustCompile(`\b(localhost|127\.0\.0\.1):\d+\b`), "<host>"},
	{regexp.MustCompile(`/\S*/(admin\.kubeconfig|pki/ca\.crt|policy\.yaml)\b`), "<dir>/$1"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "<time>"},
	{regexp.MustCompile(`\b(\d+(ms|d|h|m|s))+\b`), "<age>"},
	{regexp.MustCompile(`\b\d+y(\d+d)?\b`), "<age>"},
	{regexp.MustCompile(`\b\d+(\.\d+)?[kMG]?B\b`), "<size>"},
	{regexp.MustCompile(`[ \t]+`), " "}, // columns are as wide as what is in them
	{regexp.MustCompile(`(?m) $`), ""},
}

// matches compares line by line, in any order: references are imported side by
// side, and tables are sorted by digests that differ from one Go release to the
// next. With a line "…", which stands for any number of lines, order counts.
func matches(want, got string) bool {
	if sortedLines(want) == sortedLines(got) {
		return true
	}
	pattern := "^"
	for line := range strings.Lines(want) {
		if l := strings.TrimSpace(line); l == "…" || l == "..." {
			pattern += `(?:.*\n)*`
		} else {
			pattern += regexp.QuoteMeta(line)
		}
	}
	return regexp.MustCompile(pattern + "$").MatchString(got)
}

func sortedLines(s string) string {
	return strings.Join(slices.Sorted(strings.Lines(s)), "")
}

// The comparison itself: it must be able to fail.
func TestREADMEComparison(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	for name, tc := range map[string]struct {
		want, got string
		match     bool
	}{
		"same":           {"a  b\n", "a b\n", true},
		"digest":         {"sha256:0123456789ab… ok\n", digest + "   ok\n", true},
		"port and age":   {"at localhost:5000 3m\n", "at 127.0.0.1:41234 12s\n", true},
		"size":           {"567kB\n", "1.2MB\n", true},
		"order":          {"a\nb\n", "b\na\n", true},
		"other word":     {"a b\n", "a c\n", false},
		"line missing":   {"a\nb\n", "a\n", false},
		"line too many":  {"a\n", "a\nb\n", false},
		"any lines":      {"a\n…\nz\n", "a\nb\nc\nz\n", true},
		"any lines, end": {"a\n…\nz\n", "a\nb\nc\n", false},
		"column gone":    {"NAME AGE\n", "NAME\n", false},
	} {
		if got := matches(normalise(tc.want), normalise(tc.got)); got != tc.match {
			t.Errorf("%s: %t, want %t", name, got, tc.match)
		}
	}
}

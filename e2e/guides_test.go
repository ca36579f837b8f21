package e2e

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// guide is a document whose commands are typed into a terminal as they stand there, but for names
// of hosts and digests.
type guide struct {
	*session
	t       *testing.T
	text    string
	replace []string // what the document says, and what it is here
}

func openGuide(t *testing.T, name string, run *session, replace ...string) *guide {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(harness.ModuleDir(t), "..", "docs", name))
	must(t, err)
	return &guide{session: run, t: t, text: string(text), replace: replace}
}

// documentBlock is a block of a document. It is indented in a list.
var documentBlock = regexp.MustCompile("(?ms)^ *```[a-z]+\n(.*?)^ *```$")

// block is the block in which a text is.
func (g *guide) block(part string) string {
	g.t.Helper()
	for _, block := range documentBlock.FindAllStringSubmatch(g.text, -1) {
		if strings.Contains(block[1], part) {
			return strings.NewReplacer(g.replace...).Replace(block[1])
		}
	}
	g.t.Fatalf("the document has no block with %q", part)
	return ""
}

// run runs the block in which a text is, and returns what it prints.
func (g *guide) run(part string) string {
	g.t.Helper()
	return g.typed(g.block(part))
}

// typed runs lines of a shell.
func (g *guide) typed(text string) string {
	g.t.Helper()
	got := g.try(text)
	if got.Code != 0 {
		g.t.Fatalf("exit code %d of\n%s\n%s%s", got.Code, text, got.Stdout, got.Stderr)
	}
	return got.Stdout + got.Stderr
}

func (g *guide) try(text string) harness.Result {
	g.t.Helper()
	return harness.Run(g.t, harness.Command{Path: "bash", Args: []string{"-euo", "pipefail", "-c", text}, Dir: g.dir, Env: g.env})
}

// named is a command that the document names within a sentence.
func (g *guide) named(command string) string {
	g.t.Helper()
	if !strings.Contains(strings.Join(strings.Fields(g.text), " "), "`"+command+"`") {
		g.t.Fatalf("the document does not name %s", command)
	}
	return strings.NewReplacer(g.replace...).Replace(command)
}

// write makes a file in the folder of the terminal.
func (g *guide) write(name, text string) {
	g.t.Helper()
	must(g.t, os.WriteFile(filepath.Join(g.dir, name), []byte(text), 0o600))
}

// wantFile fails unless a file in the folder of the terminal contains all parts.
func (g *guide) wantFile(name string, parts ...string) {
	g.t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, name))
	must(g.t, err)
	wantContains(g.t, name, string(text), parts...)
}

// withServer has commands ask a server, as kubectl's plugins as well.
func withServer(t *testing.T, run *session, s *harness.Server) {
	t.Helper()
	run.env = append(run.env, "KUBECONFIG="+s.Kubeconfig)
	must(t, os.Symlink(harness.Binary(t), filepath.Join(run.bin, "kubectl-images")))
	must(t, os.Symlink(s.DataDir, filepath.Join(run.dir, "tidewaiter-data")))
}

// withCosign has commands run the real cosign, without a service on the internet and without what
// it says of its work.
func withCosign(t *testing.T, run *session, c *cosign) {
	t.Helper()
	run.env = append(run.env, "COSIGN_PASSWORD=")
	run.install(t, "cosign", fmt.Sprintf("#!/bin/bash\nif [ $1 = sign ] || [ $1 = sign-blob ]; then set -- \"$@\" --signing-config %[1]s/signing-config.json --trusted-root %[1]s/trusted-root.json; fi\nsaid=$(%[2]s \"$@\" 2>&1) || { echo \"$said\"; exit 1; }\n",
		c.dir, harness.Tool(t, "cosign")))
}

// docs/tasks/keys.md, to its end: what was signed again stays True all the time, what was not is
// found, and is False when the old key is dropped.
func TestKeysTask(t *testing.T) {
	t.Parallel()
	s, run, c := harness.StartServer(t), newSession(t), newCosign(t)
	withServer(t, run, s)
	withCosign(t, run, c)
	r, all := run.registry, images.Numbered(t, 2)
	again, left := images.Digest(t, all[0]).String(), images.Digest(t, all[1]).String()
	g := openGuide(t, "tasks/keys.md", run, "sha256:9f86…", again, "registry.example.com", r.Host)
	for _, name := range []string{"old", "new"} {
		c.key(name, "p256")
		must(t, os.Symlink(filepath.Join(c.dir, name+".key"), filepath.Join(run.dir, name+".key")))
	}
	scope := r.Host + "/team/app"
	policies := func(documents string) {
		t.Helper()
		s.KubectlStdin(t, documents, "apply", "-f", "-")
	}
	policies(c.keysPolicy("release", scope, "old"))
	for i, image := range []v1.Image{all[1], all[0]} { // the tag leads to the second
		r.Push(t, "team/app:v1", image)
		c.sign("legacy", "old", scope+"@"+[]string{left, again}[i])
		s.Import(t, scope+":v1")
	}
	awaitVerdict(t, s, again, "True", scope)
	awaitVerdict(t, s, left, "True", scope)

	policies(c.keysPolicy("release", scope, "new", "old"))
	awaitVerdict(t, s, left, "True", scope)
	g.run("cosign sign --key new.key")
	if !strings.Contains(g.text, "annotation `tidewaiter.dev/admission: audit`") {
		t.Error("the second policy is another one now")
	}
	policies(strings.Replace(c.keysPolicy("new-alone", scope, "new"), "metadata: {name: new-alone}", "metadata: {name: new-alone, annotations: {tidewaiter.dev/admission: audit}}", 1))
	awaitVerdict(t, s, left, "False", scope)
	awaitVerdict(t, s, again, "True", scope)
	if got := g.typed(g.named("kubectl get images --field-selector verdicts=False@registry.example.com/team/app") + " -o name"); strings.TrimSpace(got) != "image.image.openshift.io/"+left {
		t.Errorf("only the old key signed %s, want %s", got, left)
	}
	s.Kubectl(t, "delete", "clusterimagepolicy", "new-alone")
	policies(c.keysPolicy("release", scope, "new"))
	awaitVerdict(t, s, left, "False", scope)
	awaitVerdict(t, s, again, "True", scope)
	harness.Eventually(t, func() error {
		if got := s.Kubectl(t, "get", "clusterimagepolicy", "release", "-o", `jsonpath={.status.conditions[?(@.type=="Satisfiable")].status}`); got != "True" {
			return fmt.Errorf("the policy says Satisfiable=%s", got)
		}
		return nil
	})
}

// docs/tasks/signers.md: each line is answered, and those about one image name its signer.
func TestSignersTask(t *testing.T) {
	t.Parallel()
	s, run, c := harness.StartServer(t), newSession(t), newCosign(t)
	withServer(t, run, s)
	r, image := run.registry, images.Numbered(t, 1)[0]
	g := openGuide(t, "tasks/signers.md", run, "registry.example.com", r.Host)
	digest := images.Digest(t, image).String()
	c.key("release", "p256")
	r.Push(t, "team/app:v1", image)
	c.sign("legacy", "release", r.Host+"/team/app@"+digest)
	policy := c.keysPolicy("demo", r.Host+"/team", "release")
	g.write("demo.yaml", policy)
	s.KubectlStdin(t, policy, "create", "-f", "-")
	s.Import(t, r.Host+"/team/app:v1")
	awaitVerdict(t, s, digest, "True", r.Host+"/team/app")
	s.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"main","image":"%s/team/app:v1"}]}}`, r.Host), "create", "-f", "-")
	for line := range strings.Lines(g.block("kubectl images")) {
		said := g.typed(line)
		switch command := strings.Fields(line); {
		case command[1] == "images", command[1] == "describe", command[1] == "verify":
			wantContains(t, line, said, "True", digest[len("sha256:"):][:12])
		case len(command) > 3 && command[1] == "get" && command[2] == "images" && command[3] == "#":
			wantContains(t, line, said, "VERDICT", "True")
		}
	}
}

// docs/start/ci.md: an account that can import and no more imports, and the gate, with the page's
// own policy, lets only signed images through.
func TestCIGuide(t *testing.T) {
	t.Parallel()
	s, run, c := harness.StartServer(t), newSession(t), newCosign(t)
	withServer(t, run, s)
	r, all := run.registry, images.Numbered(t, 2)
	g := openGuide(t, "start/ci.md", run, "https://tidewaiter.example.com:6443", s.URL, "registry.example.com", r.Host)
	g.run("kubectl create serviceaccount importer")

	// The pipeline has the certificate, the token, the policy, and no other credential.
	c.key("release", "p256")
	r.Push(t, "team/app:v1", all[0])
	c.sign("bundle", "release", r.Host+"/team/app@"+images.Digest(t, all[0]).String()) // as cosign 3 does by default
	g.write("policy.yaml", g.block("kind: ClusterImagePolicy"))
	public, err := os.ReadFile(filepath.Join(c.dir, "release.pub"))
	must(t, err)
	g.write("cosign.pub", string(public))
	must(t, os.Symlink(filepath.Join(s.DataDir, "pki", "ca.crt"), filepath.Join(run.dir, "ca.crt")))
	must(t, os.Remove(filepath.Join(run.dir, "tidewaiter-data")))
	run.env = append(run.env, "KUBECONFIG=", "DIGEST="+images.Digest(t, all[0]).String())
	wantContains(t, "the pipeline", g.run("tidewaiter import --server"), "imported", "True")
	if got := g.try(g.block("tidewaiter verify --server")); got.Code != 2 || !strings.Contains(got.Stdout+got.Stderr, "no policy covers") {
		t.Errorf("the server, which has no policy, says %d: %s%s", got.Code, got.Stdout, got.Stderr)
	}
	wantContains(t, "the images", s.Kubectl(t, "get", "images", "-o", "name"), images.Digest(t, all[0]).String())

	r.Push(t, "team/app:v1", all[1]) // nobody signs this one
	if got := g.try(g.block("tidewaiter import --server")); got.Code != 1 || !strings.Contains(got.Stdout+got.Stderr, "Unsigned") {
		t.Errorf("an image that is not signed passes the gate with %d: %s%s", got.Code, got.Stdout, got.Stderr)
	}
}

// docs/start/webhook.md with a real registry, from the secret to the image.
func TestWebhookGuide(t *testing.T) {
	t.Parallel()
	run := newSession(t)
	address := "127.0.0.1:" + harness.FreePort(t)
	g := openGuide(t, "start/webhook.md", run, "--bind-address 0.0.0.0", "--bind-address 127.0.0.1 --secure-port "+strings.TrimPrefix(address, "127.0.0.1:"), "tidewaiter.example.com:6443", address)
	setUp := g.block("openssl rand")
	secret, rest, _ := strings.Cut(setUp, "\n")
	g.typed(secret)
	hook, err := os.ReadFile(filepath.Join(run.dir, "hook-secret"))
	must(t, err)
	trusted := filepath.Join(run.dir, "trusted") // where the registry looks for authorities
	must(t, os.Mkdir(trusted, 0o700))
	ca := filepath.Join(run.dir, "tidewaiter-data", "pki", "ca.crt")
	must(t, os.Symlink(ca, filepath.Join(trusted, "ca.crt")))
	r := registry.StartNotifying(t, registry.Distribution, registry.Endpoint{URL: "https://" + address + "/hooks/local", Authorization: "Bearer " + strings.TrimSpace(string(hook)), CertDir: trusted})
	// with the sweep that the end of the page adds
	rest = strings.Replace(rest, "\nEND\n", "\n"+g.block("sweep:")+"END\n", 1)
	rest = strings.ReplaceAll(rest, "registry.example.com:5000", r.Host)
	server := harness.Start(t, harness.Command{Path: "bash", Args: []string{"-euc", rest}, Dir: run.dir, Env: run.env})
	server.Stdout.AwaitMatch(t, regexp.MustCompile(`is ready at`))
	wantContains(t, "the delivery without events", g.run("curl --cacert"), " 200", "nothing of interest")

	run.env = append(run.env, "KUBECONFIG="+filepath.Join(run.dir, "tidewaiter-data", "admin.kubeconfig"))
	watch, list, _ := strings.Cut(g.block("kubectl get images --watch"), "\n")
	seen := harness.Start(t, harness.Command{Path: "bash", Args: []string{"-c", "exec " + watch}, Dir: run.dir, Env: run.env})
	image := images.Numbered(t, 1)[0]
	r.Push(t, "team/app:v1", image)
	seen.Stdout.AwaitMatch(t, regexp.MustCompile(images.Digest(t, image).String()[len("sha256:"):][:12]))
	g.typed(list)
}

// docs/start/cluster.md with a real kube-apiserver: what runs there is shown.
func TestClusterGuide(t *testing.T) {
	t.Parallel()
	c, run := harness.StartCluster(t), newSession(t)
	run.env = append(run.env, "KUBECONFIG="+c.Kubeconfig(t, "admin", "admin"))
	ref := run.registry.Host + "/team/app:v1"
	runPod(t, c, "team", "web", ref)
	g := openGuide(t, "start/cluster.md", run, "CONTEXT", "admin")
	begin := strings.Split(g.block("go install"), "\n")
	g.typed(begin[3])
	wantContains(t, "the guide", begin[4], "tidewaiter serve --config tidewaiter.yaml")
	withServer(t, run, harness.StartServer(t, "--config", filepath.Join(run.dir, "tidewaiter.yaml")))
	asked := strings.Split(strings.TrimSpace(g.block("kubectl get clusters")), "\n")
	for i, want := range [][]string{1: {"prod", "True"}, 2: {"team", ref, "NoPolicy"}, 3: {ref, "NoPolicy"}} {
		if want == nil {
			continue
		}
		harness.Eventually(t, func() error {
			got := g.try(asked[0] + "\n" + asked[i])
			for _, w := range want {
				if got.Code != 0 || !strings.Contains(got.Stdout, w) {
					return fmt.Errorf("%s: exit code %d, want %q: %s%s", asked[i], got.Code, w, got.Stdout, got.Stderr)
				}
			}
			return nil
		})
	}
}

// runPod has a cluster run a pod in a new namespace.
func runPod(t *testing.T, c *harness.Cluster, namespace, name, image string) {
	t.Helper()
	c.Kubectl(t, "create", "namespace", namespace)
	harness.Eventually(t, func() error {
		// a pod is refused until its namespace has a service account
		if got := c.TryKubectl(t, "admin", "run", name, "-n", namespace, "--image", image); got.Code != 0 {
			return fmt.Errorf("%s", got.Stderr)
		}
		return nil
	})
}

// docs/tasks/cluster.md with a real kube-apiserver: the kubeconfig has the follower's credential
// alone, and what a pod names there is imported and shown.
func TestClusterTask(t *testing.T) {
	t.Parallel()
	c, run := harness.StartCluster(t), newSession(t)
	r, image := run.registry, images.Numbered(t, 1)[0]
	digest := images.Digest(t, image).String()
	r.Push(t, "team/app:v1", image)
	run.env = append(run.env, "KUBECONFIG="+c.Kubeconfig(t, "admin", "admin"))
	g := openGuide(t, "tasks/cluster.md", run, "registry.example.com", r.Host)
	for _, part := range []string{"create serviceaccount tidewaiter-follower", "kubectl config view"} {
		g.run(part)
	}
	if got := g.typed("kubectl config --kubeconfig prod.kubeconfig get-users"); strings.Join(strings.Fields(got), " ") != "NAME follower" {
		t.Errorf("the kubeconfig has the users %q", got)
	}
	g.write("config.yaml", g.block("excludedNamespaces: [kube-system]"))
	s := harness.StartServer(t, "--config", filepath.Join(run.dir, "config.yaml"))
	runPod(t, c, "team", "web", r.Host+"/team/app:v1")
	withServer(t, run, s)
	asked := strings.Split(strings.TrimSpace(g.block("kubectl get clusters")), "\n")
	for i, want := range []string{"prod True True", "prod:team:web", digest[len("sha256:"):][:12]} {
		harness.Eventually(t, func() error {
			if got := g.try(asked[i]); got.Code != 0 || !strings.Contains(strings.Join(strings.Fields(got.Stdout), " "), want) {
				return fmt.Errorf("%s: exit code %d, want %q: %s%s", asked[i], got.Code, want, got.Stdout, got.Stderr)
			}
			return nil
		})
	}
	// kubectl images shows the same as a table of images.
	wantContains(t, "what runs in the cluster", g.typed("kubectl images --cluster prod -A"), "team", r.Host+"/team/app:v1", digest[len("sha256:"):][:12], "NoPolicy")
	run.env = append(run.env, "KUBECONFIG="+c.Kubeconfig(t, "admin", "admin"))
	g.run("create clusterrole tidewaiter-follower-pull")
}

// docs/tasks/audit.md: an auditor judges what was exported with a policy and a key of their own,
// while nothing else can be reached.
func TestAuditTask(t *testing.T) {
	t.Parallel()
	s, run, c := harness.StartServer(t), newSession(t), newCosign(t)
	withServer(t, run, s)
	r, image := run.registry, images.Numbered(t, 1)[0]
	digest := images.Digest(t, image).String()
	c.key("release", "p256")
	c.key("nobody", "p256")
	r.Push(t, "team/app:v1", image)
	c.sign("legacy", "release", r.Host+"/team/app@"+digest)
	s.KubectlStdin(t, c.keysPolicy("release", r.Host+"/team", "release"), "create", "-f", "-")
	s.Import(t, r.Host+"/team/app:v1")
	awaitVerdict(t, s, digest, "True", r.Host+"/team/app")
	s.KubectlStdin(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"shop"},"spec":{"containers":[{"name":"main","image":"%s/team/app:v1"}]}}`, r.Host), "create", "-f", "-")
	began := time.Now().UTC().Format(time.RFC3339)
	s.Kubectl(t, "patch", "pod", "web", "-n", "shop", "--subresource=status", "--type=merge", "-p", fmt.Sprintf(
		`{"status":{"containerStatuses":[{"name":"main","image":"%[1]s/team/app:v1","imageID":"%[1]s/team/app@%[2]s","state":{"running":{"startedAt":%[3]q}}}]}}`, r.Host, digest, began))
	harness.Eventually(t, func() error {
		if ran := s.Kubectl(t, "get", "imageruns", "-n", "shop"); !strings.Contains(ran, " True ") {
			return fmt.Errorf("what runs is not recorded with its verdict: %s", ran)
		}
		return nil
	})

	withCosign(t, run, c)
	must(t, os.Symlink(filepath.Join(c.dir, "release.key"), filepath.Join(run.dir, "cosign.key")))
	g := openGuide(t, "tasks/audit.md", run, "2026-07-01", began, "2026-10-01", time.Now().UTC().Format(time.RFC3339))
	g.run("-o html")
	g.wantFile("report.html", "Pod/web", digest, "What is not known")
	g.run("cosign sign-blob")
	g.wantFile("report.json.bundle", "messageSignature")
	sum, _, _ := strings.Cut(g.run("sha256sum"), " ")
	g.wantFile("report.json", `"verdictLast"`, `"verified": "True"`, digest, "sha256:"+sum)
	g.run("kubectl get images -o json")
	g.wantFile("images.json", digest, "dockerImageManifest", `"content"`)

	// docs/tasks/ran.md asks the same records.
	now := time.Now().UTC().Format(time.RFC3339)
	ran := openGuide(t, "tasks/ran.md", run, "-n qa", "-n shop", "2026-11-24 16:45", now, "2bdcd6f6c8a7", digest[len("sha256:"):][:12],
		"registry.example.com", r.Host, "2026-11-23", began, "2026-11-30", now, "--cluster staging", "--cluster local")
	wantContains(t, "what ran then", ran.run("-n qa --at"), "web", "team/app:v1", digest[len("sha256:"):][:12], "True")
	wantContains(t, "where the digest ran", ran.run("ran 2bdcd6f6c8a7"), "shop", "web")
	wantContains(t, "what was deployed in five days", ran.run("--since 5d"), "local/shop", "web", digest[len("sha256:"):][:12])
	ran.wantFile("used.csv", r.Host+"/team/app:v1,"+digest)
	wantContains(t, "where the tag led, who moved it, and its verdicts", ran.run("history --verdicts"), "Digest:    "+digest, "Verdict:   True", ", import", "it began to run")
	ran.run(">week.csv")
	ran.wantFile("week.csv", "shop", digest)

	r.Stop(t)
	s.Terminate(t)
	must(t, os.Remove(filepath.Join(run.dir, "tidewaiter-data")))
	run.env = append(run.env, "KUBECONFIG=", "HTTPS_PROXY=http://127.0.0.1:1", "HTTP_PROXY=http://127.0.0.1:1")
	g.write("policy.yaml", c.keysPolicy("auditor", r.Host+"/team", "release"))
	wantContains(t, "what the auditor finds", g.run("tidewaiter restore audit.db"), "1 True")
	g.wantFile("signed.csv", digest)
	g.wantFile("acts.csv", "clusterimagepolicies", ",201")
	g.write("policy.yaml", c.keysPolicy("auditor", r.Host+"/team", "nobody"))
	if got := g.try("tidewaiter verify --all --policy policy.yaml --data-dir auditor"); !strings.Contains(got.Stdout+got.Stderr, "1 False") {
		t.Errorf("by a key of nobody: exit code %d: %s%s", got.Code, got.Stdout, got.Stderr)
	}
}

// What docs/reference/webhooks.md has one send for Harbor and for GitHub makes an image here, from
// the payload to the end; and the registry that GitLab ships tells a receiver of type gitlab of its
// pushes by itself. Harbor and GitHub are not there: a real registry stands for their hosts.
func TestWebhooksOfVendors(t *testing.T) {
	t.Parallel()
	run := newSession(t)
	address, data := "127.0.0.1:"+harness.FreePort(t), filepath.Join(run.dir, "data")
	trusted := filepath.Join(run.dir, "trusted")
	must(t, os.Mkdir(trusted, 0o700))
	must(t, os.Symlink(filepath.Join(data, "pki", "ca.crt"), filepath.Join(trusted, "ca.crt")))
	must(t, os.Symlink(filepath.Join(data, "pki"), filepath.Join(run.dir, "pki")))
	r := registry.StartNotifying(t, registry.Distribution, registry.Endpoint{URL: "https://" + address + "/hooks/gitlab", Authorization: "Bearer " + hookSecret, CertDir: trusted})
	g := openGuide(t, "reference/webhooks.md", run, "tidewaiter.example.com:6443", address, "harbor.example.com", r.Host, "ghcr.io", r.Host)
	g.write("hook-secret", hookSecret+"\n")
	config := "ownPodsOnly: true\nreceivers:\n"
	for vendor, repositories := range map[string]string{"harbor": "lib/**", "github": "org/**", "gitlab": "team/**"} {
		config += fmt.Sprintf("- {name: %[1]s, type: %[1]s, hosts: [%[2]q], repositories: [%[3]q], secretFile: hook-secret}\n", vendor, r.Host, repositories)
	}
	g.write("config.yaml", config)
	s := harness.StartServerOn(t, data, "--secure-port", strings.TrimPrefix(address, "127.0.0.1:"), "--config", filepath.Join(run.dir, "config.yaml"))
	all := images.Numbered(t, 3)
	for i, push := range []struct{ vendor, tag, send string }{
		{"harbor", "lib/app:1.0", "/hooks/harbor -H"},
		{"github", "org/app:1.0", "/hooks/github -H"},
		{"gitlab", "team/app:1.0", ""},
	} {
		r.Push(t, push.tag, all[i])
		if push.send != "" {
			wantContains(t, "the answer for "+push.vendor, g.run(push.send), `"queued":1`)
		}
		digest := images.Digest(t, all[i]).String()
		harness.Eventually(t, func() error {
			if got := s.Kubectl(t, "get", "images", "-o", "name"); !strings.Contains(got, digest) {
				return fmt.Errorf("%s: there are %s", push.vendor, got)
			}
			return nil
		})
	}
}

// docs/tasks/backup.md: a server of the restored directory has what was there.
func TestBackupTask(t *testing.T) {
	t.Parallel()
	s, run := harness.StartServer(t), newSession(t)
	withServer(t, run, s)
	s.KubectlStdin(t, plainImage("kept"), "create", "-f", "-")
	backups := filepath.Join(t.TempDir(), "backups")
	g := openGuide(t, "tasks/backup.md", run, "tidewaiter serve", "exec tidewaiter serve --secure-port 0", "/mnt/backups/tidewaiter", backups)
	serve := func(command, dir string) {
		t.Helper()
		server := harness.Start(t, harness.Command{Path: "bash", Args: []string{"-euc", command}, Dir: run.dir, Env: run.env})
		server.Stdout.AwaitMatch(t, regexp.MustCompile(`is ready at`))
		got := g.typed("kubectl --kubeconfig " + filepath.Join(dir, "admin.kubeconfig") + " get images -o name")
		wantContains(t, "the images of "+dir, got, "kept")
		server.Kill(t)
	}
	restore, served, _ := strings.Cut(g.block("tidewaiter restore"), "exec ")
	g.typed(restore)
	serve("exec "+served, "restored")
	s.Terminate(t)
	scheduled := g.block("--backup-every 24h")
	made, _, _ := strings.Cut(scheduled, "exec ")
	g.typed(made)
	serve(strings.TrimPrefix(scheduled, made), "tidewaiter-data")
}

// docs/tasks/upgrade.md, from a data directory of commit 1c3a525: its objects are there, and they
// are there again where the backup that was made before is restored and served; old credentials are
// valid there, too. The program is this one, before and after.
func TestUpgradeTask(t *testing.T) {
	t.Parallel()
	run := newSession(t)
	data := filepath.Join(run.dir, "tidewaiter-data")
	must(t, os.Mkdir(data, 0o700))
	packed, err := os.Open(filepath.Join(filepath.Dir(harness.ModuleDir(t)), "cmd/tidewaiter/testdata/1c3a525/tidewaiter.db.gz"))
	must(t, err)
	defer packed.Close()
	unpacked, err := gzip.NewReader(packed)
	must(t, err)
	database, err := io.ReadAll(unpacked)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(data, "tidewaiter.db"), database, 0o600))
	g := openGuide(t, "tasks/upgrade.md", run, "tidewaiter serve", "exec tidewaiter serve --secure-port 0")
	s := harness.StartServerOn(t, data)
	before := s.Kubectl(t, "get", "images", "-o", "name")
	wantContains(t, "the images of 1c3a525", before, "sha256:0def593270a5dd7bc064e907a487d5ba9e888eb6436632cfe5077e25645faa84")
	g.typed(g.named("tidewaiter backup before.db"))
	s.Terminate(t)

	restore, serve, _ := strings.Cut(g.block("tidewaiter restore"), "exec ")
	g.typed(restore + "cp -r tidewaiter-data/pki older/")
	server := harness.Start(t, harness.Command{Path: "bash", Args: []string{"-euc", "exec " + serve}, Dir: run.dir, Env: run.env})
	at := server.Stdout.AwaitMatch(t, regexp.MustCompile(`is ready at (https://\S+?)[,\s]`))
	if got := g.typed("kubectl --kubeconfig tidewaiter-data/admin.kubeconfig --server " + at[1] + " get images -o name"); got != before {
		t.Errorf("restored are %s, want %s", got, before)
	}
}

// docs/tasks/prune.md: nothing changes without --confirm, a mark can be taken off and an image kept
// for good; then it is deleted and comes back. What the plan for the registry prints deletes there
// what nothing needs, by the real crane, and no more. Each line is typed with flags that count what
// is new and what was marked a moment ago. oc and OpenShift's registry are not here.
func TestPruneTask(t *testing.T) {
	t.Parallel()
	run := newSession(t)
	r, all := run.registry, images.Numbered(t, 2)
	old, now := images.Digest(t, all[0]).String(), images.Digest(t, all[1]).String()
	g := openGuide(t, "tasks/prune.md", run, "sha256:9f…", old, "registry.example.com", r.Host, "tidewaiter prune", "tidewaiter prune --keep-younger-than=0s --keep-tag-revisions=1")
	g.named("ownPodsOnly: true")
	g.write("config.yaml", "ownPodsOnly: true\n")
	s := harness.StartServer(t, "--config", filepath.Join(run.dir, "config.yaml"))
	withServer(t, run, s)
	must(t, os.Symlink(harness.Tool(t, "crane"), filepath.Join(run.bin, "crane")))
	for _, image := range all {
		r.Push(t, "team/app:v1", image)
		s.Import(t, r.Host+"/team/app:v1")
	}
	left := func(want ...string) {
		t.Helper()
		got := strings.Fields(strings.ReplaceAll(s.Kubectl(t, "get", "images", "-o", "name"), "image.image.openshift.io/", ""))
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(want))) {
			t.Errorf("left are %v, want %v", got, want)
		}
	}

	typed := lines(g.block("tidewaiter prune"))
	look, confirm, undo, unmark, keep := typed[0], strings.Replace(typed[1], "--confirm", "--confirm --grace 0s", 1), typed[2], typed[3], typed[4]
	marked := func() bool { return strings.Contains(s.Kubectl(t, "get", "image", old, "-o", "yaml"), "prune-after") }
	for _, step := range []struct {
		line, says string
		marked     bool
	}{
		{look, "mark: 1", false}, {confirm, "mark: 1", true}, {undo, "unmark: 1", false}, {confirm, "mark: 1", true}, {unmark, "annotated", false},
		{keep, "annotated", false}, {confirm, "keep disabled: 1", false},
	} {
		if got := g.typed(step.line); !strings.Contains(got, step.says) || marked() != step.marked {
			t.Errorf("%s\n%smarked %t, want %q", step.line, got, marked(), step.says)
		}
	}
	left(old, now)
	g.typed("kubectl annotate image " + old + " tidewaiter.dev/prune-")
	g.typed(confirm)
	wantContains(t, "the second run", g.typed(confirm), "delete: 1")
	left(now)
	g.typed(strings.NewReplacer("REPOSITORY", r.Host+"/team/app", "DIGEST", old).Replace(g.named("tidewaiter import REPOSITORY@DIGEST")))
	left(old, now)

	for _, line := range lines(g.block("--plan registry")) {
		g.typed(line)
	}
	g.wantFile("delete.sh", "crane delete "+r.Host+"/team/app@"+old)
	g.typed("bash delete.sh")
	at := "crane manifest " + r.Host + "/team/app@"
	if got := g.try(at + old); got.Code == 0 {
		t.Errorf("the registry still has %s", old)
	}
	g.typed(at + now)
}

// openShift has the kinds of OpenShift that the guide names, as a cluster that serves them itself.
const openShift = `{"apiVersion":"v1","kind":"List","items":[
{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"deploymentconfigs.apps.openshift.io"},"spec":{"group":"apps.openshift.io",
"names":{"kind":"DeploymentConfig","plural":"deploymentconfigs"},"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}},
{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"buildconfigs.build.openshift.io"},"spec":{"group":"build.openshift.io",
"names":{"kind":"BuildConfig","plural":"buildconfigs"},"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}},
{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"imagestreams.image.openshift.io","annotations":{"api-approved.kubernetes.io":"unapproved, a test"}},"spec":{"group":"image.openshift.io",
"names":{"kind":"ImageStream","plural":"imagestreams"},"scope":"Namespaced","versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}]}`

// docs/start/openshift.md with a real kube-apiserver that has OpenShift's kinds. A server of its
// own keeps what a DeploymentConfig needs, by the credential that the guide makes; kubectl is typed
// as oc, which has its verbs. Inside the cluster the server leaves the groups that OpenShift has
// alone, and answers in its own.
func TestOpenShiftGuide(t *testing.T) {
	t.Parallel()
	c, run := harness.StartCluster(t), newSession(t)
	c.Apply(t, openShift)
	for _, kind := range []string{"deploymentconfigs.apps.openshift.io", "imagestreams.image.openshift.io"} {
		c.Kubectl(t, "wait", "--for=condition=Established", "crd/"+kind)
	}
	r, image := run.registry, images.Numbered(t, 1)[0]
	digest := images.Digest(t, image).String()
	r.Push(t, "team/app:v1", image)
	must(t, os.Symlink(harness.Tool(t, "kubectl"), filepath.Join(run.bin, "oc")))
	run.env = append(run.env, "KUBECONFIG="+c.Kubeconfig(t, "admin", "admin"))
	openGuide(t, "start/openshift.md", run).run("oc create serviceaccount")
	openGuide(t, "tasks/cluster.md", run).run("kubectl config view")
	openGuide(t, "tasks/cluster.md", run).write("config.yaml", "clusters: [{name: prod, kubeconfig: prod.kubeconfig}]\n")
	c.Apply(t, workloadKind{"apps.openshift.io/v1", "DeploymentConfig", []string{"spec", "template"}, map[string]any{"spec": map[string]any{"replicas": 0}}}.needing(t, r.Host+"/team/app@"+digest))

	s := harness.StartServer(t, "--config", filepath.Join(run.dir, "config.yaml"))
	s.Import(t, r.Host+"/team/app@"+digest)
	harness.Eventually(t, func() error {
		got := harness.Run(t, harness.Command{Path: harness.Binary(t), Args: []string{"prune", "--kubeconfig", s.Kubeconfig, "--keep-younger-than=0s", "--kept", "-o", "json"}})
		if !strings.Contains(strings.Join(strings.Fields(got.Stdout), ""), `"decision":"keep","reason":"needed"`) {
			return fmt.Errorf("%d %s%s", got.Code, got.Stdout, got.Stderr)
		}
		return nil
	})

	inside := &inCluster{cluster: c}
	inside.documented(t, "helm install tidewaiter deploy/chart --namespace tidewaiter --create-namespace --set image.repository=registry.example.com/tidewaiter,image.tag=1.2.3 --set")
	inside.awaitAvailable(t, "v1.tidewaiter.dev")
	inside.eventually(t, "admin", 0, []string{"NAME"}, "get", "clusters.tidewaiter.dev")
	for _, group := range []string{"v1.image.openshift.io", "v1.config.openshift.io"} {
		if got := c.TryKubectl(t, "admin", "get", "apiservice", group, "-o", "jsonpath={.spec.service}"); strings.Contains(got.Stdout, "tidewaiter") {
			t.Errorf("%s leads to %s", group, got.Stdout)
		}
	}
	c.Kubectl(t, "get", "imagestreams.image.openshift.io", "-A") // the cluster's own
}

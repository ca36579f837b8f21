package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// pictures is where the pictures of docs/console.md go; `make console-pictures` writes them.
var pictures = flag.String("pictures", "", "folder to write the pictures of the console's document to")

// demonstration is a running `tidewaiter demo`.
type demonstration struct {
	process              *harness.Process
	url, registry, token string
	kubectl              harness.Command
	env                  []string
	kubeconfig           string
}

func startDemonstration(t *testing.T) *demonstration {
	t.Helper()
	tmp := t.TempDir()
	d := &demonstration{env: []string{"HOME=" + tmp, "TMPDIR=" + tmp, "KUBECONFIG="}}
	d.process = harness.Start(t, harness.Command{Path: harness.Binary(t), Args: []string{"demo"}, Dir: tmp, Env: d.env})
	shown := d.process.Stdout.AwaitMatch(t, regexp.MustCompile(`A registry runs at (\S+), Tidewaiter at (\S+)\.\n`))
	d.registry, d.url = shown[1], shown[2]
	d.kubeconfig = d.process.Stdout.AwaitMatch(t, regexp.MustCompile(`export KUBECONFIG=(\S+)`))[1]
	d.process.Stdout.AwaitMatch(t, regexp.MustCompile(`The console is at (\S+/console/)`))
	d.kubectl = harness.Command{Path: harness.Tool(t, "kubectl"), Dir: tmp, Env: []string{"HOME=" + tmp, "KUBECONFIG=" + d.kubeconfig}}
	for _, args := range [][]string{
		{"create", "serviceaccount", "viewer"}, {"create", "clusterrolebinding", "viewer", "--clusterrole=view", "--serviceaccount=default:viewer"}, {"create", "token", "viewer"},
	} {
		d.kubectl.Args = args
		d.token = strings.TrimSpace(harness.MustRun(t, d.kubectl))
	}
	return d
}

// browser is a Chromium, and what went wrong in it.
type browser struct {
	ctx  context.Context
	base string

	mu       sync.Mutex
	problems []string // refused by the Content-Security-Policy, or failed
	hosts    map[string]bool
}

// startBrowser starts Chromium. Continuous integration installs it; elsewhere a test that needs it
// is skipped, and says so.
func startBrowser(t *testing.T, base string, more ...chromedp.ExecAllocatorOption) *browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("*** SKIPPED: chromium is not here. On Debian: apt-get install chromium")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1280, 800), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("ignore-certificate-errors", true))
	ctx, stopAll := chromedp.NewExecAllocator(t.Context(), append(options, more...)...)
	t.Cleanup(stopAll)
	ctx, stopTab := chromedp.NewContext(ctx)
	t.Cleanup(stopTab)
	b := &browser{ctx: ctx, base: base, hosts: map[string]bool{}}
	chromedp.ListenTarget(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *log.EventEntryAdded:
			if e.Entry.Source == log.SourceSecurity || e.Entry.Level == log.LevelError {
				b.problems = append(b.problems, e.Entry.Text+" "+e.Entry.URL)
			}
		case *network.EventRequestWillBeSent:
			if u, err := url.Parse(e.Request.URL); err == nil && u.Host != "" {
				b.hosts[u.Host] = true
			}
		}
	})
	must(t, chromedp.Run(ctx)) // the browser lives as long as the context of the first
	b.run(t, log.Enable(), network.Enable())
	return b
}

// run has the browser do something. How much a test does in all is not bounded, so that a slow
// machine ends it, too.
func (b *browser) run(t *testing.T, actions ...chromedp.Action) {
	t.Helper()
	ctx, stop := context.WithTimeout(b.ctx, harness.Patience)
	defer stop()
	if err := chromedp.Run(ctx, actions...); err != nil {
		t.Fatal(err)
	}
}

// visit goes to a page of the console and returns its text.
func (b *browser) visit(t *testing.T, path string) (text string) {
	t.Helper()
	b.run(t, chromedp.Navigate(b.base+"/console/"+path), chromedp.WaitReady("main"), chromedp.Evaluate("document.querySelector('main').innerText", &text))
	return text
}

// await visits a page until it has an element: pods and counts are followed, and come a moment
// after what they tell of.
func (b *browser) await(t *testing.T, path, element string) {
	t.Helper()
	harness.Eventually(t, func() error {
		text := b.visit(t, path)
		var there bool
		b.run(t, chromedp.Evaluate(fmt.Sprintf("document.querySelector(%q) !== null", element), &there))
		if !there {
			return fmt.Errorf("%q has no %s:\n%s", path, element, text)
		}
		return nil
	})
}

// click follows a link to a page that has an element.
func (b *browser) click(t *testing.T, link, element string) {
	t.Helper()
	b.run(t, chromedp.Evaluate(fmt.Sprintf("document.querySelector(%q).click()", link), nil), chromedp.WaitReady(element, chromedp.ByQuery))
}

// signIn signs in with a token.
func (b *browser) signIn(t *testing.T, token string) {
	t.Helper()
	b.visit(t, "")
	b.run(t, chromedp.SendKeys("#token", token+"\r", chromedp.ByQuery), chromedp.WaitReady("nav"))
}

// clean fails if a page loaded something from another host, or was refused something.
func (b *browser) clean(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for host := range b.hosts {
		if !strings.HasSuffix(b.base, "//"+host) {
			t.Errorf("a page asks %s", host)
		}
	}
	if len(b.problems) > 0 {
		t.Errorf("the browser complains: %q", b.problems)
	}
}

// Somebody who may only view finds out on the demonstration who signed what, why an image is not
// verified and where it runs, sees pushes, and is signed out.
func TestConsole(t *testing.T) {
	t.Parallel()
	d := startDemonstration(t)
	b := startBrowser(t, d.url)

	if text := b.visit(t, "images"); !strings.Contains(text, "Sign in to Tidewaiter") {
		t.Fatalf("nobody has signed in and sees\n%s", text)
	}
	d.runs(t, "keeper", "lighthouse:v1", false)
	b.signIn(t, d.token)

	b.await(t, "image?ref=lighthouse:v1", `a[href^="/console/running?cluster=local"]`)

	// From the first page, two clicks lead to who signed lighthouse:v1, and which pods run it.
	b.visit(t, "")
	var text string
	b.click(t, `.shares a[href*="verdict=True"]`, ".filters")
	b.run(t, chromedp.Evaluate("document.querySelector('main').innerText", &text))
	if !regexp.MustCompile(`harbour/lighthouse:v1\s+Verified\s+harbour-master`).MatchString(text) {
		t.Errorf("a click from the first page the signer of lighthouse:v1 is not named:\n%s", text)
	}
	b.run(t, chromedp.Evaluate(`[...document.querySelectorAll("td.first a")].find(a => a.textContent.includes("lighthouse") && !a.closest("tr").textContent.includes("index")).click()`, nil), chromedp.WaitReady("#h-where"),
		chromedp.Evaluate("document.querySelector('main').innerText", &text))
	for _, want := range []string{"signed by harbour-master", "1 pod", "keeper", "local / default"} {
		if !strings.Contains(text, want) {
			t.Errorf("two clicks from the first page there is no %q:\n%s", want, text)
		}
	}

	// Two clicks lead to why ferry:v1 is not verified, too.
	b.await(t, "", `.concern a[href="/console/images?verdict=False"]`)
	b.click(t, `.concern a[href="/console/images?verdict=False"]`, ".filters")
	b.click(t, "table.cards tbody a", "#h-where")
	b.run(t, chromedp.Evaluate("document.querySelector('main').innerText", &text))
	for _, want := range []string{"harbour/ferry", "DigestMismatch", "Where it runs", "In no pod", "podman pull"} {
		if !strings.Contains(text, want) {
			t.Errorf("two clicks from the first page there is no %q:\n%s", want, text)
		}
	}

	// A search understands a tag and the beginning of a digest; the keyboard is enough.
	digest := regexp.MustCompile(`@sha256:([0-9a-f]{64})`).FindStringSubmatch(text)[1]
	for _, query := range []string{"ferry:v1", digest[:8]} {
		b.visit(t, "policies")
		var focused string
		// the driver types the slash, too
		b.run(t, chromedp.KeyEvent("/"), chromedp.Evaluate(`document.activeElement.name`, &focused), chromedp.Evaluate(`document.activeElement.value = ""`, nil))
		if focused != "q" {
			t.Errorf("a slash goes to %q", focused)
		}
		b.run(t, chromedp.KeyEvent(query+"\r"), chromedp.WaitReady("#h-where"), chromedp.Evaluate("document.querySelector('main').innerText", &text))
		if !strings.Contains(text, "harbour/ferry") {
			t.Errorf("%q finds\n%s", query, text)
		}
	}

	// A push is seen by a page that is open. How soon depends on the machine, and is only told.
	b.visit(t, "activity")
	b.run(t, chromedp.WaitReady(`#events[sse-connect]`, chromedp.ByQuery))
	crane := harness.Command{Path: harness.Tool(t, "crane"), Env: d.env, Args: []string{"tag", "--insecure", d.registry + "/harbour/buoy:v1", "second"}}
	harness.MustRun(t, crane)
	pushed := time.Now()
	harness.Eventually(t, func() error {
		b.run(t, chromedp.Evaluate(`document.getElementById("events").innerText`, &text))
		if !strings.Contains(text, "harbour/buoy:second") {
			return fmt.Errorf("the push is not shown:\n%s", text)
		}
		return nil
	})
	t.Logf("a push is shown after %s", time.Since(pushed).Round(time.Millisecond))

	// The viewer may not see the queue, and is told which role would allow it.
	if text := b.visit(t, "activity"); !strings.Contains(text, "You may not see the queue") || !strings.Contains(text, "tidewaiter:queue-viewer") {
		t.Errorf("of the queue a viewer is told\n%s", text)
	}

	b.clean(t)

	// Who revokes the credential ends the session.
	d.kubectl.Args = []string{"delete", "serviceaccount", "viewer"}
	harness.MustRun(t, d.kubectl)
	harness.Eventually(t, func() error {
		if text := b.visit(t, "images"); !strings.Contains(text, "You were signed out") {
			return fmt.Errorf("the session goes on:\n%s", text)
		}
		return nil
	})
}

// walk starts at the first page and clicks links and buttons, each by an XPath, at most three. It
// returns the text of the page to which they lead. fill is done before the last click.
func (b *browser) walk(t *testing.T, fill []chromedp.Action, clicks ...string) (text string) {
	t.Helper()
	if len(clicks) > 3 {
		t.Fatalf("it takes %d clicks", len(clicks))
	}
	b.visit(t, "")
	for i, one := range clicks {
		if i == len(clicks)-1 {
			b.run(t, fill...)
		}
		ctx, stop := context.WithTimeout(b.ctx, harness.Patience)
		_, err := chromedp.RunResponse(ctx, chromedp.Click(one, chromedp.BySearch))
		stop()
		if err != nil {
			t.Fatalf("click %d, %s: %v", i+1, one, err)
		}
	}
	b.run(t, chromedp.WaitReady("main"), chromedp.Evaluate("document.querySelector('main').innerText", &text))
	return text
}

// log4Shell is the advisory GHSA-jfh8-c2jp-5v3q in the OSV format, as far as it matters here.
const log4Shell = `{"id": "GHSA-jfh8-c2jp-5v3q", "aliases": ["CVE-2021-44228"], "affected": [{"package": {"ecosystem": "Maven", "name": "org.apache.logging.log4j:log4j-core"},
	"ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "2.0-beta9"}, {"fixed": "2.15.0"}]}]}]}`

// rebuild moves a tag of the demonstration to a new image that has an SBOM.
func (d *demonstration) rebuild(t *testing.T, tag string) {
	t.Helper()
	ref, err := name.NewTag(d.registry+"/harbour/"+tag, name.Insecure)
	must(t, err)
	image, err := remote.Image(ref)
	must(t, err)
	image, err = mutate.Config(image, v1.Config{Labels: map[string]string{"build": "2"}})
	must(t, err)
	must(t, remote.Write(ref, image))
	subject, err := partial.Descriptor(image)
	must(t, err)
	list, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), "application/vnd.cyclonedx+json"), static.NewLayer([]byte(
		`{"bomFormat": "CycloneDX", "specVersion": "1.5", "components": [{"type": "library", "name": "log4j-core", "group": "org.apache.logging.log4j", "version": "2.14.1", "purl": "pkg:maven/org.apache.logging.log4j/log4j-core@2.14.1"}]}`), "application/vnd.cyclonedx+json"))
	must(t, err)
	sbom := mutate.Subject(list, *subject).(v1.Image)
	digest, err := sbom.Digest()
	must(t, err)
	must(t, remote.Write(ref.Context().Digest(digest.String()), sbom))
}

// Five questions of an administrator are answered within three clicks from the first page, without
// an address that is typed, and by one command each: which workloads fail and why, who moved this
// tag, is the hole of this advisory running, what changed since yesterday, and may I delete this.
func TestConsoleAnswersWithinThreeClicks(t *testing.T) {
	t.Parallel()
	d := startDemonstration(t)
	d.runs(t, "ferry-0", "ferry:v1", true)
	d.runs(t, "buoy-0", "buoy:v1", true)
	before := d.digest(t, "buoy:v1")
	d.rebuild(t, "buoy:v1")
	d.runs(t, "engine-0", "buoy:v1", true)
	b := startBrowser(t, d.url)
	d.kubectl.Args = []string{"config", "view", "--raw", "-o", "jsonpath={.users[0].user.token}"}
	b.signIn(t, strings.TrimSpace(harness.MustRun(t, d.kubectl)))
	b.await(t, "", `.concern a[href="/console/running?verified=False"]`)
	advisory := filepath.Join(t.TempDir(), "advisory.json")
	must(t, os.WriteFile(advisory, []byte(log4Shell), 0o600))

	for _, task := range []struct {
		question string
		fill     []chromedp.Action
		clicks   []string
		command  []string
		code     int
		want     []string // on the page, and what the command prints
	}{
		{"which workloads fail, and why", nil, []string{`//a[@href="/console/running?verified=False"]`, `//tr[.//a[text()="ferry-0"]]//td[@data-label="Image"]/a`}, []string{"pods", "--verified", "False", "-o", "wide"}, 0, []string{"harbour/ferry", "DigestMismatch"}},
		{"who moved this tag", nil, []string{`//nav//a[@href="/console/repositories"]`, `//main//a[contains(., "harbour/buoy")]`}, []string{"history", d.registry + "/harbour/buoy:v1"}, 0, []string{before[len("sha256:"):][:12], d.digest(t, "buoy:v1")[len("sha256:"):][:12], "webhook"}},
		{"is the hole of this advisory running", []chromedp.Action{chromedp.SetValue("#document", log4Shell, chromedp.ByQuery)}, []string{`//main//a[@href="/console/impact"]`, `//form[@class="document"]//button`}, []string{"impact", "--advisory", advisory}, 3, []string{"harbour/buoy:v1", "log4j-core", "2.15.0"}},
		{"what changed since yesterday", nil, []string{`//main//a[@href="/console/changes"]`}, []string{"changes"}, 0, []string{"Pod/ferry-0 runs", "Pod/buoy-0 runs another image than its tag"}},
		{"may I delete this", nil, []string{`//nav//a[@href="/console/images"]`, `//td[contains(@class, "first")]//a[contains(., "harbour/ferry")]`, `//a[@class="may-delete"]`}, []string{"impact", "--delete", d.registry + "/harbour/ferry:v1"}, 3, []string{"harbour/ferry:v1", "1 pod run"}},
	} {
		harness.Eventually(t, func() error { // records and SBOMs come a moment later
			page := b.walk(t, task.fill, task.clicks...)
			r := harness.Run(t, harness.Command{Path: harness.Binary(t), Args: task.command, Env: d.kubectl.Env})
			for _, want := range task.want {
				if !strings.Contains(page, want) {
					return fmt.Errorf("%s: %d clicks lead to a page without %q:\n%s", task.question, len(task.clicks), want, page)
				}
				if r.Code != task.code || !strings.Contains(r.Stdout, want) {
					return fmt.Errorf("%s: %q exits %d and prints no %q:\n%s%s", task.question, task.command, r.Code, want, r.Stdout, r.Stderr)
				}
			}
			return nil
		})
		t.Logf("%s: %d clicks, or tidewaiter %s", task.question, len(task.clicks), task.command[0])
	}
	b.clean(t)
}

// digest is what a tag of the demonstration leads to.
func (d *demonstration) digest(t *testing.T, tag string) string {
	t.Helper()
	return strings.TrimSpace(harness.MustRun(t, harness.Command{Path: harness.Tool(t, "crane"), Env: d.env, Args: []string{"digest", "--insecure", d.registry + "/harbour/" + tag}}))
}

// runs has a pod of the server's own API run what a tag of the demonstration leads to, which the
// pod names by the tag, or by its digest.
func (d *demonstration) runs(t *testing.T, pod, tag string, byTag bool) {
	t.Helper()
	repository, _, _ := strings.Cut(tag, ":")
	image := d.registry + "/harbour/" + repository + "@" + d.digest(t, tag)
	named := image
	if byTag {
		named = d.registry + "/harbour/" + tag
	}
	d.kubectl.Args = []string{"create", "-f", "-"}
	d.kubectl.Stdin = fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": "default"}, "spec": {"containers": [{"name": "main", "image": %q}]}}`, pod, named)
	harness.MustRun(t, d.kubectl)
	d.kubectl.Stdin = ""
	d.kubectl.Args = []string{"patch", "pod", pod, "--subresource=status", "--type=merge", "-p", fmt.Sprintf(`{"status": {"containerStatuses": [{"name": "main", "image": %q, "imageID": %q}]}}`, named, image)}
	harness.MustRun(t, d.kubectl)
}

// What strangers write into images is text in a browser: markup, marks that turn a line around, and
// what steers a terminal. Two tags are compared, whose differences are such texts.
func TestConsoleShowsHostileTextsAsText(t *testing.T) {
	t.Parallel()
	const markup = `<script>document.title="owned"</script><img src=x onerror='document.title="owned"'>`
	const steering = "\u202egnp.exe\x1b[2J\u009b31m"
	d := startDemonstration(t)
	to := d.registry + "/harbour/wreck:v1"
	// crane reads all of these flags but --env as CSV
	field := func(text string) string { return `"` + strings.ReplaceAll(text, `"`, `""`) + `"` }
	harness.MustRun(t, harness.Command{Path: harness.Tool(t, "crane"), Env: d.env, Args: []string{
		"mutate", "--insecure", d.registry + "/harbour/buoy:v1", "--label", field("org.opencontainers.image.title=" + markup + steering), "--label", field(markup + "=1"), "--env", "SHELL=" + markup + steering, "--user", markup,
		"--entrypoint", field(markup), "--cmd", field(steering), "--workdir", "/" + markup, "-t", to,
	}})
	b := startBrowser(t, d.url)
	b.signIn(t, d.token)
	var text string
	harness.Eventually(t, func() error {
		if text = b.visit(t, "image?ref=wreck:v1"); !strings.Contains(text, "SHELL=") {
			return fmt.Errorf("the image is not known yet:\n%s", text)
		}
		return nil
	})
	query := url.QueryEscape(markup + steering)
	for path, shows := range map[string]bool{
		"image?ref=wreck:v1": true, "compare?a=buoy:v1&b=wreck:v1": true, "images?q=" + query: true, "images?signer=" + query: false, "running?pod=" + query: false,
		"repositories?q=" + query: true, "repository?name=" + query: true, "policies?try=" + query: true, "activity": false, "": false,
	} {
		var title string
		var elements int
		b.run(t, chromedp.Navigate(b.base+"/console/"+path), chromedp.WaitReady("body"), chromedp.Evaluate("document.body.innerText", &text), chromedp.Title(&title),
			chromedp.Evaluate(`document.querySelectorAll("main img, main script, body > script").length`, &elements))
		if shows && !strings.Contains(text, "<script>document.title") {
			t.Errorf("%q does not show the text:\n%s", path, text)
		}
		if title == "owned" || elements > 0 || strings.ContainsAny(text, "\u202e\x1b\u009b") {
			t.Errorf("%q has the title %q, %d elements of a stranger, and the text %q", path, title, elements, text)
		}
	}
	text = b.visit(t, "compare?a=buoy:v1&b=wreck:v1")
	for _, want := range []string{"User", "Entrypoint", "Environment SHELL", "Label org.opencontainers.image.title", "both", "not set"} {
		if !strings.Contains(text, want) {
			t.Errorf("the comparison lacks %q:\n%s", want, text)
		}
	}
	b.clean(t)
}

// A push that was given up is tried again by who may do that, from the page; who may only look sees
// no button, and is refused who asks without one.
func TestConsoleRetriesWithTheRight(t *testing.T) {
	t.Parallel()
	d := startDemonstration(t)
	ref, err := name.ParseReference(d.registry+"/harbour/deep:v1", name.Insecure)
	must(t, err)
	must(t, remote.WriteIndex(ref, nested(4))) // nobody imports that
	d.kubectl.Args = []string{"create", "clusterrolebinding", "looks", "--clusterrole=tidewaiter:queue-viewer", "--serviceaccount=default:viewer"}
	harness.MustRun(t, d.kubectl)
	b := startBrowser(t, d.url)
	b.signIn(t, d.token)
	var text string
	harness.Eventually(t, func() error {
		if text = b.visit(t, "activity"); !strings.Contains(text, "given up") {
			return fmt.Errorf("the push was not given up:\n%s", text)
		}
		return nil
	})
	if strings.Contains(text, "Retry") || !strings.Contains(text, "nested more than 3 deep") {
		t.Errorf("who may only look sees\n%s", text)
	}
	var code int
	b.run(t, chromedp.Evaluate(`fetch("/console/queue", {method: "POST", body: new URLSearchParams({do: "retry", id: "1"})}).then(async r => (document.title = await r.text(), r.status))`, &code, awaitPromise), chromedp.Title(&text))
	if code != http.StatusForbidden || !strings.Contains(text, "tidewaiter:queue-operator") {
		t.Errorf("who asks without the right is answered %d %s", code, text)
	}
	b.mu.Lock()
	b.problems = nil // the browser has told of the 403
	b.mu.Unlock()

	d.kubectl.Args = []string{"create", "clusterrolebinding", "operates", "--clusterrole=tidewaiter:queue-operator", "--serviceaccount=default:viewer"}
	harness.MustRun(t, d.kubectl)
	b.visit(t, "activity")
	b.run(t, chromedp.Click(`//button[text()="Retry"]`), chromedp.WaitReady(".done", chromedp.ByQuery), chromedp.Text(".done", &text, chromedp.ByQuery))
	if !strings.Contains(text, "tried again") {
		t.Errorf("after a retry the page says %q", text)
	}
	harness.Eventually(t, func() error {
		if text = b.visit(t, "activity"); !strings.Contains(text, "given up") {
			return fmt.Errorf("it was not tried again:\n%s", text)
		}
		return nil
	})
	for range 2 { // the tag and the digest have a job each
		if strings.Contains(b.visit(t, "activity"), "Drop") {
			b.run(t, chromedp.Click(`//button[text()="Drop"]`), chromedp.WaitReady(".done", chromedp.ByQuery))
		}
	}
	if text := b.visit(t, "activity"); !strings.Contains(text, "Nothing waits") {
		t.Errorf("after it was dropped the queue is\n%s", text)
	}
	b.clean(t)
}

// The keyboard alone leads everywhere, and shows where it is.
func TestConsoleByKeyboard(t *testing.T) {
	t.Parallel()
	d := startDemonstration(t)
	b := startBrowser(t, d.url)
	b.visit(t, "") // the field for the token has the focus
	b.run(t, chromedp.KeyEvent(d.token), chromedp.KeyEvent(kb.Enter), chromedp.WaitReady("nav"))
	// reach presses Tab until an element has the focus. Each that has it on the way can be seen and
	// shows it.
	reach := func(selector string) {
		t.Helper()
		for range 120 {
			var at struct {
				There, Seen bool
				What        string
			}
			b.run(t, chromedp.KeyEvent(kb.Tab), chromedp.Evaluate(fmt.Sprintf(`(() => {
				const e = document.activeElement, box = e.getBoundingClientRect(), style = getComputedStyle(e);
				return {There: e.matches(%q), Seen: e === document.body || e.matches(":focus-visible") && style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2 && box.width > 0 && box.bottom > 0, What: e.outerHTML.slice(0, 200)};
			})()`, selector), &at))
			if !at.Seen {
				t.Errorf("the focus cannot be seen at %s", at.What)
			}
			if at.There {
				return
			}
		}
		t.Fatalf("the keyboard does not reach %s", selector)
	}
	reach(".skip")
	b.run(t, chromedp.KeyEvent(kb.Enter))
	reach("main a, main summary") // past the navigation
	b.visit(t, "")
	reach(`nav a[href="/console/images"]`)
	b.run(t, chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(".filters", chromedp.ByQuery))
	reach(`select[name="verdict"]`)
	// Not verified
	b.run(t, chromedp.KeyEvent("n"), chromedp.WaitReady(`select[name="verdict"] option[value="False"][selected]`, chromedp.ByQuery))
	reach(`td.first a`)
	var text string
	b.run(t, chromedp.KeyEvent(kb.Enter), chromedp.WaitReady("#h-where"), chromedp.Evaluate("document.querySelector('main').innerText", &text))
	if !strings.Contains(text, "harbour/ferry") {
		t.Errorf("the keyboard leads to\n%s", text)
	}
	reach(`.who button.signout, .who form[action="/console/sign-out"] button`)
	b.run(t, chromedp.KeyEvent(kb.Enter), chromedp.WaitReady("#token"))
	b.clean(t)
}

// A person signs in with a provider of OpenID Connect, with PKCE and no secret, and comes back to
// the page that was asked for, although the provider is another site.
func TestConsoleSignInWithAProvider(t *testing.T) {
	t.Parallel()
	port := freePort(t)
	base := "https://localhost:" + port // the provider is at 127.0.0.1, which is another site
	p := startProviderFor(t, base+"/console/sign-in/callback")
	s := harness.StartServer(t, "--secure-port", port, "--oidc-issuer-url", p.issuer, "--oidc-client-id", "kubectl", "--oidc-ca-file", p.caFile, "--oidc-username-prefix", "oidc:")
	s.Kubectl(t, "create", "clusterrolebinding", "viewer", "--clusterrole=view", "--user=oidc:id1")
	b := startBrowser(t, base)
	for _, scripts := range []bool{true, false} {
		b.run(t, emulation.SetScriptExecutionDisabled(!scripts))
		b.visit(t, "policies")
		b.run(t, chromedp.Click(".providers a", chromedp.ByQuery), chromedp.WaitReady(`input[name="username"]`, chromedp.ByQuery),
			chromedp.SendKeys(`input[name="username"]`, "test-user@127.0.0.1", chromedp.ByQuery), chromedp.SendKeys(`input[name="password"]`, "verysecure\r", chromedp.ByQuery), chromedp.WaitReady("nav", chromedp.ByQuery))
		var at, who string
		b.run(t, chromedp.Location(&at), chromedp.Text(".who .name", &who, chromedp.ByQuery))
		if at != base+"/console/policies" || who != "oidc:id1" {
			t.Errorf("with scripts %v: %q is at %s", scripts, who, at)
		}
		b.run(t, chromedp.Click(`//button[text()="Sign out"]`), chromedp.WaitReady("#token", chromedp.ByQuery))
	}
}

// A browser that has a client certificate which the API takes is signed in without a session.
func TestConsoleWithAClientCertificate(t *testing.T) {
	t.Parallel()
	for _, tool := range []string{"openssl", "certutil", "pk12util"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("*** SKIPPED: %s is not here. On Debian: apt-get install openssl libnss3-tools", tool)
		}
	}
	s := harness.StartServer(t)
	s.Kubectl(t, "create", "clusterrolebinding", "viewer", "--clusterrole=view", "--user=pilot")
	config := readAuthority(t, s.DataDir).client(t, &rest.Config{}, "pilot")
	home := t.TempDir()
	in := func(name string) string { return filepath.Join(home, name) }
	store := "sql:" + in(".pki/nssdb")
	must(t, os.MkdirAll(in(".pki/nssdb"), 0o700))
	must(t, os.MkdirAll(in("profile/Default"), 0o700))
	must(t, os.WriteFile(in("client.crt"), config.CertData, 0o600))
	must(t, os.WriteFile(in("client.key"), config.KeyData, 0o600))
	// The browser takes the certificate without asking, as it does after the person has chosen it.
	must(t, os.WriteFile(in("profile/Default/Preferences"), fmt.Appendf(nil, `{"profile": {"content_settings": {"exceptions": {"auto_select_certificate": {"%s,*": {"setting": {"filters": [{}]}}}}}}}`, s.URL), 0o600))
	for _, command := range [][]string{
		{"openssl", "pkcs12", "-export", "-in", in("client.crt"), "-inkey", in("client.key"), "-out", in("client.p12"), "-passout", "pass:"},
		{"certutil", "-N", "-d", store, "--empty-password"}, {"pk12util", "-i", in("client.p12"), "-d", store, "-W", ""},
	} {
		harness.MustRun(t, harness.Command{Path: command[0], Args: command[1:], Dir: home, Env: []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}})
	}
	b := startBrowser(t, s.URL, chromedp.UserDataDir(in("profile")), chromedp.Env("HOME="+home))
	if text := b.visit(t, ""); !strings.Contains(text, "Attention") {
		t.Errorf("with a certificate there is\n%s", text)
	}
	var who string
	b.run(t, chromedp.Text(".who .name", &who, chromedp.ByQuery))
	if who != "pilot" {
		t.Errorf("it signs in %q", who)
	}
	b.clean(t)
}

// Everything that can be read without scripts can be read and signed in to without them.
func TestConsoleWithoutScripts(t *testing.T) {
	t.Parallel()
	d := startDemonstration(t)
	b := startBrowser(t, d.url)
	b.run(t, emulation.SetScriptExecutionDisabled(true))
	b.signIn(t, d.token)
	b.run(t, chromedp.SetValue(`input[name="q"]`, "lighthouse:v1", chromedp.ByQuery), chromedp.Submit(".search", chromedp.ByQuery), chromedp.WaitReady("#h-where"))
	b.run(t, chromedp.Click(`//button[text()="Sign out"]`), chromedp.WaitReady("#token"))
	if text := b.visit(t, "images"); !strings.Contains(text, "Sign in") {
		t.Errorf("after signing out there is\n%s", text)
	}
}

// tidewaiter console opens the console without a token, a warning or a certificate, for one
// browser.
func TestConsoleCommand(t *testing.T) {
	t.Parallel()
	d := startDemonstration(t)
	p := harness.Start(t, harness.Command{Path: harness.Binary(t), Args: []string{"console", "--kubeconfig", d.kubeconfig, "--open=false"}, Env: d.env})
	address := p.Stdout.AwaitMatch(t, regexp.MustCompile(`http://[a-z2-7]+\.localhost:\d+/\?code=\S+`))[0]
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	b := startBrowser(t, "http://"+u.Host)
	var text string
	b.run(t, chromedp.Navigate(address), chromedp.WaitReady("nav"), chromedp.Evaluate("document.body.innerText", &text))
	if !strings.Contains(text, "tidewaiter-admin") || !strings.Contains(text, "Attention") {
		t.Errorf("it opens\n%s", text)
	}
	b.run(t, chromedp.Navigate("http://"+u.Host+"/console/policies"), chromedp.WaitReady("#sweep"), chromedp.Click(`//button[text()="Judge all images again"]`),
		chromedp.WaitReady("#sweep:target", chromedp.ByQuery)) // of the next page: the address of this one does not end in #sweep
	b.clean(t)
	b.run(t, network.ClearBrowserCookies(), chromedp.Navigate(address), chromedp.Evaluate("document.body.innerText", &text))
	if !strings.Contains(text, "works once") {
		t.Errorf("the address works again:\n%s", text)
	}
}

// No page has a serious fault for people who need it read aloud, enlarged or by keyboard, by
// axe-core's rules, light or dark.
func TestConsoleIsAccessible(t *testing.T) {
	t.Parallel()
	axe, err := os.ReadFile(filepath.Join(harness.ModuleDir(t), ".tools", "axe", "axe.min.js"))
	if err != nil {
		t.Fatalf("%v; fetch it with:  go run -C e2e ./tools axe", err)
	}
	d := startDemonstration(t)
	b := startBrowser(t, d.url)
	check := func(path, theme string) {
		b.visit(t, path)
		var found string
		b.run(t, page.SetBypassCSP(true), chromedp.Evaluate(string(axe)+";0", nil),
			chromedp.Evaluate(`axe.run().then(r => JSON.stringify(r.violations.filter(v => v.impact === "serious" || v.impact === "critical").map(v => v.id + ": " + v.nodes.map(n => n.target).join(", "))))`, &found, awaitPromise))
		var violations []string
		if err := json.Unmarshal([]byte(found), &violations); err != nil {
			t.Fatal(err)
		}
		if len(violations) > 0 {
			t.Errorf("%q, %s: %q", path, theme, violations)
		}
		for _, width := range []int64{360, 1280, 1920} { // Reflow, 1.4.10 of WCAG
			var wide bool
			b.run(t, emulation.SetDeviceMetricsOverride(width, 800, 1, false), chromedp.Evaluate(`document.documentElement.scrollWidth > document.documentElement.clientWidth`, &wide))
			if wide {
				t.Errorf("%q, %s: the page is wider than a window of %d pixels", path, theme, width)
			}
		}
	}
	d.runs(t, "keeper", "lighthouse:v1", true)
	check("sign-in", "light")
	b.signIn(t, d.token)
	for _, path := range []string{"", "policies", "activity"} {
		// who may only view is told what would let them see more
		check(path, "light")
	}
	b.run(t, network.ClearBrowserCookies())
	d.kubectl.Args = []string{"config", "view", "--raw", "-o", "jsonpath={.users[0].user.token}"}
	b.signIn(t, strings.TrimSpace(harness.MustRun(t, d.kubectl)))
	for _, theme := range []string{"light", "dark"} {
		b.theme(t, theme)
		for _, path := range []string{"compare?a=" + d.digest(t, "ferry:v1") + "&b=" + d.digest(t, "buoy:v1"), "", "images", "images?verdict=False&sort=size", "images?signer=nobody", "images?q=nothing", "images?q=ferr", "impact", "impact?package=openssl", "no-such-page", "image?ref=ferry:v1", "image?ref=lighthouse:v1", "repositories", "repository?name=" + url.QueryEscape(d.registry+"/harbour/ferry"), "compare?a=ferry:v1&b=buoy:v1", "running", "policies?try=ferry:v1", "activity", "changes"} {
			check(path, theme)
		}
	}
}

// Where scripts run, the search box finds while one types, and the keyboard reaches what it finds.
func TestConsoleFindsAsOneTypes(t *testing.T) {
	t.Parallel()
	d := startDemonstration(t)
	b := startBrowser(t, d.url)
	b.signIn(t, d.token)
	b.visit(t, "policies")
	found := func(want string) {
		t.Helper()
		b.run(t, chromedp.PollFunction(`(want) => document.getElementById("typed").innerText.includes(want)`, nil, chromedp.WithPollingArgs(want)))
	}
	b.run(t, chromedp.Focus(".search input", chromedp.ByQuery), chromedp.KeyEvent("light"))
	found("harbour/lighthouse")
	b.run(t, chromedp.KeyEvent("x"))
	found("All that is found of “lightx”")
	b.run(t, chromedp.KeyEvent(kb.Backspace))
	found("harbour/lighthouse")
	b.run(t, chromedp.KeyEvent(kb.Escape))
	var text string
	if b.run(t, chromedp.Evaluate(`document.getElementById("typed").innerText`, &text)); text != "" {
		t.Errorf("Escape leaves %q", text)
	}
	b.run(t, chromedp.KeyEvent("h"))
	found("harbour/lighthouse")
	b.run(t, chromedp.KeyEvent(kb.ArrowDown), chromedp.KeyEvent(kb.Enter), chromedp.WaitReady("h1", chromedp.ByQuery))
	b.run(t, chromedp.PollFunction(`() => document.querySelector("h1").innerText.includes("harbour/lighthouse")`, nil))
	if b.problems != nil {
		t.Errorf("the browser says %q", b.problems)
	}
}

// Where scripts run, filters and orders take the place of what the page showed, without another
// page: the focus and the address stay right, and the way back is one step.
func TestConsoleFiltersInPlace(t *testing.T) {
	t.Parallel()
	d := startDemonstration(t)
	b := startBrowser(t, d.url)
	b.signIn(t, d.token)
	b.visit(t, "images")
	var state struct {
		Same             bool
		At, Focus, Title string
	}
	is := func(what, at, focus, rows string) {
		t.Helper()
		b.run(t, chromedp.PollFunction(`(at, rows) => location.pathname + location.search === at && document.querySelector("#main").innerText.includes(rows)`, nil, chromedp.WithPollingArgs(at, rows)),
			chromedp.Evaluate(`({Same: window.stays === 1, At: location.pathname + location.search, Focus: document.activeElement.id, Title: document.title})`, &state))
		if !state.Same || state.Focus != focus {
			t.Errorf("%s: %+v, want the focus at %q", what, state, focus)
		}
	}
	b.run(t, chromedp.Evaluate(`window.stays = 1`, nil), chromedp.Focus("#f-verdict", chromedp.ByQuery), chromedp.KeyEvent("n"))
	is("a verdict is chosen", "/console/images?verdict=False&used=&sort=&architecture=&artifact=&repository=&signer=&cluster=&layer=&package=", "f-verdict", "harbour/ferry")
	ctx, stop := context.WithTimeout(b.ctx, harness.Patience)
	defer stop()
	if _, err := chromedp.RunResponse(ctx, chromedp.Evaluate(`history.back()`, nil)); err != nil {
		t.Fatalf("the way back: %v", err)
	}
	harness.Eventually(t, func() error { // the page may be on its way
		var here string
		if err := chromedp.Run(b.ctx, chromedp.Evaluate(`location.pathname + location.search + " " + document.querySelector("#main")?.innerText`, &here)); err != nil {
			return err
		}
		if !strings.HasPrefix(here, "/console/images ") || !strings.Contains(here, "harbour/lighthouse") {
			return fmt.Errorf("the way back leads to %s", here)
		}
		return nil
	})
	b.clean(t)
}

// A laptop shows 25 images without scrolling, in a window of 1366 × 768 and in one of 1280 × 800,
// and each row has all that it has in a larger window, but for the digest.
func TestConsoleShowsManyRows(t *testing.T) {
	t.Parallel()
	cluster := harness.StartServer(t)
	runPods(t, cluster, 30)
	config := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "clusters:\n- {name: prod, kubeconfig: %s, importRunning: false}\n", cluster.Kubeconfig), 0o600))
	s := harness.StartServer(t, "--config", config)
	fill(t, s, 600) // more than are sorted together: the page says of when the order is
	b := startBrowser(t, s.URL)
	b.signIn(t, strings.TrimSpace(s.Kubectl(t, "config", "view", "--raw", "-o", "jsonpath={.users[0].user.token}")))
	harness.Eventually(t, func() error {
		if text := b.visit(t, "images"); !strings.Contains(text, "The first 100 of all, counted") || strings.Contains(text, "is unknown") {
			return fmt.Errorf("the order is not known:\n%s", text)
		}
		return nil
	})
	for _, window := range [][2]int64{{1366, 768}, {1280, 800}} {
		b.run(t, emulation.SetDeviceMetricsOverride(window[0], window[1], 1, false))
		b.visit(t, "images")
		var seen struct {
			Rows, Cells int
			Wide        bool
		}
		b.run(t, chromedp.Evaluate(`({
			Rows: [...document.querySelectorAll(".rows tbody tr")].filter(r => r.getBoundingClientRect().bottom <= innerHeight).length,
			Cells: [...document.querySelectorAll(".rows tbody tr:first-child td")].filter(c => c.offsetParent !== null).length,
			Wide: document.documentElement.scrollWidth > innerWidth})`, &seen))
		if seen.Rows < 25 || seen.Cells < 6 || seen.Wide {
			t.Errorf("a window of %d × %d has %+v, want 25 rows of 6 cells", window[0], window[1], seen)
		}
		t.Logf("%d × %d: %d rows", window[0], window[1], seen.Rows)
	}
	b.clean(t)
}

// The page of an index draws which layers its platforms share with other repositories, and the
// keyboard leads from there to the images that have them.
func TestConsoleDrawsSharedLayers(t *testing.T) {
	t.Parallel()
	d := startDemonstration(t)
	d.share(t)
	b := startBrowser(t, d.url)
	b.signIn(t, d.token)
	b.await(t, "image?ref=lighthouse:v1", ".picture .other")
	var boxes struct{ Index, Platform, Shared, Own, Other int }
	b.run(t, chromedp.Evaluate(`((n) => ({Index: n(".index"), Platform: n(".platform"), Shared: n(".layers.shared"), Own: n(".layers:not(.shared)"), Other: n(".other")}))(c => document.querySelectorAll(".picture " + c).length)`, &boxes))
	if boxes.Index != 1 || boxes.Platform != 2 || boxes.Shared != 1 || boxes.Own != 1 || boxes.Other != 1 {
		t.Errorf("the picture has %+v", boxes)
	}
	var text string
	b.run(t, chromedp.Evaluate(`document.querySelector(".picture a:has(.layers.shared)").focus()`, nil), chromedp.KeyEvent(kb.Enter), chromedp.WaitReady(".rows", chromedp.ByQuery), chromedp.Evaluate("document.querySelector('main').innerText", &text))
	for _, want := range []string{"harbour/lighthouse", "harbour/lamp"} {
		if !strings.Contains(text, want) {
			t.Errorf("the layers lead to no %s:\n%s", want, text)
		}
	}
	b.clean(t)
}

// share pushes an image of another repository that has the layers of a platform of lighthouse:v1.
func (d *demonstration) share(t *testing.T) {
	t.Helper()
	harness.MustRun(t, harness.Command{Path: harness.Tool(t, "crane"), Env: d.env, Args: []string{"mutate", "--insecure", "--platform", "linux/amd64", d.registry + "/harbour/lighthouse:v1", "--label", "colour=white", "-t", d.registry + "/harbour/lamp:v1"}})
}

// Pictures of the console and of a terminal for the documents, of a demonstration.
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("for documents: make console-pictures")
	}
	must(t, os.MkdirAll(*pictures, 0o755))
	d := startDemonstration(t)
	for pod, tag := range map[string]string{"keeper-0": "lighthouse:v1", "ferry-0": "ferry:v1", "buoy-0": "buoy:v1"} {
		d.runs(t, pod, tag, true)
	}
	b := startBrowser(t, d.url)
	save := func(name string, take func(*[]byte) chromedp.Action) {
		var png []byte
		b.run(t, take(&png))
		must(t, os.WriteFile(filepath.Join(*pictures, name+".png"), png, 0o644))
	}
	window := func(png *[]byte) chromedp.Action { return chromedp.CaptureScreenshot(png) }
	d.kubectl.Args = []string{"config", "view", "--raw", "-o", "jsonpath={.users[0].user.token}"}
	b.signIn(t, strings.TrimSpace(harness.MustRun(t, d.kubectl)))
	harness.Eventually(t, func() error { // what runs has been counted
		if text := b.visit(t, ""); !strings.Contains(text, "\n2 workloads run images that fail") {
			return fmt.Errorf("the first page is\n%s", text)
		}
		return nil
	})
	for _, p := range []struct{ path, theme, name string }{{"image?ref=ferry:v1", "light", "console-image"}, {"", "light", "console-attention"}, {"images", "dark", "console-images-dark"}} {
		b.theme(t, p.theme)
		b.visit(t, p.path)
		save(p.name, window)
	}
	file := filepath.Join(t.TempDir(), "terminal.html")
	must(t, os.WriteFile(file, []byte(terminal(d.session(t,
		[]string{"kubectl", "get", "images"}, []string{"tidewaiter", "images", "-A"}, []string{"tidewaiter", "explain", "DigestMismatch"},
	))), 0o600))
	b.run(t, chromedp.Navigate("file://"+file))
	save("terminal", func(png *[]byte) chromedp.Action { return chromedp.Screenshot("#terminal", png, chromedp.ByQuery) })
}

// session is what a terminal shows of commands of kubectl and tidewaiter, and of their output.
func (d *demonstration) session(t *testing.T, commands ...[]string) (shown string) {
	t.Helper()
	for _, words := range commands {
		path := harness.Binary(t)
		if words[0] == "kubectl" {
			path = d.kubectl.Path
		}
		r := harness.Run(t, harness.Command{Path: path, Args: words[1:], Env: d.kubectl.Env})
		shown += "$ " + strings.Join(words, " ") + "\n" + r.Stderr + r.Stdout + "\n"
	}
	return strings.TrimSpace(shown)
}

// terminal is a page that looks like a terminal.
func terminal(session string) string {
	return `<!doctype html><meta charset="utf-8"><body style="margin: 0"><pre id="terminal" style="display: inline-block; margin: 0; padding: 20px 24px; background: #10181f; color: #d7e0e7; font: 14px/1.5 'DejaVu Sans Mono', monospace; border-radius: 10px">` + html.EscapeString(session) + `</pre>`
}

// theme chooses the theme of the console.
func (b *browser) theme(t *testing.T, theme string) {
	t.Helper()
	b.visit(t, "")
	b.run(t, chromedp.Evaluate(fmt.Sprintf(`fetch("/console/theme", {method: "POST", body: new URLSearchParams({theme: %q})}).then(r => r.ok)`, theme), nil, awaitPromise))
}

// tour is where TestConsoleTour writes pictures of every page, and tourImages is how many images
// the fullest server has; `make console-tour` looks at them so.
var (
	tour       = flag.String("tour", "", "folder to write pictures of every page of the console to: narrow and wide, light and dark, empty and full")
	tourImages = flag.Int("tour-images", 2000, "images of the fullest server in these pictures")
)

// tourLooks are the windows in which the tour looks at a page: kinds of a name, by width and theme.
var tourLooks = []struct {
	kind, theme string
	width       int64
}{
	{"narrow", "light", 360}, {"narrow-dark", "dark", 360}, {"light", "light", 1280}, {"dark", "dark", 1280}, {"wide", "light", 1920}, {"wide-dark", "dark", 1920},
}

// Every page, as a designer looks at it.
func TestConsoleTour(t *testing.T) {
	if *tour == "" {
		t.Skip("for people: make console-tour")
	}
	d := startDemonstration(t)
	for pod, tag := range map[string]string{"keeper-0": "lighthouse:v1", "ferry-7d9c5b8f4-x2x9k": "ferry:v1", "buoy-0": "buoy:v1"} {
		d.runs(t, pod, tag, true)
	}
	harness.MustRun(t, harness.Command{Path: harness.Tool(t, "crane"), Env: d.env, Args: []string{"mutate", "--insecure", d.registry + "/harbour/buoy:v1", "--label", "colour=green", "-t", d.registry + "/harbour/buoy:v1"}})
	d.share(t)
	cluster, empty := harness.StartServer(t), harness.StartServer(t)
	runPods(t, cluster, 120)
	config := filepath.Join(t.TempDir(), "config.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "clusters:\n- {name: prod, kubeconfig: %s, importRunning: false}\n", cluster.Kubeconfig), 0o600))
	full := harness.StartServer(t, "--config", config)
	fill(t, full, *tourImages)
	tokenOf := func(s *harness.Server) string {
		return strings.TrimSpace(s.Kubectl(t, "config", "view", "--raw", "-o", "jsonpath={.users[0].user.token}"))
	}
	pages := map[string]string{
		"attention": "", "images": "images", "nothing": "images?q=nothing:v1", "image": "image?ref=ferry:v1", "index": "image?ref=lighthouse:v1", "repositories": "repositories",
		"repository": "repository?name=" + url.QueryEscape(d.registry+"/harbour/buoy"), "compare": "compare?a=ferry:v1&b=buoy:v1", "running": "running", "policies": "policies?try=ferry:v1", "activity": "activity", "changes": "changes", "impact": "impact?package=openssl", "search": "images?q=harb",
	}
	must(t, os.MkdirAll(*tour, 0o755))
	d.kubectl.Args = []string{"config", "view", "--raw", "-o", "jsonpath={.users[0].user.token}"}
	for _, stop := range []struct {
		name, base, token string
		pages             map[string]string
	}{
		{"", d.url, d.token, pages},
		{"admin-", d.url, strings.TrimSpace(harness.MustRun(t, d.kubectl)), map[string]string{"attention": "", "image": "image?ref=ferry:v1", "policies": "policies", "activity": "activity", "none": "none"}},
		{"empty-", empty.URL, tokenOf(empty), pages},
		{"full-", full.URL, tokenOf(full), map[string]string{
			"attention": "", "images": "images", "sorted": "images?sort=size", "filtered": "images?sort=size&repository=registry.example.com/team-7/service-7", "image": "image?ref=" + filler(7),
			"repositories": "repositories", "compare": "compare?a=" + filler(7) + "&b=" + filler(307), "running": "running", "policies": "policies", "activity": "activity", "changes": "changes", "search": "images?q=service-7",
		}},
	} {
		b := startBrowser(t, stop.base)
		picture := func(name, kind string) {
			var png []byte
			b.run(t, chromedp.FullScreenshot(&png, 100))
			must(t, os.WriteFile(filepath.Join(*tour, stop.name+name+"-"+kind+".png"), png, 0o644))
			var wide bool
			b.run(t, chromedp.Evaluate(`document.documentElement.scrollWidth > document.documentElement.clientWidth`, &wide))
			if wide {
				t.Errorf("%s%s, %s: the page is wider than the window", stop.name, name, kind)
			}
		}
		for _, signedIn := range []bool{false, true} {
			if signedIn {
				b.signIn(t, stop.token)
			}
			for _, look := range tourLooks {
				b.visit(t, "")
				b.run(t, emulation.SetDeviceMetricsOverride(look.width, 800, 1, false), chromedp.Evaluate(fmt.Sprintf(`fetch("/console/theme", {method: "POST", body: new URLSearchParams({theme: %q})}).then(r => r.ok)`, look.theme), nil, awaitPromise))
				if !signedIn {
					if stop.name == "" {
						b.visit(t, "")
						picture("sign-in", look.kind)
					}
					continue
				}
				for name, path := range stop.pages {
					b.visit(t, path)
					picture(name, look.kind)
				}
			}
		}
	}
}

// filler is the digest of the nth of many Images.
func filler(n int) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(fmt.Append(nil, n))) }

// fill creates many Images of 300 repositories, which share some of their layers, and waits until
// they are counted.
func fill(t *testing.T, s *harness.Server, n int) {
	t.Helper()
	client, err := kubernetes.NewForConfig(s.Config(t))
	must(t, err)
	var group errgroup.Group
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error {
			digest := filler(i)
			return client.CoreV1().RESTClient().Post().AbsPath(imagesPath).SetHeader("Content-Type", "application/json").Body(fmt.Appendf(nil, `{"apiVersion": "image.openshift.io/v1", "kind": "Image", "metadata": {"name": %q},
				"dockerImageReference": "registry.example.com/team-%d/service-%d@%s", "dockerImageMetadata": {"kind": "DockerImage", "apiVersion": "1.0", "Architecture": "amd64", "Size": %d},
				"dockerImageLayers": [{"name": %q, "size": 29000000, "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"}, {"name": %q, "size": %d, "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip"}]}`,
				digest, i%20, i%300, digest, 29_000_000+7000*i, filler(-1-i%5), filler(-100-i), 7000*i)).Do(t.Context()).Error()
		})
	}
	must(t, group.Wait())
	s.Kubectl(t, "create", "--raw", "/tidewaiter/verification", "-f", "/dev/null")
	harness.Eventually(t, func() error {
		if summary := s.Kubectl(t, "get", "--raw", "/tidewaiter/summary"); !strings.Contains(summary, fmt.Sprintf(`"images":%d,`, n)) {
			return fmt.Errorf("the images are not counted: %s", summary)
		}
		return nil
	})
}

// runPods has a cluster run many of the Images that fill makes; each tenth pod waits for its image.
func runPods(t *testing.T, cluster *harness.Server, n int) {
	t.Helper()
	client, err := kubernetes.NewForConfig(cluster.Config(t))
	must(t, err)
	for i := range n {
		image := fmt.Sprintf("registry.example.com/team-%d/service-%d", i%20, i%300)
		pod, err := client.CoreV1().Pods(fmt.Sprint("team-", i%20)).Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("service-%d-7d9c5b8f4-%.5s", i%300, filler(i)[len("sha256:"):])},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image + ":v1"}}},
		}, metav1.CreateOptions{})
		must(t, err)
		status := corev1.ContainerStatus{Name: "main", Image: image + ":v1", ImageID: image + "@" + filler(i)}
		if i%10 == 9 {
			status.ImageID, status.State.Waiting = "", &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "the registry says that there is no such tag"}
		}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
		_, err = client.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
		must(t, err)
	}
}

// awaitPromise has an evaluation wait for what it promises.
func awaitPromise(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }

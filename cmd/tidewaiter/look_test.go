package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/content"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// looking is a server that knows some images, as its verbs show them.
type looking struct {
	t          *testing.T
	kubeconfig string
	a, b       *registrytest.Registry
	digests    map[string]string // of what was pushed, by what it is called here
	images     *imageclient.Client
}

// build imports an image with layers of these texts, which says that it was built on a reference,
// and on its digest if that has one, unless the reference is empty.
func (l *looking) build(tag, on string, layers ...string) string {
	l.t.Helper()
	digest := pushed(l.t, l.a, tag, `{"os":"linux","architecture":"amd64"}`, func(raw string) string {
		head, _, _ := strings.Cut(raw, `"layers":[`)
		var all []string
		for _, text := range layers {
			all = append(all, fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":%q,"size":%d}`, manifest.Digest([]byte(text)), len(text)))
		}
		said := ""
		if name, digest, _ := strings.Cut(on, "@"); on != "" {
			said = fmt.Sprintf(`,"annotations":{"org.opencontainers.image.base.name":%q,"org.opencontainers.image.base.digest":%q}`, name, digest)
		}
		return head + `"layers":[` + strings.Join(all, ",") + `]` + said + `}`
	})
	l.run("import", l.a.Host+"/"+tag)
	return digest
}

// What is built on an image is found by what it says and by its layers, and whether the base has
// moved on since.
func (l *looking) showsBases(t *testing.T) {
	base := l.a.Host + "/team/base:1"
	first := l.build("team/base:1", "", "debian")
	built := l.build("team/built:1", base, "debian", "program")
	also := l.build("team/also:1", "", "debian", "script")
	says := func(want ...string) {
		t.Helper()
		stdout, stderr, code := l.run("describe", l.a.Host+"/team/built:1")
		text := strings.Join(strings.Fields(stdout), " ")
		for _, w := range want {
			if code != cli.ExitOK || !strings.Contains(text, w) {
				t.Errorf("describe does not say %q: %s%s", w, stdout, stderr)
			}
		}
	}
	lists := func(want map[string]string) {
		t.Helper()
		for _, asked := range []string{base, "team/base:1", "base:1"} { // as all verbs take them
			if stdout, stderr, code := l.run("impact", "--base", asked, "-o", "wide"); code != cli.ExitOK || !strings.Contains(stdout, tablecells.Quantity(len(want), "image")+" by ") {
				t.Errorf("impact --base %s exits %d: %s%s", asked, code, stdout, stderr)
			} else {
				for digest := range want {
					if !strings.Contains(stdout, digest) {
						t.Errorf("impact --base %s has not %s: %s", asked, digest, stdout)
					}
				}
			}
			stdout, stderr, code := l.run("get", "images", "--base", asked, "-o", "wide")
			if lines := strings.Count(stdout, "\n"); code != cli.ExitOK || lines != 1+len(want) || !strings.Contains(stderr, "tidewaiter impact --base "+asked+" also") {
				t.Errorf("%s: %d lines: %s%s", asked, lines, stdout, stderr)
			}
			for digest, how := range want {
				if !strings.Contains(stdout, how) || !strings.Contains(stdout, digest) {
					t.Errorf("%s by %s is missing: %s", digest, how, stdout)
				}
			}
		}
	}
	says("Base: " + base + "@" + first + ", by its layers, the present revision")
	lists(map[string]string{built: " annotation,layers ", also: " layers "})
	second := l.build("team/base:1", "", "debian 2")
	says("by its layers, an older revision until ", "it leads to "+second+" now")
	lists(map[string]string{built: " annotation "})

	// The image of a platform need not be stored to be found in the index that lists it; the index
	// must be.
	platform, index := manifest.Digest([]byte("platform")), manifest.Digest([]byte("index"))
	l.build("team/built:1", l.a.Host+"/team/wide:1@"+platform, "debian", "program")
	wide := reference.Reference{Host: l.a.Host, Repository: "team/wide", Tag: "1"}
	tag := tags.New(wide)
	lead := func(digest string) {
		t.Helper()
		tags.Lead(tag, wide, digest, metav1.Now())
		var err error
		if tag, err = l.images.UpdateTag(t.Context(), tag, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	lead(index)
	says("it is not known whether", index+" now, which is not stored")
	if _, err := l.images.Create(t.Context(), &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: index}, DockerImageReference: wide.Name() + "@" + index, DockerImageManifests: []imagev1.ImageManifest{
		{Digest: platform, MediaType: "application/vnd.oci.image.manifest.v1+json", OS: "linux", Architecture: "amd64"},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	says("@" + platform + ", the present revision")
	lead(manifest.Digest([]byte("not stored")))
	says("an older revision until ")
	lead(second)
	says("an older revision until ", "it leads to "+second+" now")
}

// newLooking has team/app:v1 moved from old to new in one registry, team/app:v1 in another as well,
// one tag that is gone, one whose image was deleted, and an index of two platforms.
func newLooking(t *testing.T) *looking {
	t.Helper()
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := serveOn(t, dir, listener)
	l := &looking{t: t, kubeconfig: server.KubeconfigPath(dir), a: registrytest.New(t), b: registrytest.New(t), digests: map[string]string{}}
	if l.images, err = imageclient.New(config); err != nil {
		t.Fatal(err)
	}
	layer := func(text string) string {
		return fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":%q,"size":%d}`, manifest.Digest([]byte(text)), 1000*len(text))
	}
	push := func(called string, r *registrytest.Registry, tag, config string, layers ...string) {
		l.digests[called] = pushed(t, r, tag, config, func(raw string) string {
			head, _, _ := strings.Cut(raw, `"layers":[`)
			return head + `"layers":[` + strings.Join(layers, ",") + `]}`
		})
		l.run("import", r.Host+"/"+tag)
	}
	push("old", l.a, "team/app:v1", `{"os":"linux","architecture":"amd64","created":"2026-01-02T03:04:05Z","config":{"Env":["PATH=/bin","MODE=a","OLD="],"Entrypoint":["/app","a b"],"User":"1001","Labels":{"team":"blue","gone":""}}}`, layer("base"), layer("old"))
	push("new", l.a, "team/app:v1", `{"os":"linux","architecture":"amd64","created":"2026-01-03T03:04:05Z","config":{"Env":["PATH=/bin","MODE=b"],"Entrypoint":["/app"],"Labels":{"team":"red\u001b[31m"}}}`, layer("base"), layer("newer"), layer("top"))
	push("other", l.b, "team/app:v1", `{"os":"linux","architecture":"amd64"}`, layer("other"))
	push("lone", l.b, "team/lone:v2", `{"os":"linux","architecture":"amd64","config":{}}`, layer("lone"))
	push("deleted", l.b, "team/deleted:v1", `{"os":"linux","architecture":"s390x"}`, layer("deleted"))
	for _, arch := range []string{"amd64", "arm64"} {
		push(arch, l.a, "team/multi:"+arch, `{"os":"linux","architecture":"`+arch+`","config":{"User":"`+arch+`"}}`, layer(arch))
	}
	index := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[`
	for i, arch := range []string{"amd64", "arm64"} {
		image, err := l.images.Get(t.Context(), l.digests[arch], metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		index += strings.Repeat(",", i) + fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":%d,"platform":{"os":"linux","architecture":%q}}`, image.Name, len(image.DockerImageManifest), arch)
	}
	l.digests["index"] = manifest.Digest([]byte(index + "]}"))
	l.a.PushManifest("team/multi:v1", "application/vnd.oci.image.index.v1+json", l.digests["index"], []byte(index+"]}"))
	l.run("import", l.a.Host+"/team/multi:v1")
	deleteTagged(t, l.images, l.digests["deleted"])
	gone := reference.Reference{Host: l.b.Host, Repository: "team/gone", Tag: "v1"}
	tag := tags.New(gone)
	tags.Lead(tag, gone, l.digests["other"], metav1.Now())
	tags.Lead(tag, gone, "", metav1.Now())
	if _, err := l.images.UpdateTag(t.Context(), tag, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return l
}

// run carries out a verb, and returns what it printed and its exit code.
func (l *looking) run(args ...string) (stdout, stderr string, code int) {
	l.t.Helper()
	code, stdout, stderr = tidewaiter(l.t, append(args, "--kubeconfig", l.kubeconfig)...)
	if args[0] == "import" && code != cli.ExitOK {
		l.t.Fatalf("%q: exit code %d: %s", args, code, stderr)
	}
	return stdout, stderr, code
}

// What people call an image leads to it, or they are told what to do.
func TestLookUp(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	a, b := l.a.Host, l.b.Host
	short := func(called string) string { return l.digests[called][len("sha256:"):][:12] }
	kept := " --kubeconfig " + l.kubeconfig + " "
	for _, tt := range []struct {
		asked string
		want  string // what is found; "" where nothing is
		code  int
		says  []string
	}{
		{a + "/team/app:v1", "new", 0, nil},
		{l.digests["old"], "old", 0, nil},
		{short("old"), "old", 0, nil},
		{"sha256:" + short("new"), "new", 0, nil},
		{strings.TrimPrefix(l.digests["new"], "sha256:"), "new", 0, nil},
		{a + "/team/app@" + l.digests["old"], "old", 0, nil},
		{a + "/team/app@sha256:" + short("old"), "old", 0, nil},
		{"lone:v2", "lone", 0, nil},
		{"team/lone:v2", "lone", 0, nil},
		{a + "/team/multi:v1", "index", 0, nil},

		{"team/app:v1", "", 2, []string{"tags of several repositories:\n  ", a + "/team/app:v1\n", b + "/team/app:v1\n", "hint: add the name of the registry"}},
		{"app:v1", "", 2, []string{"tags of several repositories"}},
		{"team/app", "", 1, []string{"hint: team/app was taken to mean docker.io/team/app:latest; known references that end so: ", a + "/team/app:v1", b + "/team/app:v1"}},
		{"other/app", "", 1, []string{"hint: add the name of the registry, as in registry.example.com/other/app\n"}},
		{a + "/team/ap:v1", "", 1, []string{"hint: did you mean " + a + "/team/app:v1? Try: tidewaiter get" + kept + "-o name " + a + "/team/app:v1; else: tidewaiter import" + kept + a + "/team/ap:v1\n"}},
		{"team/loen:v2", "", 1, []string{"hint: did you mean team/lone:v2? Try: tidewaiter get" + kept + "-o name team/lone:v2; else add the name of the registry"}},
		{"18b9f2576376", "", 1, []string{"no image has a digest that begins with 18b9f2576376, and no tag has this name: "}},
		{"docker.io/team/lone:v2", "", 1, []string{"docker.io/team/lone:v2", "hint: tidewaiter import" + kept + "docker.io/team/lone:v2"}},
		{a + "/team/app:v9", "", 1, []string{"hint: tidewaiter import" + kept + a + "/team/app:v9; known tags of the repository: v1"}},
		{a + "/team/app", "", 1, []string{"/team/app:latest", "known tags of the repository: v1"}},
		{"nowhere.example.com/app:v1", "", 1, []string{"does not know it", "hint: tidewaiter import" + kept + "nowhere.example.com/app:v1\n"}},
		{"sha256:" + strings.Repeat("0", 64), "", 1, []string{"no image has the digest"}},
		{"sha256:0000000000", "", 1, []string{"begins with sha256:0000000000"}},
		{"sha256:00", "", 2, []string{"at least four"}},
		{b + "/team/app@" + l.digests["old"], "", 1, []string{"is not known to be in " + b + "/team/app, but in " + a + "/team/app"}},
		{b + "/team/gone:v1", "", 1, []string{"is gone from its registry since", "led to " + l.digests["other"] + " before", "hint: tidewaiter history" + kept + b + "/team/gone:v1"}},
		{b + "/team/deleted:v1", "", 1, []string{"leads to " + l.digests["deleted"] + ", which is not imported", "hint: tidewaiter import" + kept + b + "/team/deleted:v1"}},
		{a + "/Team/App:v1", "", 2, []string{"lower case", "hint: tidewaiter get" + kept + "-o name " + a + "/team/app:v1"}},
		{"fff", "", 1, []string{"hint: the beginning of a digest has at least 4 digits\n"}},
	} {
		stdout, stderr, code := l.run("get", "-o", "name", tt.asked)
		want := ""
		if tt.want != "" {
			want = "image.image.openshift.io/" + l.digests[tt.want] + "\n"
		}
		if stdout != want || code != tt.code {
			t.Errorf("get %s printed %q, exit code %d, want %q, %d: %s", tt.asked, stdout, code, want, tt.code, stderr)
		}
		for _, part := range tt.says {
			if !strings.Contains(stderr, part) {
				t.Errorf("get %s says not %q:\n%s", tt.asked, part, stderr)
			}
		}
	}

	t.Run("several digests", func(t *testing.T) {
		for i := range 2 {
			image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: "sha256:abcd" + strings.Repeat(fmt.Sprint(i), 60)}, DockerImageReference: "r.example.com/a"}
			if _, err := l.images.Create(t.Context(), image, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		_, stderr, code := l.run("get", "sha256:abcd")
		for _, part := range []string{"several images:\n", "sha256:abcd0000", "sha256:abcd1111", "r.example.com/a", "hint: give more digits"} {
			if code != 2 || !strings.Contains(stderr, part) {
				t.Errorf("exit code %d, and it says not %q:\n%s", code, part, stderr)
			}
		}
	})
	t.Run("formats", func(t *testing.T) {
		stdout, _, _ := l.run("get", a+"/team/app:v1")
		for _, part := range []string{"REPOSITORY", short("new"), "v1"} {
			if !strings.Contains(stdout, part) || strings.Contains(stdout, "SIZE") {
				t.Errorf("the line has not %q:\n%s", part, stdout)
			}
		}
		if stdout, _, _ = l.run("get", "-o", "wide", a+"/team/app:v1"); !strings.Contains(stdout, "SIZE") {
			t.Errorf("-o wide is\n%s", stdout)
		}
		stdout, _, _ = l.run("get", "-o", "json", a+"/team/app:v1")
		var image imagev1.Image
		if err := json.Unmarshal([]byte(stdout), &image); err != nil || image.Kind != "Image" || image.Name != l.digests["new"] || image.DockerImageManifest == "" {
			t.Errorf("-o json is %v, %s", err, stdout)
		}
		for _, verb := range []string{"get", "describe", "history", "diff"} {
			args := []string{verb, "-o", "xml", "a"}
			if verb == "diff" {
				args = append(args, "b")
			}
			if _, stderr, code := l.run(args...); code != cli.ExitUsage || !strings.Contains(stderr, "hint: -o ") {
				t.Errorf("%s -o xml: exit code %d: %s", verb, code, stderr)
			}
		}
	})
	t.Run("describe", l.describes)
	t.Run("artifact", l.showsArtifacts)
	t.Run("history", l.histories)
	t.Run("diff", l.differs)
	t.Run("what else", func(t *testing.T) {
		// Whatever verb is asked: what a short name was taken to mean, and which known references
		// end so.
		want := "lone was taken to mean docker.io/library/lone:latest; known references that end so: " + b + "/team/lone:v2\n"
		for _, args := range [][]string{{"get"}, {"describe"}, {"history"}, {"verify"}, {"pods"}, {"diff", a + "/team/app:v1"}} {
			if _, stderr, code := l.run(append(args, "lone")...); code == cli.ExitOK || !strings.HasSuffix(stderr, "hint: "+want) {
				t.Errorf("%v lone: exit code %d: %s", args, code, stderr)
			}
		}
		if _, stderr, code := l.run("describe", "--platform", "arm64", a+"/team/multi:v1"); code != exitAbsent || !strings.HasSuffix(stderr, "but for linux/amd64, linux/arm64\nhint: --platform is os/architecture[/variant], such as linux/amd64\n") {
			t.Errorf("an architecture for a platform: exit code %d: %s", code, stderr)
		}
		// It may be known, and something else end so, too.
		ours := reference.Reference{Host: reference.DockerHub, Repository: "library/lone", Tag: "v2"}
		tag := tags.New(ours)
		tags.Lead(tag, ours, l.digests["other"], metav1.Now())
		if _, err := l.images.UpdateTag(t.Context(), tag, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		want = "Note: lone:v2 was taken to mean docker.io/library/lone:v2; known references that end so: " + b + "/team/lone:v2\n"
		for _, verb := range []string{"get", "describe", "history", "verify"} {
			if _, stderr, _ := l.run(verb, "lone:v2"); strings.Count(stderr, want) != 1 {
				t.Errorf("%s lone:v2 does not say once %q: %s", verb, want, stderr)
			}
		}
	})
	t.Run("base", l.showsBases)
	t.Run("examples", func(t *testing.T) {
		lead := l.a.Host + "/team/app"
		l.build("team/app:base", "", "base")
		pushed(t, l.a, "team/app:v2", `{"os":"linux","architecture":"arm64"}`, nil)
		l.run("import", lead+":v2")
		names := strings.NewReplacer("registry.example.com/team/app", lead, "9f86d081884c", short("old"), " app:", " "+lead+":")
		for _, cmd := range []*cobra.Command{newGetCommand(), newDescribeCommand(), newHistoryCommand(), newDiffCommand()} {
			ran := 0
			for line := range strings.Lines(cmd.Example) {
				command, _, _ := strings.Cut(strings.TrimSpace(line), " | ")
				args := strings.Fields(names.Replace(command))
				if len(args) == 0 || args[0] == "#" || slices.Contains(args, "--platform") || slices.Contains(args, "--verdicts") {
					// the one is run above, the other by TestWhatRan: nothing runs here
					continue
				}
				ran++
				stdout, stderr, code := l.run(args[1:]...)
				if want := map[bool]int{true: exitDiffer}[args[1] == "diff"]; code != want || stdout == "" {
					t.Errorf("%s: exit code %d, want %d: %s", command, code, want, stderr)
				}
			}
			if ran < 2 || !strings.Contains(cmd.Long, "The exit code is ") {
				t.Errorf("the help of %s has %d examples, and\n%s", cmd.Name(), ran, cmd.Long)
			}
		}
	})
}

// A page has the verdict for the reference with its reason; a digest in several repositories has
// each.
func TestDescribedVerdicts(t *testing.T) {
	t.Parallel()
	signature := imagev1.ImageSignature{ObjectMeta: metav1.ObjectMeta{Name: "x@a"}, Type: "atomic", Conditions: []imagev1.SignatureCondition{{Type: "Trusted", Status: corev1.ConditionTrue, Reason: "SignatureVerified", Message: "by ann", LastTransitionTime: metav1.NewTime(time.Now().Add(-50 * time.Hour))}}}
	attestation := *signature.DeepCopy()
	attestation.Type = verdicts.TypeAttestation
	signed := &answers.Verdict{Reference: "r.example.com/a:v1", Verified: "True", Policies: []string{"p"}, Signers: []string{"ann"}, Reason: "SignatureVerified", Message: "signed by ann"}
	for _, tt := range []struct {
		answer     answers.Answer
		signatures []imagev1.ImageSignature
		want       []string
	}{
		{answers.Answer{Verdict: signed}, []imagev1.ImageSignature{signature}, []string{"True, signed by ann: signed by ann\n", "True       r.example.com/a:v1   p        SignatureVerified   ann\n", "2d2h", "\nSignatures:\n"}},
		{answers.Answer{Verdict: signed}, []imagev1.ImageSignature{attestation}, []string{"\nAttestations:\n"}},
		{answers.Answer{Verdicts: []answers.Verdict{*signed, {Reference: "r.example.com/b@sha256:0", Verified: "NoPolicy"}}}, nil, []string{"Verified:        True (1 of 2)\n", "NoPolicy   r.example.com/b@sha256:0"}},
		{answers.Answer{Verdict: &answers.Verdict{Verified: "Unknown", Reason: "SearchIncomplete", Message: "the registry \u001b[31m is away"}}, nil, []string{"Unknown: the registry \ufffd[31m is away\n"}},
		{answers.Answer{Verdict: &answers.Verdict{Verified: "Unsigned", Policies: []string{"p"}, Message: "it has no signature"}}, nil, []string{"Unsigned: it has no signature\n"}},
		{answers.Answer{Checked: answers.Checked{Registry: answers.Lost, Since: &metav1.Time{Time: time.Now().Add(-time.Hour)}}}, nil, []string{"no longer has it, as was found at ", "(60m ago)"}},
		{answers.Answer{Checked: answers.Checked{Registry: answers.Present, LastChecked: &metav1.Time{Time: time.Now().Add(-3 * time.Hour)}, Failing: "Unreachable: away", FailingSince: &metav1.Time{Time: time.Now().Add(-time.Hour)}}}, nil,
			[]string{"had it, last checked ", "(3h ago); looks fail since ", "Unreachable: away\n"}},
	} {
		image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotation.LeftOut: `{"config":{"digest":"sha256:0","size":7340172,"reason":"too large"}}`}}, Signatures: tt.signatures}
		r := &imageReport{LeftOut: leftOut(image), Checked: tt.answer.Checked}
		r.judged(&tt.answer)
		r.signed(image)
		var out strings.Builder
		if err := r.print(&out); err != nil {
			t.Fatal(err)
		}
		for _, part := range append(tt.want, "config (7.34MB): too large\n") {
			if !strings.Contains(out.String(), part) {
				t.Errorf("it has not %q:\n%s", part, out.String())
			}
		}
	}
}

// What is not an image is found by its digest, as what it is, and nothing is said of verdicts.
func (l *looking) showsArtifacts(t *testing.T) {
	raw := `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",` +
		`"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":"` + manifest.Digest([]byte("{}")) + `","size":2},"layers":[]}`
	digest := manifest.Digest([]byte(raw))
	artifact := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest}, DockerImageReference: l.a.Host + "/team/chart@" + digest, DockerImageManifest: raw}
	if _, err := l.images.Create(t.Context(), artifact, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, asked := range []string{digest, digest[:20], l.a.Host + "/team/chart@" + digest} {
		stdout, stderr, code := l.run("get", asked)
		if !strings.Contains(stdout, digest[len("sha256:"):][:12]) || strings.Contains(stdout, "Unsigned") || code != 0 {
			t.Errorf("get %s: exit code %d:\n%s%s", asked, code, stdout, stderr)
		}
	}
	stdout, stderr, code := l.run("describe", digest[:20])
	if !strings.Contains(stdout, "application/vnd.cncf.helm.config.v1+json\n") || strings.Contains(stdout, "Unsigned") || strings.Contains(stdout, "Platform") || code != 0 {
		t.Errorf("describe: exit code %d:\n%s%s", code, stdout, stderr)
	}
}

func (l *looking) describes(t *testing.T) {
	stdout, stderr, code := l.run("describe", l.a.Host+"/team/app:v1")
	for _, part := range []string{
		l.a.Host + "/team/app:v1\n", l.digests["new"], "2026-01-03T03:04:05Z (", "linux/amd64", "12.2kB in 3 layers", `["/app"]`, "usually root",
		"\n  MODE=b\n", "\n  team=red\ufffd[31m\n", "NoPolicy: no policy covers " + l.a.Host + "/team/app:v1, and it has no signature there", "had it, last checked ", "\nLayers:\n", manifest.Digest([]byte("newer")),
		"\nTags:\n", reference.ShortDigest(l.digests["old"]), ", import\n",
	} {
		if !strings.Contains(stdout, part) || code != 0 {
			t.Errorf("exit code %d, and it has not %q:\n%s%s", code, part, stdout, stderr)
		}
	}
	stdout, _, _ = l.run("describe", l.a.Host+"/team/multi:v1")
	for _, part := range []string{"\nPlatforms:\n", "linux/arm64", l.digests["arm64"]} {
		if !strings.Contains(stdout, part) || strings.Contains(stdout, "Configuration") {
			t.Errorf("of an index it has not %q:\n%s", part, stdout)
		}
	}
	if stdout, _, _ = l.run("describe", l.digests["old"]); !strings.Contains(stdout, "\nTags: none leads to it now\n") || !strings.Contains(stdout, "\nFormer tags:\n") || !strings.Contains(stdout, reference.ShortDigest(l.digests["new"])) {
		t.Errorf("of an image that its tag has left it prints\n%s", stdout)
	}
	if stdout, _, _ = l.run("describe", "--platform", "linux/arm64", l.a.Host+"/team/multi:v1"); !strings.Contains(stdout, l.digests["arm64"]) || !strings.Contains(stdout, "User:") {
		t.Errorf("of a platform it prints\n%s", stdout)
	}
	if _, stderr, code := l.run("describe", "--platform", "linux/s390x", l.a.Host+"/team/multi:v1"); code != exitAbsent || !strings.Contains(stderr, "is not for linux/s390x, but for linux/amd64, linux/arm64") {
		t.Errorf("of a platform that it has not: exit code %d: %s", code, stderr)
	}
	var report imageReport
	stdout, _, _ = l.run("describe", "-o", "json", l.a.Host+"/team/app:v1")
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || report.Digest != l.digests["new"] || len(report.Content.Layers) != 3 || report.Pods != "0" || len(report.Tags) != 1 || report.Tags[0].Items[0].Before != l.digests["old"] {
		t.Errorf("-o json is %v, %s", err, stdout)
	}
}

func (l *looking) histories(t *testing.T) {
	stdout, _, code := l.run("history", l.a.Host+"/team/app:v1")
	lines := strings.Split(stdout, "\n")
	if code != 0 || len(lines) != 5 || !strings.Contains(lines[2], reference.ShortDigest(l.digests["new"])) || !strings.Contains(lines[2], reference.ShortDigest(l.digests["old"])) || !strings.Contains(lines[2], "import") ||
		!strings.Contains(lines[3], reference.ShortDigest(l.digests["old"])) || !strings.Contains(lines[3], "<none>") {
		t.Errorf("exit code %d:\n%s", code, stdout)
	}
	if stdout, _, code = l.run("history", l.b.Host+"/team/gone:v1"); code != 0 || !strings.Contains(stdout, "<deleted>") || !strings.Contains(stdout, reference.ShortDigest(l.digests["other"])) {
		t.Errorf("of a tag that is gone: exit code %d:\n%s", code, stdout)
	}
	if _, stderr, code := l.run("history", l.digests["new"]); code != cli.ExitNone || !strings.Contains(stderr, "hint: tags that lead to it now: "+l.a.Host+"/team/app:v1\n") {
		t.Errorf("of a digest: exit code %d: %s", code, stderr)
	}
	var report historyReport
	stdout, _, _ = l.run("history", "-o", "json", l.a.Host+"/team/app:v1")
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || len(report.Items) != 2 || report.Items[0].Digest != l.digests["new"] || !strings.Contains(report.Items[1].By, "import") {
		t.Errorf("-o json is %v, %s", err, stdout)
	}
}

func (l *looking) differs(t *testing.T) {
	stdout, stderr, code := l.run("diff", l.digests["old"], l.a.Host+"/team/app:v1")
	for _, part := range []string{
		"--- " + l.digests["old"] + "\n+++ " + l.a.Host + "/team/app:v1 " + l.digests["new"] + "\n", "\nSize:\n- ", "\nEntrypoint:\n- [\"/app\",\"a b\"]\n+ [\"/app\"]\n", "\nUser:\n- 1001\n",
		"\nEnvironment:\n- MODE=a\n+ MODE=b\n- OLD=\n", "\nLabels:\n- gone=\n- team=blue\n+ team=red\ufffd[31m\n",
		"\nLayers: 1 shared (4kB), the first 1 of them in the same position; 1 removed (3kB), 2 added (8kB)\n  " + manifest.Digest([]byte("base")), "\n- " + manifest.Digest([]byte("old")) + " 3kB", "\n+ " + manifest.Digest([]byte("top")),
	} {
		if code != exitDiffer || !strings.Contains(stdout, part) {
			t.Errorf("exit code %d, and it has not %q:\n%s%s", code, part, stdout, stderr)
		}
	}
	if strings.Contains(stdout, "PATH") {
		t.Errorf("it has what is the same:\n%s", stdout)
	}
	if stdout, _, code = l.run("diff", "lone:v2", l.digests["lone"]); code != 0 || !strings.HasSuffix(stdout, "the same image\n") {
		t.Errorf("the same image: exit code %d:\n%s", code, stdout)
	}
	if stdout, _, code = l.run("diff", "lone:v2", l.b.Host+"/team/app:v1"); code != exitDiffer || !strings.Contains(stdout, "not compared: the configuration: that of "+l.b.Host+"/team/app:v1 is not known") {
		t.Errorf("without a configuration: exit code %d:\n%s", code, stdout)
	}
	if stdout, _, code = l.run("diff", l.a.Host+"/team/multi:v1", l.a.Host+"/team/multi:arm64"); code != exitDiffer || !strings.Contains(stdout, "Of linux/arm64") || !strings.Contains(stdout, "Everything compared is the same") {
		t.Errorf("an index and one of its platforms: exit code %d:\n%s", code, stdout)
	}
	if _, stderr, code = l.run("diff", "lone:v2", "nowhere.example.com/app"); code != cli.ExitNone || !strings.Contains(stderr, "hint: tidewaiter import --kubeconfig "+l.kubeconfig+" nowhere.example.com/app:latest") {
		t.Errorf("with an unknown one: exit code %d: %s", code, stderr)
	}
	var report content.Comparison
	stdout, _, code = l.run("diff", "-o", "json", l.digests["old"], l.digests["new"])
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != exitDiffer || report.Same || report.Layers.Base != 1 || len(report.Layers.Added) != 2 || len(report.Changes) < 5 {
		t.Errorf("-o json is exit code %d, %v, %s", code, err, stdout)
	}
}

// A server that is not there, and one that does not know the caller, are said to be so.
func TestLookUpWithoutServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, dir, listener)
	empty := t.TempDir()
	for name, tt := range map[string]struct {
		args []string
		want []string
	}{
		"no server":    {[]string{"--data-dir", empty}, []string{"no server holds " + empty, "hint: tidewaiter serve --data-dir"}},
		"no answer":    {[]string{"--server", "https://127.0.0.1:1"}, []string{"the connection was refused", "hint: start it (tidewaiter serve)"}},
		"wrong token":  {[]string{"--kubeconfig", server.KubeconfigPath(dir), "--token", "wrong"}, []string{"the server rejected the credential", "hint: give another with --token-file or --kubeconfig"}},
		"nothing here": {[]string{"--kubeconfig", server.KubeconfigPath(dir)}, []string{"docker.io/library/app:v1", "hint: add the name of the registry, as in registry.example.com/app:v1\n"}},
	} {
		for _, verb := range []string{"get", "describe", "history", "diff"} {
			args := append([]string{verb, "app:v1"}, tt.args...)
			want := cli.ExitNone
			if verb == "diff" {
				args = append(args, "app:v2")
			} else if name == "nothing here" {
				want = exitAbsent
			}
			code, stdout, stderr := tidewaiter(t, args...)
			if code != want || stdout != "" {
				t.Errorf("%s, %s: exit code %d, want %d, printed %q", name, verb, code, want, stdout)
			}
			for _, part := range tt.want {
				if !strings.Contains(stderr, part) {
					t.Errorf("%s, %s: it says not %q:\n%s", name, verb, part, stderr)
				}
			}
		}
	}
}

// describe --check asks the registry before it answers: a tag has moved, is gone, or the registry
// is away.
func TestDescribeChecks(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	tag := l.b.Host + "/team/lone:v2"
	moved := pushed(t, l.b, "team/lone:v2", `{"os":"linux","architecture":"riscv64"}`, nil)
	if stdout, _, code := l.run("describe", tag); code != 0 || strings.Contains(stdout, moved) {
		t.Errorf("without --check: exit code %d:\n%s", code, stdout)
	}
	before := time.Now().Truncate(time.Second)
	stdout, stderr, code := l.run("describe", "--check", "-o", "json", "lone:v2")
	var report imageReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != 0 || report.Digest != moved || report.Checked.LastChecked == nil || report.Checked.LastChecked.Time.Before(before) {
		t.Errorf("of a tag that moved: exit code %d, %v, %s%s", code, err, stdout, stderr)
	}
	// What has not changed is confirmed, also by its digest, and what is not known here is looked
	// for.
	pushed(t, l.b, "team/found:v1", `{"os":"linux","architecture":"riscv64","config":{"User":"7"}}`, nil)
	for _, asked := range []string{tag, l.b.Host + "/team/lone@" + moved, l.b.Host + "/team/found:v1"} {
		if stdout, stderr, code := l.run("describe", "--check", asked); code != 0 || !strings.Contains(stdout, "Registry:") || !strings.Contains(stdout, "had it, last checked") || !strings.Contains(stderr, "importing into") {
			t.Errorf("%s: exit code %d:\n%s%s", asked, code, stdout, stderr)
		}
	}
	l.b.Inject("/team/lone/manifests/v2$", 0, registrytest.Status(http.StatusNotFound, "MANIFEST_UNKNOWN"))
	if stdout, stderr, code := l.run("describe", "--check", tag); code != exitAbsent || stdout != "" || !strings.Contains(stderr, "is gone from its registry since") {
		t.Errorf("of a tag that is gone: exit code %d:\n%s%s", code, stdout, stderr)
	}
	l.b.Server().Close()
	if stdout, stderr, code := l.run("describe", "--check", l.b.Host+"/team/found:v1"); code != cli.ExitNone || !strings.Contains(stdout, "riscv64") || !strings.Contains(stderr, "has not confirmed "+l.b.Host+"/team/found:v1") {
		t.Errorf("of a registry that is away: exit code %d:\n%s%s", code, stdout, stderr)
	}
	for _, asked := range []string{"18b9f2576376", "team/nothing", "nothing:v1"} {
		// Docker Hub is not asked about what names no registry
		if _, stderr, code := l.run("describe", "--check", asked); code != exitAbsent || strings.Contains(stderr, "importing into") {
			t.Errorf("of %s: exit code %d: %s", asked, code, stderr)
		}
	}
	if _, stderr, code := l.run("describe", "--check", "team/app:v1"); code != cli.ExitNone || !strings.Contains(stderr, "tags of several repositories") {
		t.Errorf("of one of several: exit code %d: %s", code, stderr)
	}
}

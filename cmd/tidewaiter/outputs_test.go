package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// longNames is a server whose repositories, tags, policies and pods have names as large companies
// give them.
type longNames struct {
	*harbour
	data, policy string
	strict       string // a file with a policy that nothing meets
	repository   string // with its host
	tag          string
	digests      []string // where the tag has led, the oldest first
	missing      string   // a pod runs it, and its registry has it not
}

func newLongNames(t *testing.T) *longNames {
	t.Helper()
	const path, tag = "platform-engineering/payments-department/settlement-service-backend", "release-2026.11.24-candidate.17"
	l := &longNames{harbour: &harbour{t: t, registry: registrytest.New(t), found: &brought{signatures: map[string][]imagev1.ImageSignature{}, annotations: map[string]map[string]string{}, fail: map[string]error{}}}, tag: tag}
	l.repository, l.missing = l.registry.Host+"/"+path, l.registry.Host+"/"+path+"/sidecar:"+tag
	cluster, dir := clustertest.New(t), t.TempDir()
	ours, theirs := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	l.policy, l.strict, l.data = filepath.Join(dir, "policies.yaml"), filepath.Join(dir, "strict.yaml"), filepath.Join(dir, "data")
	for file, text := range map[string]string{
		l.policy: signaturestest.Document("payments-department-production-release-signers", `["`+l.registry.Host+`/platform-engineering"]`, signaturestest.TrustKey(ours, nil), "{matchPolicy: MatchRepository}"),
		l.strict: signaturestest.Document("strict", `["`+l.registry.Host+`/platform-engineering/payments-department"]`, signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil), ""),
		filepath.Join(dir, "production-europe-west.kubeconfig"): string(cluster.Kubeconfig()),
		filepath.Join(dir, "config.yaml"):                       "clusters:\n- {name: production-europe-west, kubeconfig: production-europe-west.kubeconfig}\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l.Config = serveWith(t, server.Options{DataDir: l.data, ConfigFile: filepath.Join(dir, "config.yaml"), Policy: l.policy, Isolated: true}, listen(t))
	var err error
	if l.images, err = imageclient.New(l.Config); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		digest := pushed(t, l.registry, path+":"+tag, `{"os":"linux","architecture":"amd64","config":{"Labels":{"n":"`+string(rune('a'+i))+`"}}}`, nil)
		by := ours
		if i == 1 {
			by = theirs
		}
		l.digests = append(l.digests, digest)
		l.bring(path, digest, l.sign(by, path+":"+tag, digest, 0))
		l.importTag(path + ":" + tag)
	}
	pod := func(name, image, digest string, waiting *corev1.ContainerStateWaiting) {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "payments-settlement", Name: name, CreationTimestamp: metav1.NewTime(time.Now().Add(-72 * time.Hour))},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "settlement-service", Image: image}}},
			Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "settlement-service", State: corev1.ContainerState{Waiting: waiting}}}},
		}
		if digest != "" {
			p.Status.ContainerStatuses[0].ImageID = l.repository + "@" + digest
		}
		cluster.Set(p)
	}
	pod("settlement-service-backend-6d5f9c7b8d-x2x7q", l.repository+":"+tag, l.digests[0], nil)
	pod("settlement-service-backend-6d5f9c7b8d-kv5rm", l.repository+":"+tag, l.digests[2], nil)
	pod("settlement-service-sidecar-84c9d6c4f-pl9hs", l.missing, "", &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image " + l.missing})
	soon(t, "the pods are known, and one of their images could not be imported", func() bool {
		_, pods, _ := l.run("pods", l.repository+":"+tag)
		_, jobs, _ := l.run("spool", "list", "-o", "json")
		return strings.Count(pods, "\n") == 3 && strings.Contains(jobs, `"error"`)
	})
	return l
}

func (l *longNames) run(args ...string) (code int, stdout, stderr string) {
	l.t.Helper()
	return tidewaiter(l.t, append(args, "--data-dir", l.data)...)
}

// verbCase is how the test of all verbs uses one.
type verbCase struct {
	args []string
	code int
	// table says that the verb prints columns. Others print pages, lines, or nothing that is looked
	// at here.
	table bool
}

// verbsBelow are the verbs that do something.
func verbsBelow(cmd *cobra.Command) (all []*cobra.Command) {
	if !cmd.HasSubCommands() {
		return []*cobra.Command{cmd}
	}
	for _, c := range cmd.Commands() {
		all = append(all, verbsBelow(c)...)
	}
	return all
}

// Each verb prints what it shows also for programs, in every format that its flag -o has, and its
// tables fit a terminal.
func TestOutputs(t *testing.T) {
	t.Parallel()
	l := newLongNames(t)
	ref, old := l.repository+":"+l.tag, l.repository+"@"+l.digests[0]
	cases := map[string][]verbCase{
		"get":            {{[]string{"get", ref}, 0, true}, {[]string{"get", old}, 0, true}},
		"describe":       {{[]string{"describe", ref}, 0, true}, {[]string{"describe", old}, 0, true}, {[]string{"describe", l.repository + "@" + l.digests[1]}, 0, true}},
		"history":        {{[]string{"history", ref}, 0, true}},
		"diff":           {{[]string{"diff", ref, old}, exitDiffer, false}},
		"images":         {{[]string{"images", "--cluster", "production-europe-west", "-A"}, 0, true}, {[]string{"images", "--cluster", "production-europe-west", "-n", "payments-settlement"}, 0, true}},
		"pods":           {{[]string{"pods", ref}, 0, true}, {[]string{"pods", "--outdated"}, 0, true}, {[]string{"pods", l.missing}, 0, true}},
		"ran":            {{[]string{"ran"}, 0, true}},
		"changes":        {{[]string{"changes"}, 0, true}},
		"report":         {{[]string{"report", "--from", time.Now().Add(-time.Hour).Format(time.RFC3339), "--until", time.Now().Format(time.RFC3339)}, 0, true}},
		"prune":          {{[]string{"prune", "--kept", "--keep-younger-than", "0s"}, 0, true}, {[]string{"prune", "--keep-younger-than", "0s", "--keep-tag-revisions", "0"}, 0, true}, {[]string{"prune", "--kept"}, 0, true}},
		"verify":         {{[]string{"verify", ref}, 0, true}, {[]string{"verify", l.repository + "@" + l.digests[1]}, exitUntrusted, true}},
		"spool list":     {{[]string{"spool", "list"}, 0, true}},
		"db stats":       {{[]string{"db", "stats"}, 0, true}},
		"impact":         {{[]string{"impact", "--delete", ref}, exitTouched, true}, {[]string{"impact", "--registry", l.registry.Host}, exitTouched, true}, {[]string{"impact", "--remove-policy", "payments-department-production-release-signers"}, exitTouched, true}},
		"policy preview": {{[]string{"policy", "preview", "-f", l.strict}, exitTouched, true}},
		"import":         {{[]string{"import", "--no-signatures", ref}, 0, false}},
	}
	recorded := func(context.Context) (bool, error) { _, stdout, _ := l.run("ran"); return stdout != "", nil }
	if err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, recorded); err != nil {
		t.Fatalf("nothing is recorded to have run: %v", err)
	}
	// These show no objects.
	without := []string{"serve", "follow", "accept", "demo", "console", "backup", "migrate", "restore", "credentials create", "credentials rotate", "spool retry", "spool drop", "db check", "config check", "version"}
	for _, verb := range verbsBelow(newRootCommand()) {
		name := strings.TrimPrefix(verb.CommandPath(), "tidewaiter ")
		if name == "explain" { // it asks no server: TestExplain
			continue
		}
		flag := verb.Flags().Lookup("output")
		if slices.Contains(without, name) != (flag == nil) || len(cases[name]) == 0 && flag != nil {
			t.Errorf("is %s a verb that prints objects? It has the flag -o: %v", name, flag != nil)
			continue
		}
		if flag == nil {
			continue
		}
		output, ok := flag.Value.(*cli.Output)
		if !ok || !slices.Contains(output.Formats(), "json") || !slices.Contains(output.Formats(), "yaml") {
			t.Errorf("%s prints no json or no yaml", name)
			continue
		}
		for _, c := range cases[name] {
			t.Run(strings.Join(c.args[:min(2, len(c.args))], " "), func(t *testing.T) {
				code, stdout, stderr := l.run(c.args...)
				if code != c.code || stdout == "" {
					t.Fatalf("%q: exit code %d, want %d: %s%s", c.args, code, c.code, stdout, stderr)
				}
				if c.table && c.args[0] != "get" && strings.Contains(stdout, "   …") { // get has the server's table, as kubectl does
					t.Errorf("%q cuts a cell where there is no terminal:\n%s", c.args, stdout)
				}
				for _, format := range output.Formats() {
					code, stdout, stderr := l.run(append(slices.Clone(c.args), "-o", format)...)
					if code != c.code || strings.TrimSpace(stdout) == "" {
						t.Errorf("-o %s: exit code %d, want %d: %s%s", format, code, c.code, stdout, stderr)
					}
					wantFormat(t, format, stdout)
				}
			})
		}
	}
	// Where clusters are followed and nothing else is known to run, a program gets a document.
	if code, stdout, stderr := l.run("images", "--all-namespaces", "-o", "json"); code != 0 || stdout == "" {
		t.Errorf("images of all namespaces: exit code %d: %s%s", code, stdout, stderr)
	}
	t.Run("verify --all", func(t *testing.T) {
		for _, format := range []string{"json", "yaml"} {
			_, stdout, _ := l.run("verify", "--all", "-o", format)
			wantFormat(t, format, stdout)
		}
	})
}

// wantFormat checks that a text is what a format promises.
func wantFormat(t *testing.T, format, text string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	var err error
	switch format {
	case "json":
		var object map[string]any
		err = json.Unmarshal([]byte(text), &object)
	case "yaml":
		var object map[string]any
		err = yaml.UnmarshalStrict([]byte(text), &object)
		if err == nil && len(object) == 0 {
			t.Errorf("-o yaml is empty:\n%s", text)
		}
	case "jsonl":
		for _, line := range lines {
			var object map[string]any
			if err == nil {
				err = json.Unmarshal([]byte(line), &object)
			}
		}
	case "name":
		for _, line := range lines {
			if strings.ContainsAny(line, " \t") || line == "" {
				t.Errorf("-o name has the line %q", line)
			}
		}
	}
	if err != nil {
		t.Errorf("-o %s: %v:\n%s", format, err, text)
	}
}

func init() { completionPatience = time.Minute } // on a machine that is busy, too

// Shells complete references that the server knows, outputs and verdicts; the help of a flag lists
// the same values.
func TestCompletion(t *testing.T) {
	t.Parallel()
	l := newLooking(t)
	cli.Completing.Store(true)
	defer cli.Completing.Store(false)
	for _, tt := range []struct {
		args []string // without --kubeconfig, which stands behind the verb
		want []string // all that is completed
	}{
		{[]string{"describe", l.a.Host}, []string{l.a.Host + "/team/app:v1", l.a.Host + "/team/multi:amd64", l.a.Host + "/team/multi:arm64", l.a.Host + "/team/multi:v1"}},
		{[]string{"get", l.b.Host + "/team/l"}, []string{l.b.Host + "/team/lone:v2"}},
		{[]string{"history", l.b.Host + "/team/l"}, []string{l.b.Host + "/team/lone:v2"}},
		{[]string{"pods", l.b.Host + "/team/l"}, []string{l.b.Host + "/team/lone:v2"}},
		{[]string{"verify", l.b.Host + "/team/l"}, []string{l.b.Host + "/team/lone:v2"}},
		{[]string{"diff", "a", l.b.Host + "/team/l"}, []string{l.b.Host + "/team/lone:v2"}},
		{[]string{"get", "a", l.b.Host + "/team/l"}, nil}, // it takes one
		{[]string{"get", "-o", ""}, []string{"wide", "json", "yaml", "name"}},
		{[]string{"pods", "-o", ""}, []string{"wide", "json", "jsonl", "yaml", "name"}},
		{[]string{"images", "--cluster", ""}, []string{"local"}},
		{[]string{"pods", "-n", "def"}, []string{"default"}},
		{[]string{"ran", "--cluster", "local", "-n", ""}, nil}, // it runs nothing
		{[]string{"impact", "--remove-policy", ""}, nil},
		{[]string{"pods", "--server", "https://127.0.0.1:1", "-n", ""}, nil}, // nobody answers there, which is not said
		{[]string{"prune", "--verdict", ""}, []string{"True", "ByIndex", "False", "Unknown", "Unsigned", "NoPolicy", "Excepted"}},
		{[]string{"spool", "list", "--state", ""}, []string{"waiting", "leased", "dead"}},
	} {
		verb := 1
		if tt.args[0] == "spool" {
			verb = 2
		}
		args := slices.Concat([]string{"__complete"}, tt.args[:verb], []string{"--kubeconfig", l.kubeconfig}, tt.args[verb:])
		code, stdout, stderr := tidewaiter(t, args...)
		// 4 is "no names of files"
		want := strings.Join(append(slices.Clone(tt.want), ":4"), "\n") + "\n"
		if code != cli.ExitOK || stdout != want || strings.Contains(stderr, "asking") {
			t.Errorf("%q completes %q, want %q: exit code %d, %s", tt.args, stdout, want, code, stderr)
		}
	}
	for verb, values := range map[string]string{"get": "wide, json, yaml, name", "prune": "True, ByIndex, False, Unknown, Unsigned", "history": "json, jsonl, yaml, name"} {
		if _, stdout, _ := tidewaiter(t, verb, "--help"); !strings.Contains(stdout, values) {
			t.Errorf("the help of %s does not list %s:\n%s", verb, values, stdout)
		}
	}
	if code, stdout, stderr := tidewaiter(t, "completion", "bash"); code != cli.ExitOK || !strings.Contains(stdout, "__tidewaiter") {
		t.Errorf("completion for bash: exit code %d, %s", code, stderr)
	}
	if _, stdout, _ := tidewaiter(t, "--help"); !strings.Contains(stdout, "tidewaiter completion bash") {
		t.Errorf("the help does not tell of completion:\n%s", stdout)
	}
}

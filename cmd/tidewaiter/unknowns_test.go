package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// Whatever is not known is said, with the way on, and is in the exit code: at every verb whose
// argument nothing is known of, and of what runs and is not imported.
func TestUnknownAtEveryVerb(t *testing.T) {
	t.Parallel()
	dir, cluster := t.TempDir(), clustertest.New(t)
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const ghost, typo = "r.example.com/data/ghost:v1", "r.exmaple.com"
	digest, none := "sha256:"+strings.Repeat("9", 64), "sha256:"+strings.Repeat("8", 64)
	cluster.Set(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "ghost", CreationTimestamp: metav1.NewTime(time.Now())},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: ghost}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "main", ImageID: "r.example.com/data/ghost@" + digest}}},
	})
	file("prod.kubeconfig", string(cluster.Kubeconfig()))
	key := signaturestest.NewKey(t, signaturestest.P256)
	ofGhost := file("ghost.yaml", signaturestest.Document("ghost", `["r.example.com/data/ghost"]`, signaturestest.TrustKey(key, nil), ""))
	misspelt := file("misspelt.yaml", signaturestest.Document("misspelt", `["`+typo+`/data/ghost"]`, signaturestest.TrustKey(key, nil), ""))
	data := filepath.Join(dir, "data")
	serveWith(t, server.Options{DataDir: data, ConfigFile: file("config.yaml", "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\n"), Isolated: true}, listen(t))
	run := func(args ...string) (code int, text string) {
		code, stdout, stderr := tidewaiter(t, append(args, "--data-dir", data)...)
		return code, stdout + stderr
	}
	soon(t, "the pods are known", func() bool {
		code, text := run("pods", ghost)
		return code == 0 && strings.Contains(text, "shop")
	})
	says := func(text string) []string { return []string{text, "hint: "} }
	for verb, c := range map[string]struct {
		code int
		says []string
	}{
		// what runs and is not imported
		"policy preview -f " + ofGhost:        {cli.ExitSome, []string{"nothing is known to be touched; of 1 image that pods run it is unknown"}},
		"policy preview -f " + misspelt:       {cli.ExitSome, []string{"no image, tag or pod is known in the scopes of the policy misspelt (r.exmaple.com/data/ghost)"}},
		"impact --registry r.example.com":     {exitTouched, []string{"1 pod runs them", "not imported: 1 digest"}},
		"impact --delete " + ghost:            {exitTouched, []string{"prod/shop"}},
		"impact --layer " + digest:            {cli.ExitSome, []string{"of 1 image that pods run it is unknown"}},
		"impact --package nosuch":             {cli.ExitSome, []string{"no SBOM"}},
		"prune --plan registry r.example.com": {cli.ExitSome, says("no image of r.example.com is known")},
		"get " + ghost:                        {exitAbsent, says("runs, not imported")},
		"describe " + ghost:                   {exitAbsent, says("runs, not imported")},
		"history " + ghost:                    {exitAbsent, says("runs, not imported")},
		"verify --all":                        {exitUntrusted, []string{"1 image that runs is not imported", "hint: kubectl get clusterpods --field-selector reason=NotImported"}},
		"verify --all --fail-on False":        {cli.ExitOK, []string{"0 Unknown", "1 image that runs is not imported"}},
		"verify " + ghost:                     {exitUndeclared, says("runs, not imported")},
		"diff " + ghost + " " + ghost:         {cli.ExitNone, says("runs, not imported")},
		"pods " + ghost:                       {cli.ExitOK, []string{"Unknown"}},
		"images --cluster prod -A":            {cli.ExitOK, []string{"Unknown", "is not imported"}},
		"images -n shop":                      {cli.ExitOK, []string{"No resources found", "it also follows prod: --cluster prod"}},

		// what nothing is known of
		"impact --registry " + typo:                           {cli.ExitSome, []string{"no image, tag or pod is known of the registry " + typo}},
		"impact --delete " + typo + "/a:b":                    {cli.ExitSome, []string{"nothing is known about " + typo + "/a:b: is it spelt"}},
		"impact --delete " + none:                             {cli.ExitSome, []string{"no image has the digest " + none}},
		"impact --revoke-key nobody@example.com":              {cli.ExitSome, []string{"no policy names the signer"}},
		"impact --remove-policy nosuch":                       {cli.ExitNone, []string{`no policy has the name "nosuch"`}},
		"prune --plan registry " + typo:                       {cli.ExitSome, says("no image of " + typo + " is known")},
		"prune --plan registry " + typo + "/team -o json":     {cli.ExitSome, says("no image of " + typo + "/team is known")},
		"prune --plan registry " + typo + " --commands crane": {cli.ExitSome, says("no image of " + typo + " is known")},
		"get " + typo + "/a:b":                                {exitAbsent, says("does not know it")},
		"describe " + none:                                    {exitAbsent, []string{"does not know it"}},
		"history " + typo + "/a:b":                            {exitAbsent, says("does not know it")},
		"verify " + typo + "/a:b":                             {exitUndeclared, says("does not know it")},
		"diff " + ghost + " " + typo + "/a:b":                 {cli.ExitNone, says("hint")},
		"pods " + typo + "/a:b":                               {exitAbsent, says("does not know it")},
		"impact --base " + typo + "/a:b":                      {cli.ExitSome, []string{"the layers of the base " + typo + "/a:b are not known here", "nothing is known about " + typo + "/a:b: is it spelt"}},
		"impact --base " + typo + "/a":                        {cli.ExitSome, []string{typo + "/a is a whole repository"}},
		"images --cluster nosuch -A":                          {cli.ExitNone, says("does not follow a cluster nosuch")},
		"spool retry 999":                                     {cli.ExitNone, []string{"no such job"}},
		"spool drop 999":                                      {cli.ExitNone, []string{"no such job"}},
		"spool list --state nosuch":                           {cli.ExitNone, []string{`no state "nosuch"`}},
	} {
		code, text := run(strings.Fields(verb)...)
		if code != c.code {
			t.Errorf("%s exits %d, want %d:\n%s", verb, code, c.code, text)
		}
		for _, part := range c.says {
			if !strings.Contains(text, part) {
				t.Errorf("%s says not %q:\n%s", verb, part, text)
			}
		}
		if code != cli.ExitOK && strings.Contains(text, "No resources found") {
			t.Errorf("%s says that there is nothing:\n%s", verb, text)
		}
	}
}

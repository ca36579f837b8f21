package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// tidewaiter follow makes an account in a real cluster that may list and watch and nothing else,
// and files with which a server follows the cluster. It changes nothing else in them, may be run
// again, and prints what does the same.
func TestFollow(t *testing.T) {
	t.Parallel()
	c, run := harness.StartCluster(t), newSession(t)
	admin := c.Kubeconfig(t, "admin", "admin")
	g := &guide{session: run, t: t}
	follow := func(kubeconfig, args string) harness.Result {
		t.Helper()
		return g.try("export KUBECONFIG=" + kubeconfig + "; tidewaiter follow " + args)
	}
	refused := func(what string, got harness.Result, want ...string) {
		t.Helper()
		if got.Code != 2 || got.Stdout != "" {
			t.Errorf("%s: exit code %d, %s", what, got.Code, got.Stdout)
		}
		wantContains(t, what, got.Stderr, want...)
		if got := c.TryKubectl(t, "admin", "get", "clusterrole", "tidewaiter-follower"); got.Code == 0 {
			t.Errorf("%s, and the account was made", what)
		}
	}
	own := harness.StartServer(t)
	refused("without rights", follow(c.Kubeconfig(t, "nobody", "nobody"), "nobody"), "create and patch serviceaccounts in kube-system, clusterroles.rbac.authorization.k8s.io", "list and watch pods, nodes", "tidewaiter follow nobody --dry-run")
	refused("a misspelt context", follow(admin, "admim"), "did you mean admin? Try: tidewaiter follow admin")
	refused("a tidewaiter server", follow(own.Kubeconfig, ""), "is a tidewaiter server, and no cluster")
	refused("a kubeconfig of a person", g.try("cp "+admin+" admin.kubeconfig; KUBECONFIG=admin.kubeconfig tidewaiter follow"), "admin.kubeconfig exists", "--name NAME")
	g.write("tidewaiter.yaml", "ownPodsOnly: true\n")
	refused("a contradiction", follow(admin, "--name prod"), "ownPodsOnly: true says that no cluster runs images")

	const before = "# ours\nimportRunning: false   # of our own pods\n"
	g.write("tidewaiter.yaml", before)
	commands := follow(c.Kubeconfig(t, "nobody", "nobody"), "nobody --name prod --dry-run")
	got := follow(admin, "--name prod")
	wantContains(t, "the account", got.Stdout, "made the account tidewaiter-follower", "added the cluster prod to tidewaiter.yaml", "prod.kubeconfig, valid until", "pods, nodes,", "cronjobs.batch", "not Secrets", "tidewaiter serve --config tidewaiter.yaml")
	if got.Code != 0 || strings.Contains(got.Stdout, "openshift") {
		t.Errorf("exit code %d: %s%s", got.Code, got.Stdout, got.Stderr)
	}
	file := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(run.dir, name))
		must(t, err)
		return string(text)
	}
	const after = before + "clusters:\n- name: prod\n  kubeconfig: prod.kubeconfig\n"
	if got := file("tidewaiter.yaml"); got != after {
		t.Errorf("tidewaiter.yaml holds\n%s", got)
	}
	info, err := os.Stat(filepath.Join(run.dir, "prod.kubeconfig"))
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("the kubeconfig has the mode %s", info.Mode())
	}
	mayNot := func(kubeconfig string) {
		t.Helper()
		for _, right := range []string{"get secrets", "get pods", "create pods", "delete nodes", "list configmaps"} {
			if got := g.try("kubectl --kubeconfig " + kubeconfig + " auth can-i -A " + right); strings.TrimSpace(got.Stdout) != "no" {
				t.Errorf("%s: may it %s? %s%s", kubeconfig, right, got.Stdout, got.Stderr)
			}
		}
		for _, kind := range []string{"pods", "deployments.apps"} {
			g.typed("kubectl --kubeconfig " + kubeconfig + " get " + kind + " -A")
		}
	}
	mayNot("prod.kubeconfig")

	s := harness.StartServer(t, "--config", filepath.Join(run.dir, "tidewaiter.yaml"))
	eventuallyShows(t, s, "the cluster", []string{"prod", "True"}, "get", "clusters")

	first := file("prod.kubeconfig")
	if got := follow(admin, "--name prod"); got.Code != 0 || !strings.Contains(got.Stdout, "the cluster prod was there before in tidewaiter.yaml") || file("tidewaiter.yaml") != after || file("prod.kubeconfig") == first {
		t.Errorf("the second time: exit code %d, %s%s", got.Code, got.Stdout, got.Stderr)
	}
	mayNot("prod.kubeconfig")

	// The commands make the same account; somebody who may runs them.
	c.Kubectl(t, "delete", "clusterrole,clusterrolebinding", "tidewaiter-follower")
	c.Kubectl(t, "delete", "serviceaccount", "tidewaiter-follower", "-n", "kube-system")
	must(t, os.Remove(filepath.Join(run.dir, "prod.kubeconfig")))
	g.typed("export KUBECONFIG=" + admin + "\n" + strings.ReplaceAll(commands.Stdout, "--context nobody", "--context admin"))
	if got := g.typed("kubectl config --kubeconfig prod.kubeconfig get-users"); strings.Join(strings.Fields(got), " ") != "NAME follower" {
		t.Errorf("the kubeconfig has the users %q", got)
	}
	mayNot("prod.kubeconfig")
}

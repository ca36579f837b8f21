package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// inCluster is a Tidewaiter that is part of a cluster, installed as docs/start/kubectl.md says. No
// kubelet runs its pod: it runs here with the arguments of its StatefulSet and the rights of its
// service account, and the Service leads to it by a name.
type inCluster struct {
	*harness.Server
	cluster *harness.Cluster
	args    []string
	config  string            // beside what is installed
	others  []*harness.Server // of several replicas
}

func install(t testing.TB, c *harness.Cluster, config string) *inCluster {
	t.Helper()
	s := &inCluster{cluster: c, config: config}
	s.documented(t, "helm install")
	s.awaitAvailable(t)
	return s
}

// documented runs the block of docs/start/kubectl.md in which a command is, in a folder that has
// deploy; a command of kubectl again until the cluster knows what was just installed. What needs a
// kubelet or a registry is left out. When the chart or deploy/kustomize is installed, the server is
// started.
func (s *inCluster) documented(t testing.TB, command string) {
	t.Helper()
	root := filepath.Dir(harness.ModuleDir(t))
	block := documentedBlock(t, command)
	dir, home := t.TempDir(), t.TempDir()
	must(t, os.Symlink(filepath.Join(root, "deploy"), filepath.Join(dir, "deploy")))
	env := []string{"PATH=" + filepath.Dir(harness.Tool(t, "helm")) + ":" + filepath.Dir(harness.Binary(t)) + ":" + os.Getenv("PATH"), "HOME=" + home, "KUBECONFIG=" + s.cluster.Kubeconfig(t, "admin", "admin")}
	for _, line := range lines(block) {
		if strings.HasPrefix(line, "make ") || strings.HasPrefix(line, "kubectl exec ") {
			continue
		}
		run := harness.Command{Path: "bash", Args: []string{"-o", "pipefail", "-c", line}, Dir: dir, Env: env}
		if strings.HasPrefix(line, "helm ") {
			harness.MustRun(t, run)
		} else {
			harness.Eventually(t, func() error {
				if got := harness.Run(t, run); got.Code != 0 {
					return fmt.Errorf("%s: %s%s", line, got.Stdout, got.Stderr)
				}
				return nil
			})
		}
		if strings.HasPrefix(line, "helm install ") || strings.HasPrefix(line, "kubectl kustomize ") {
			s.run(t)
		}
	}
}

// run starts the servers as the StatefulSet says, with the credential of their service account. If
// the chart brings an etcd for a trial, run starts that first.
func (s *inCluster) run(t testing.TB) {
	t.Helper()
	c, port, config := s.cluster, harness.FreePort(t), filepath.Join(t.TempDir(), "config.yaml")
	set := s.statefulSet(t, "tidewaiter")
	args := set.Spec.Template.Spec.Containers[0].Args
	if len(args) == 0 || args[0] != "serve" {
		t.Fatalf("the StatefulSet runs %q", args)
	}
	installed := c.Kubectl(t, "get", "configmap", "tidewaiter", "-n", "tidewaiter", "-o", `jsonpath={.data.config\.yaml}`)
	must(t, os.WriteFile(config, []byte(strings.Replace(installed, "{}", "", 1)+"\n"+s.config), 0o600))
	c.Kubectl(t, "delete", "service", "tidewaiter", "-n", "tidewaiter")
	c.Kubectl(t, "create", "service", "externalname", "tidewaiter", "-n", "tidewaiter", "--external-name=localhost")
	token := strings.TrimSpace(c.Kubectl(t, "create", "token", "tidewaiter", "-n", "tidewaiter"))
	here := s.runTrialEtcd(t)
	for i, arg := range args {
		if args[i] = here.Replace(arg); arg == "--pki-dir=/etc/tidewaiter/pki" {
			args[i] = "--pki-dir=" + s.secretDir(t, "tidewaiter-pki")
		}
	}
	for i := range set.Spec.Replicas {
		own := port // where the Service leads to
		if i > 0 {
			own = harness.FreePort(t)
		}
		full := append(slices.Clip(args[1:]), "--bind-address", "127.0.0.1", "--secure-port", own, "--config", config,
			"--cluster-kubeconfig", c.Kubeconfig(t, "tidewaiter", token), "--cluster-service", "tidewaiter/tidewaiter:"+port)
		switch {
		case i > 0:
			s.others = append(s.others, harness.StartServer(t, full...))
		case s.Server == nil:
			s.args, s.Server = full, harness.StartServer(t, full...)
		default:
			s.args, s.Server = full, harness.StartServerOn(t, s.DataDir, full...)
		}
	}
}

// statefulSet is the part of an installed StatefulSet that says what runs.
type statefulSet struct {
	Spec struct {
		Replicas int
		Template struct {
			Spec struct {
				Containers []struct{ Command, Args []string }
			}
		}
	}
}

func (s *inCluster) statefulSet(t testing.TB, name string) (set statefulSet) {
	t.Helper()
	must(t, json.Unmarshal([]byte(s.cluster.Kubectl(t, "get", "statefulset", name, "-n", "tidewaiter", "-o", "json")), &set))
	return set
}

// secretDir is a directory as a kubelet would mount a Secret.
func (s *inCluster) secretDir(t testing.TB, name string) string {
	t.Helper()
	var secret struct{ Data map[string][]byte }
	must(t, json.Unmarshal([]byte(s.cluster.Kubectl(t, "get", "secret", name, "-n", "tidewaiter", "-o", "json")), &secret))
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	for file, data := range secret.Data {
		must(t, os.WriteFile(filepath.Join(dir, file), data, 0o400))
	}
	return dir
}

// runTrialEtcd runs the etcd that the chart brings for a trial, if it has, and returns what
// replaces the names of its members by where they are here.
func (s *inCluster) runTrialEtcd(t testing.TB) *strings.Replacer {
	t.Helper()
	const name = "tidewaiter-etcd"
	if got := s.cluster.TryKubectl(t, "admin", "get", "statefulset", name, "-n", "tidewaiter"); got.Code != 0 {
		return strings.NewReplacer()
	}
	set := s.statefulSet(t, name)
	var names []string // of all members
	var own [][]string // of each member
	for i := range set.Spec.Replicas {
		pod := fmt.Sprintf("%s-%d", name, i)
		client, peer := "127.0.0.1:"+harness.FreePort(t), "127.0.0.1:"+harness.FreePort(t)
		names = append(names, fmt.Sprintf("%s.%s.tidewaiter.svc:2379", pod, name), client, fmt.Sprintf("%s.%s.tidewaiter.svc:2380", pod, name), peer)
		own = append(own, []string{"$(POD_NAME).tidewaiter-etcd.tidewaiter.svc:2379", client, "$(POD_NAME).tidewaiter-etcd.tidewaiter.svc:2380", peer, "$(POD_NAME)", pod,
			"0.0.0.0:2379", client, "0.0.0.0:2380", peer, "0.0.0.0:2381", "127.0.0.1:" + harness.FreePort(t), "/var/lib/etcd", t.TempDir()})
	}
	here := strings.NewReplacer(names...)
	for _, replaced := range own {
		container := set.Spec.Template.Spec.Containers[0]
		args, member := append(container.Command[1:], container.Args...), strings.NewReplacer(replaced...)
		for i, arg := range args {
			args[i] = here.Replace(member.Replace(arg))
		}
		harness.Start(t, harness.Command{Path: harness.Tool(t, container.Command[0]), Args: args})
	}
	return here
}

func deployed(t testing.TB, name string) string {
	return filepath.Join(filepath.Dir(harness.ModuleDir(t)), "deploy", name)
}

var clusterGroups = []string{"v1.image.openshift.io", "v1.config.openshift.io", "v1.tidewaiter.dev"}

// awaitAvailable waits until kube-apiserver passes requests for groups on; for all of ours if none
// is given.
func (s *inCluster) awaitAvailable(t testing.TB, groups ...string) {
	t.Helper()
	if len(groups) == 0 {
		groups = clusterGroups
	}
	for _, name := range groups {
		harness.Eventually(t, func() error {
			got := s.cluster.TryKubectl(t, "admin", "get", "apiservice", name, "-o", `jsonpath={.status.conditions[?(@.type=="Available")]}`)
			if got.Code != 0 || !strings.Contains(got.Stdout, `"status":"True"`) {
				return fmt.Errorf("%s: %s%s", name, got.Stdout, got.Stderr)
			}
			return nil
		})
	}
}

// eventually waits until kubectl as a user exits with a code and says all of want.
func (s *inCluster) eventually(t *testing.T, user string, code int, want []string, args ...string) {
	t.Helper()
	harness.Eventually(t, func() error {
		got := s.cluster.TryKubectl(t, user, args...)
		for _, w := range want {
			if got.Code != code || !strings.Contains(got.Stdout+got.Stderr, w) {
				return fmt.Errorf("%s as %s: code %d, lacks %q: %s%s", args, user, got.Code, w, got.Stdout, got.Stderr)
			}
		}
		return nil
	})
}

// Three servers over the etcd that the chart brings for a trial, installed as docs/tasks/scale.md
// says, are an API server of a real cluster.
func TestTrialOfSeveralServers(t *testing.T) {
	t.Parallel()
	s := &inCluster{cluster: harness.StartCluster(t)}
	s.documented(t, "etcd.trial.enabled=true")
	s.awaitAvailable(t)
	if len(s.others) != 2 {
		t.Fatalf("there are %d servers", 1+len(s.others))
	}
	for i, other := range s.others {
		name := fmt.Sprintf("image-%d", i)
		other.KubectlStdin(t, plainImage(name), "create", "-f", "-")
		if got := s.cluster.Kubectl(t, "get", "images", "-o", "name"); !strings.Contains(got, "/"+name+"\n") {
			t.Errorf("the cluster has no %s, which was created at another server: %s", name, got)
		}
	}
}

// Tidewaiter is an API server of a real cluster: its users, its roles, its pods; and stays one when
// either side is killed.
func TestInsideACluster(t *testing.T) {
	t.Parallel()
	r := registry.Start(t, registry.Distribution)
	c := harness.StartCluster(t)
	dryRun(t, c)
	s := install(t, c, fmt.Sprintf("streams: {namespaces: [{prefix: %s/shop, namespace: shop}]}\n", r.Host))
	for i := range 5 {
		c.Apply(t, plainImage(fmt.Sprintf("image-%d", i)))
	}

	t.Run("administrator", func(t *testing.T) {
		wantContains(t, "the table", c.Kubectl(t, "get", "images", "-o", "wide"), "VERDICT", "PODS", "image-0", "image-4")
		wantContains(t, "explain", c.Kubectl(t, "explain", "image.signatures"), "FIELDS", "conditions")
		var page struct {
			Metadata struct{ Continue string }
			Items    []any
		}
		must(t, json.Unmarshal([]byte(c.Kubectl(t, "get", "--raw", imagesPath+"?limit=2")), &page))
		if len(page.Items) != 2 || page.Metadata.Continue == "" {
			t.Errorf("a page of two has %d, continue %q", len(page.Items), page.Metadata.Continue)
		}
		if got := lines(c.Kubectl(t, "get", "images", "--chunk-size=2", "-o", "name")); len(got) != 5 {
			t.Errorf("pages of two have %v", got)
		}
	})

	t.Run("watch", func(t *testing.T) {
		watch := harness.Start(t, c.KubectlCommand(t, "admin", "get", "images", "--watch"))
		watch.Stdout.AwaitMatch(t, regexp.MustCompile(`image-4`))
		c.Apply(t, plainImage("watched"))
		watch.Stdout.AwaitMatch(t, regexp.MustCompile(`watched`))
		watch.Kill(t)
	})

	t.Run("roles", func(t *testing.T) {
		s.eventually(t, "nobody", 1, []string{"Forbidden", `User "nobody" cannot list resource "images"`}, "get", "images")
		c.Kubectl(t, "create", "clusterrolebinding", "viewer", "--clusterrole=view", "--user=viewer")
		s.eventually(t, "viewer", 0, []string{"VERDICT", "image-0"}, "get", "images", "-o", "wide")
		s.eventually(t, "viewer", 1, []string{`User "viewer" cannot delete resource "images"`}, "delete", "image", "image-0")
	})

	t.Run("kubectl images", func(t *testing.T) { // with the viewer's own rights and kubeconfig
		image := images.Numbered(t, 1)[0]
		ref := r.Push(t, "viewed/app:v1", image)
		c.Kubectl(t, "create", "namespace", "viewed")
		harness.Eventually(t, func() error {
			// a pod is refused until its namespace has a service account
			if got := c.TryKubectl(t, "admin", "run", "web", "-n", "viewed", "--image", ref); got.Code != 0 {
				return fmt.Errorf("%s", got.Stderr)
			}
			return nil
		})
		harness.Eventually(t, func() error {
			got := harness.Run(t, harness.Command{Path: harness.Binary(t), Args: []string{"images", "-n", "viewed", "--kubeconfig", c.Kubeconfig(t, "viewer", "viewer")}})
			row := strings.Join([]string{ref, images.Digest(t, image).String()[len("sha256:"):][:12], "NoPolicy", "1"}, " ")
			if got.Code != 0 || !strings.Contains(strings.Join(strings.Fields(got.Stdout), " "), row) {
				return fmt.Errorf("exit code %d, want %q: %s%s", got.Code, row, got.Stdout, got.Stderr)
			}
			return nil
		})
		c.Kubectl(t, "delete", "pod", "web", "-n", "viewed", "--force")
	})

	t.Run("on its own port", func(t *testing.T) {
		wantContains(t, "the local administrator's list", s.Kubectl(t, "get", "images"), "image-0")
		if got := s.TryKubectl(t, "get", "pods"); got.Code == 0 {
			t.Error("the server has kinds that the cluster has")
		}
		masters := http.Header{"X-Remote-User": {"root"}, "X-Remote-Group": {"system:masters"}}
		for _, try := range []struct {
			what, token string
			header      http.Header
			want        int
		}{
			{"a viewer of the cluster", "viewer", nil, 200},
			{"a user of the cluster without a role", "nobody", nil, 403},
			{"a token that nobody knows", "unknown", nil, 401},
			{"nobody", "", nil, 401},
			{"headers as kube-apiserver's, without its certificate", "", masters, 401},
			{"such headers beside a token", "nobody", masters, 403},
		} {
			if got := s.ask(t, imagesPath, try.token, try.header); got != try.want {
				t.Errorf("%s is answered %d, want %d", try.what, got, try.want)
			}
		}
	})

	t.Run("pods", func(t *testing.T) {
		busybox := images.Busybox(t)
		ref, digest := r.Push(t, "team/app:1", busybox), images.Digest(t, busybox).String()
		pod := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"app","namespace":"default"},"spec":{"containers":[{"name":"main","image":%q}]}}`, ref)
		harness.Eventually(t, func() error { // until the namespace has its service account
			command := c.KubectlCommand(t, "admin", "apply", "-f", "-")
			command.Stdin = pod
			if got := harness.Run(t, command); got.Code != 0 {
				return fmt.Errorf("%s", got.Stderr)
			}
			return nil
		})
		s.eventually(t, "admin", 0, []string{"in-cluster:default:app", ref}, "get", "clusterpods")
		s.eventually(t, "viewer", 0, []string{"in-cluster", "True"}, "get", "clusters.tidewaiter.dev")
		// it was imported
		s.eventually(t, "viewer", 0, []string{digest}, "get", "images", "-o", "wide", "--field-selector", "used-by=in-cluster/default")
		s.eventually(t, "admin", 0, []string{"Imported"}, "get", "events", "-n", "default")
	})

	t.Run("follower in a pod", s.follower)

	// An editor of a namespace sees in it nothing of another namespace, and what is in it goes with
	// it.
	t.Run("namespaces", func(t *testing.T) {
		stream := func(name, spec string) string {
			file := filepath.Join(t.TempDir(), name+".json")
			must(t, os.WriteFile(file, fmt.Appendf(nil, `{"apiVersion":"image.openshift.io/v1","kind":"ImageStream","metadata":{"name":%q,"namespace":"team"},"spec":%s}`, name, spec), 0o600))
			return file
		}
		c.Kubectl(t, "create", "namespace", "team")
		c.Kubectl(t, "create", "rolebinding", "editor", "-n", "team", "--clusterrole=edit", "--user=nobody")
		s.eventually(t, "nobody", 0, []string{"own created"}, "create", "-f", stream("own", "{}"))
		s.eventually(t, "nobody", 1, []string{"may not get imagestreams/layers of default/"}, "create", "-f", stream("followed", fmt.Sprintf(`{"dockerImageRepository":"%s/team/app"}`, r.Host)))
		s.eventually(t, "admin", 0, []string{"followed created"}, "create", "-f", stream("followed", fmt.Sprintf(`{"dockerImageRepository":"%s/team/app"}`, r.Host)))
		c.Kubectl(t, "delete", "namespace", "team", "--wait=false")
		s.eventually(t, "admin", 1, []string{`"team" not found`}, "get", "namespace", "team")
		s.eventually(t, "admin", 0, []string{"No resources found"}, "get", "imagestreams", "-n", "team")
	})

	t.Run("namespaces of prefixes", func(t *testing.T) { s.testPrefixes(t, r) })

	t.Run("APIServices", func(t *testing.T) {
		c.Kubectl(t, "patch", "apiservice", "v1.tidewaiter.dev", "--type=merge", "-p", `{"spec":{"caBundle":null,"insecureSkipTLSVerify":true,"service":{"port":1}}}`)
		c.Kubectl(t, "patch", "apiservice", "v1.config.openshift.io", "--type=merge", "-p", `{"spec":{"service":{"name":"another"}}}`)
		s.eventually(t, "admin", 0, []string{"true "}, "get", "apiservice", "v1.tidewaiter.dev", "-o", `go-template={{not .spec.insecureSkipTLSVerify}} {{.spec.caBundle}}`)
		if got := c.Kubectl(t, "get", "apiservice", "v1.config.openshift.io", "-o", "jsonpath={.spec.service.name}"); got != "another" {
			t.Errorf("the group of another server leads to %q", got)
		}
		c.Kubectl(t, "patch", "apiservice", "v1.config.openshift.io", "--type=merge", "-p", `{"spec":{"service":{"name":"tidewaiter"}}}`)
		s.awaitAvailable(t)
	})

	// The alerts name what the server has, and whoever may read that sees it.
	t.Run("metrics", func(t *testing.T) {
		c.Kubectl(t, "create", "clusterrolebinding", "prometheus", "--clusterrole=tidewaiter:metrics", "--user=viewer")
		harness.Eventually(t, func() error {
			if got := s.ask(t, "/metrics", "viewer", nil); got != http.StatusOK {
				return fmt.Errorf("a reader of metrics is answered %d", got)
			}
			return nil
		})
		if got := s.ask(t, "/metrics", "nobody", nil); got != http.StatusForbidden {
			t.Errorf("somebody else is answered %d", got)
		}
		// TestReplicas looks for what only several servers have.
		named := slices.DeleteFunc(metricsOf(alertRules(t)...), func(name string) bool {
			return isOfReplicas(name) || rare[name] == everyFiveMinutes
		})
		// The figures of the queue are of receivers that have something in it.
		c.Apply(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"gone","namespace":"default"},"spec":{"containers":[{"name":"main","image":"%s/team/gone:1"}]}}`, r.Host))
		harness.Eventually(t, func() error {
			have := "\n" + s.Kubectl(t, "get", "--raw", "/metrics")
			for _, name := range named {
				if !strings.Contains(have, "\n"+name+" ") && !strings.Contains(have, "\n"+name+"{") {
					return fmt.Errorf("an alert is about %s, which the server does not have", name)
				}
			}
			return nil
		})
		if len(named) < 8 {
			t.Errorf("the alerts are about %v", named)
		}
		s.documented(t, "prometheusRule.enabled=true")
		if got := c.Kubectl(t, "get", "prometheusrule,servicemonitor", "-n", "tidewaiter", "-o", "name"); len(lines(got)) != 2 {
			t.Errorf("for the operator of Prometheus there is %s", got)
		}
	})

	t.Run("admission", func(t *testing.T) { s.testAdmission(t, r) })

	s.away(t, func() { s.testAdmissionAway(t, r) })

	c.Restart(t)
	s.awaitAvailable(t)
	s.eventually(t, "viewer", 0, []string{"image-0"}, "get", "images")
	c.Kubectl(t, "delete", "pods", "app", "gone", "--force")
	harness.Eventually(t, func() error { // the pods are followed again
		if got := c.TryKubectl(t, "admin", "get", "clusterpods", "-o", "name"); got.Code != 0 || strings.TrimSpace(got.Stdout) != "" {
			return fmt.Errorf("%s%s", got.Stdout, got.Stderr)
		}
		return nil
	})

	// What the chart installed goes, but for the data, which deploy/kustomize takes on.
	s.documented(t, "helm uninstall")
	s.eventually(t, "admin", 1, []string{"the server could not find the requested resource"}, "get", "--raw", imagesPath)
	if got := c.Kubectl(t, "get", "clusterroles,clusterrolebindings,apiservices", "-l", "app.kubernetes.io/name=tidewaiter", "-o", "name"); got != "" {
		t.Errorf("without the chart there is %s", got)
	}
	s.Kill(t)
	c.Kubectl(t, "delete", "namespace", "tidewaiter")
	s.documented(t, "kubectl kustomize")
	s.awaitAvailable(t)
	s.eventually(t, "viewer", 0, []string{"image-0"}, "get", "images")
}

// testPrefixes has repositories below a prefix, whose streams belong into a namespace that the
// cluster does not have at first.
func (s *inCluster) testPrefixes(t *testing.T, r *registry.Registry) {
	c := s.cluster
	runs := func(name, repository string, image v1.Image) string {
		t.Helper()
		ref, digest := r.Push(t, repository, image), images.Digest(t, image).String()
		c.Apply(t, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"default"},"spec":{"containers":[{"name":"main","image":%q}]}}`, name, ref))
		s.eventually(t, "admin", 0, []string{digest}, "get", "images", "-o", "wide")
		return digest
	}
	imgs := images.Numbered(t, 3)
	runs("web-1", "shop/web:1", imgs[0])
	harness.Eventually(t, func() error {
		if log := s.Logs(); !strings.Contains(log, "because the namespace does not exist") || !strings.Contains(log, "namespace=shop") {
			return fmt.Errorf("no warning: %s", log)
		}
		return nil
	})
	if got := c.Kubectl(t, "get", "imagestreams", "-A", "-o", "name"); strings.Contains(got, "web") {
		t.Errorf("without the namespace there are the streams %s", got)
	}

	c.Kubectl(t, "create", "namespace", "shop")
	c.Kubectl(t, "create", "rolebinding", "shopkeeper", "-n", "shop", "--clusterrole=view", "--user=nobody")
	second := runs("web-2", "shop/web:2", imgs[1])
	s.eventually(t, "nobody", 0, []string{"web", "1", "2"}, "get", "imagestreams", "-n", "shop")
	s.eventually(t, "nobody", 0, []string{second}, "get", "imagestreamtag", "web:2", "-n", "shop", "-o", "jsonpath={.image.metadata.name}")
	s.eventually(t, "nobody", 1, []string{`User "nobody" cannot list resource "imagestreams"`}, "get", "imagestreams", "-n", "default")

	// It goes with the namespace, and nothing else waits for it.
	c.Kubectl(t, "delete", "namespace", "shop", "--wait=false")
	third := runs("web-3", "shop/web:3", imgs[2])
	c.Kubectl(t, "wait", "--for=delete", "namespace/shop", "--timeout=110s")
	s.eventually(t, "admin", 0, []string{third}, "get", "imagetag", "-n", "default", strings.ReplaceAll(r.Host, ":", "_")+"--shop--web:3", "-o", "jsonpath={.image.metadata.name}{.status.items[0].image}")
	if got := c.Kubectl(t, "get", "imagestreams", "-A", "-o", "name"); strings.Contains(got, "web") {
		t.Errorf("after the namespace there are the streams %s", got)
	}
	c.Kubectl(t, "delete", "pods", "web-1", "web-2", "web-3", "--force")
}

// follower is a server on its own in a pod of the cluster, which follows it by the service account
// that a kubelet gives the pod.
func (s *inCluster) follower(t *testing.T) {
	token := strings.TrimSpace(s.cluster.Kubectl(t, "create", "token", "tidewaiter", "-n", "tidewaiter"))
	kubeconfig, err := clientcmd.LoadFromFile(s.cluster.Kubeconfig(t, "tidewaiter", token))
	must(t, err)
	at := kubeconfig.Clusters["tidewaiter"]
	ca, err := os.ReadFile(at.CertificateAuthority)
	must(t, err)
	dir := t.TempDir()
	for name, text := range map[string]string{"account/token": token, "account/ca.crt": string(ca), "account/namespace": "tidewaiter", "config.yaml": "clusters: [{name: home, importRunning: false}]"} {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	run := harness.ServeCommand(t, filepath.Join(dir, "data"), "--config", filepath.Join(dir, "config.yaml"))
	const mounted = `mount -t tmpfs none /run && mkdir -p /run/secrets/kubernetes.io && cp -r "$0" /run/secrets/kubernetes.io/serviceaccount && exec "$@"`
	as := []string{"--map-root-user", "--mount", "sh", "-c", mounted, filepath.Join(dir, "account")}
	if out, err := exec.CommandContext(t.Context(), "unshare", append(as, "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")...).CombinedOutput(); err != nil || string(out) != token {
		t.Skipf("*** SKIPPED: no pod is played, as this machine lets nobody mount in a namespace of his own: %v\n%s", err, out)
	}
	host, port, err := net.SplitHostPort(strings.TrimPrefix(at.Server, "https://"))
	must(t, err)
	run.Args, run.Path = append(append(as, run.Path), run.Args...), "unshare"
	run.Env = append(run.Env, "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
	p := harness.Start(t, run)
	p.Stdout.AwaitMatch(t, regexp.MustCompile(`is ready at`))
	kubectl := harness.Command{Path: harness.Tool(t, "kubectl"), Env: []string{"HOME=" + dir}, Args: []string{"--kubeconfig", filepath.Join(dir, "data", "admin.kubeconfig"), "get", "clusterpods", "-o", "name"}}
	harness.Eventually(t, func() error {
		if got := harness.Run(t, kubectl); got.Code != 0 || !strings.Contains(got.Stdout, "home:default:app") {
			return fmt.Errorf("%s%s", got.Stdout, got.Stderr)
		}
		return nil
	})
	p.Kill(t)
}

// away kills the server, and looks at what the cluster still does, and besides at something else.
// Kubernetes' namespace controller takes away what is in a namespace, but does not let go of it
// before it knows that an API which does not answer has nothing there. Who cannot wait takes the
// APIServices away.
func (s *inCluster) away(t *testing.T, besides func()) {
	c := s.cluster
	configMap := func(namespace, name, owner string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":%q,"ownerReferences":[%s]}}`, name, namespace, owner)
	}
	for _, namespace := range []string{"waits", "old-team"} {
		c.Kubectl(t, "create", "namespace", namespace)
		c.Apply(t, configMap(namespace, "content", ""))
		c.Apply(t, fmt.Sprintf(`{"apiVersion":"image.openshift.io/v1","kind":"ImageStream","metadata":{"name":"left","namespace":%q}}`, namespace))
	}
	c.Apply(t, configMap("default", "owner", ""))
	uid := c.Kubectl(t, "get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
	c.Apply(t, configMap("default", "owned", fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","name":"owner","uid":%q}`, uid)))

	s.Kill(t)
	if got := c.TryKubectl(t, "admin", "get", "images"); got.Code == 0 {
		t.Errorf("images are there without a server: %s", got.Stdout)
	}
	besides()
	c.Kubectl(t, "delete", "configmap", "owner")
	s.eventually(t, "admin", 1, []string{`"owned" not found`}, "get", "configmap", "owned")
	c.Kubectl(t, "delete", "namespace", "waits", "--wait=false")
	s.eventually(t, "admin", 0, []string{"Failure:True:"}, "get", "namespace", "waits", "-o", `jsonpath={range .status.conditions[*]}{.type}:{.status}:{.message}{"\n"}{end}`)
	s.eventually(t, "admin", 1, []string{`"content" not found`}, "get", "configmap", "content", "-n", "waits")

	s.Server = harness.StartServerOn(t, s.DataDir, s.args...)
	s.awaitAvailable(t)
	s.eventually(t, "admin", 0, []string{"image-0", "watched"}, "get", "images")
	// it is tried again after a minute at most
	c.Kubectl(t, "wait", "--for=delete", "namespace/waits", "--timeout=110s")
	s.eventually(t, "admin", 0, []string{"No resources found"}, "get", "imagestreams", "-n", "waits")

	s.Kill(t)
	c.Kubectl(t, "delete", "namespace", "old-team", "--wait=false")
	s.documented(t, "kubectl delete apiservices")
	c.Kubectl(t, "wait", "--for=delete", "namespace/old-team", "--timeout=110s")
	s.Server = harness.StartServerOn(t, s.DataDir, s.args...)
	s.documented(t, "--reset-then-reuse-values")
	s.eventually(t, "admin", 0, []string{"No resources found"}, "get", "imagestreams", "-n", "old-team")
}

// ask asks the server itself, not through kube-apiserver.
func (s *inCluster) ask(t *testing.T, path, token string, header http.Header) int {
	t.Helper()
	ca, err := os.ReadFile(filepath.Join(s.DataDir, "pki", "ca.crt"))
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	must(t, err)
	if header != nil {
		request.Header = header.Clone()
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	must(t, err)
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

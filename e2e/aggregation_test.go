package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// inCluster is a Tidewaiter that is part of a cluster, installed from deploy/kustomize. No kubelet runs its pod: it runs
// here with the rights of its service account, and the Service leads to it by a name.
type inCluster struct {
	*harness.Server
	cluster *harness.Cluster
	args    []string
}

func startInCluster(t *testing.T) *inCluster {
	t.Helper()
	c := harness.StartCluster(t)
	c.Kubectl(t, "create", "namespace", "tidewaiter")
	base := c.Kubectl(t, "kustomize", deployed(t, "kustomize"))
	c.Apply(t, base, "--server-side", "--dry-run=server")
	c.Apply(t, base)
	port := harness.FreePort(t)
	c.Kubectl(t, "delete", "service", "tidewaiter", "-n", "tidewaiter")
	c.Kubectl(t, "create", "service", "externalname", "tidewaiter", "-n", "tidewaiter", "--external-name=localhost")
	token := strings.TrimSpace(c.Kubectl(t, "create", "token", "tidewaiter", "-n", "tidewaiter"))
	s := &inCluster{cluster: c, args: []string{"--secure-port", port, "--cluster", "--cluster-kubeconfig", c.Kubeconfig(t, "tidewaiter", token), "--cluster-service", "tidewaiter/tidewaiter:" + port}}
	s.Server = harness.StartServer(t, s.args...)
	s.awaitAvailable(t)
	return s
}

func deployed(t *testing.T, name string) string {
	return filepath.Join(filepath.Dir(harness.ModuleDir(t)), "deploy", name)
}

var clusterGroups = []string{"v1.image.openshift.io", "v1.config.openshift.io", "v1.tidewaiter.dev"}

// awaitAvailable waits until kube-apiserver passes requests on.
func (s *inCluster) awaitAvailable(t *testing.T) {
	t.Helper()
	for _, name := range clusterGroups {
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

// Tidewaiter is an API server of a real cluster: its users, its roles, its pods; and stays one when either side is killed.
func TestInsideACluster(t *testing.T) {
	r := registry.Start(t, registry.Distribution)
	s := startInCluster(t)
	c := s.cluster
	for i := range 5 {
		c.Apply(t, plainImage(fmt.Sprintf("image-%d", i)))
	}

	t.Run("administrator", func(t *testing.T) {
		wantContains(t, "the table", c.Kubectl(t, "get", "images", "-o", "wide"), "VERIFIED", "PODS", "image-0", "image-4")
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
		s.eventually(t, "viewer", 0, []string{"VERIFIED", "image-0"}, "get", "images", "-o", "wide")
		s.eventually(t, "viewer", 1, []string{`User "viewer" cannot delete resource "images"`}, "delete", "image", "image-0")
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
		s.eventually(t, "viewer", 0, []string{digest}, "get", "images", "--field-selector", "used-by=in-cluster/default") // it was imported
		s.eventually(t, "admin", 0, []string{"Imported"}, "get", "events", "-n", "default")
	})

	// An editor of a namespace sees in it nothing of another namespace, and what is in it goes with it.
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

	s.Kill(t)
	if got := c.TryKubectl(t, "admin", "get", "images"); got.Code == 0 {
		t.Errorf("images are there without a server: %s", got.Stdout)
	}
	c.Kubectl(t, "get", "namespaces")
	s.Server = harness.StartServerOn(t, s.DataDir, s.args...)
	s.awaitAvailable(t)
	s.eventually(t, "admin", 0, []string{"image-0", "watched"}, "get", "images")

	c.Restart(t)
	s.awaitAvailable(t)
	s.eventually(t, "viewer", 0, []string{"image-0"}, "get", "images")
	c.Kubectl(t, "delete", "pod", "app", "--force")
	harness.Eventually(t, func() error { // the pods are followed again
		if got := c.TryKubectl(t, "admin", "get", "clusterpods", "-o", "name"); got.Code != 0 || strings.TrimSpace(got.Stdout) != "" {
			return fmt.Errorf("%s%s", got.Stdout, got.Stderr)
		}
		return nil
	})
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

package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// identity is somebody who asks, and what they may do.
type identity struct {
	name   string
	config *rest.Config
	// known says whether the credential proves anything.
	known bool
	// may has the verbs for each resource, or resource/subresource; nil is everything.
	may map[string][]string
	// bounded says that it is so in the one namespace alone.
	bounded bool
}

var (
	reading = []string{"get", "list", "watch"}
	writing = []string{"create", "update", "patch", "delete", "deletecollection"}
	working = slices.Concat(reading, writing)
)

// TestEndpointsByIdentity asks for every endpoint of the table as seven identities: who
// proves nothing is answered 401, who may not 403 with a Status that names them, and
// who may is answered as the administrator is. The roles are the bootstrap roles.
func TestEndpointsByIdentity(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	s := harness.StartServer(t, "--pod-logs-dir", logs)
	own := readAuthority(t, s.DataDir)
	const namespace = "team"
	s.Kubectl(t, "create", "clusterrolebinding", "viewer", "--clusterrole=view", "--user=viewer")
	s.Kubectl(t, "create", "rolebinding", "editor", "--namespace", namespace, "--clusterrole=edit", "--group=editors")
	s.Kubectl(t, "create", "serviceaccount", "importer", "--namespace", "ci")
	s.Kubectl(t, "create", "clusterrolebinding", "importer", "--clusterrole=tidewaiter:importer", "--serviceaccount=ci:importer")
	token := strings.TrimSpace(s.Kubectl(t, "create", "token", "importer", "--namespace", "ci"))

	identities := []identity{
		{name: "nobody", config: s.Anonymous(t)},
		{name: "unknown token", config: withToken(s.Anonymous(t), "unknown")},
		{name: "expired certificate", config: own.clientUntil(t, s.Anonymous(t), time.Now().Add(-time.Minute), "root", "system:masters")},
		{name: "viewer", config: own.client(t, s.Anonymous(t), "viewer"), known: true, may: map[string][]string{
			"image": reading, "pod": reading, "pod/log": reading, "pod/status": reading,
			"service": reading, "service/status": reading, "event": reading,
		}},
		{name: "editor of the namespace", config: own.client(t, s.Anonymous(t), "ed", "editors"), known: true, bounded: true, may: map[string][]string{
			"pod": working, "pod/log": reading, "pod/status": reading,
			"service": working, "service/status": reading, "event": working, "lease": working,
		}},
		{name: "importing service account", config: withToken(s.Anonymous(t), token), known: true, may: map[string][]string{
			"image": {"get", "list", "watch", "create", "update", "patch"}, "event": {"create", "patch"},
		}},
		{name: "administrator", config: s.Config(t), known: true},
	}
	clients := make([]*http.Client, len(identities))
	for i, who := range identities {
		who.config.QPS = -1
		var err error
		if clients[i], err = rest.HTTPClientFor(who.config); err != nil {
			t.Fatal(err)
		}
	}
	awaitRoles(t, s)

	caller, table := newCaller(t, s.Config(t)), readEndpoints(t)
	matrix := make([]string, len(table))
	walk := func(e endpoint) string {
		var matrix strings.Builder
		t.Run(strings.ReplaceAll(e.String(), "/", "∕"), func(t *testing.T) {
			p := &probe{T: t, caller: caller, endpoint: e, scope: namespace, logs: logs, kind: kinds[e.resource]}
			defer p.clear()
			fmt.Fprintf(&matrix, "%-7s %s:", e.resource, e)
			for i, who := range identities {
				p.fresh()
				p.asker = clients[i]
				query := url.Values{}
				if e.writes() {
					query.Set("dryRun", "All")
				}
				got := p.do(query)
				fmt.Fprintf(&matrix, " %d", got.code)
				status, _ := got.object()["message"].(string)
				switch {
				case !who.known:
					if got.code != http.StatusUnauthorized {
						t.Errorf("%s: %d, want 401: %s", who.name, got.code, got.body)
					}
				case !who.mayAsk(e):
					if got.code != http.StatusForbidden || !strings.Contains(status, "User ") || got.object()["reason"] != "Forbidden" {
						t.Errorf("%s: %d, want 403 and a Status: %s", who.name, got.code, got.body)
					}
				case !slices.Contains(e.codes, fmt.Sprint(got.code)):
					t.Errorf("%s: %d, want one of %s: %s", who.name, got.code, e.codes, got.body)
				}
			}
			fmt.Fprintln(&matrix)
		})
		return matrix.String()
	}
	// Objects of different kinds do not meet. Most of a walk is waiting for watches to end.
	var walks sync.WaitGroup
	for resource := range kinds {
		walks.Go(func() {
			for i, e := range table {
				if e.resource == resource {
					matrix[i] = walk(e)
				}
			}
		})
	}
	walks.Wait()
	t.Logf("endpoints and what %d identities were answered:\n%s", len(identities), strings.Join(matrix, ""))
}

// mayAsk says whether an identity is granted an endpoint.
func (i identity) mayAsk(e endpoint) bool {
	if i.bounded && !strings.Contains(e.path, "{namespace}") {
		return false
	}
	resource := e.resource
	if sub := e.subresource(); sub != "" {
		resource += "/" + sub
	}
	return i.may == nil || slices.Contains(i.may[resource], verbs[e.form()])
}

// verbs are what RBAC calls the forms.
var verbs = map[form]string{
	list: "list", watchEvents: "watch", read: "get", podLog: "get", create: "create",
	replace: "update", patch: "patch", remove: "delete", removeCollection: "deletecollection",
}

// awaitRoles waits until the server goes by the last binding that was made, and what
// it aggregates roles of is there.
func awaitRoles(t *testing.T, s *harness.Server) {
	t.Helper()
	for _, question := range [][]string{
		{"list", "pods", "--as", "viewer"}, {"list", "images", "--as", "viewer"},
		{"create", "pods", "--namespace", "team", "--as", "ed", "--as-group", "editors"},
		{"create", "images", "--as", "system:serviceaccount:ci:importer"},
	} {
		harness.Eventually(t, func() error {
			if got := s.TryKubectl(t, append([]string{"auth", "can-i"}, question...)...); strings.TrimSpace(got.Stdout) != "yes" {
				return fmt.Errorf("can-i %q: %s%s", question, got.Stdout, got.Stderr)
			}
			return nil
		})
	}
}

//go:build nightly

package e2e

import (
	"bytes"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	_ "github.com/mattn/go-sqlite3" // Gitea's database

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
)

// gitea is a running Gitea with a user.
type gitea struct {
	host, dir      string
	user, password string
}

// startGitea starts a Gitea whose webhooks may lead to this machine, and trust a CA that need not
// exist yet.
func startGitea(t *testing.T, ca string) *gitea {
	t.Helper()
	program := harness.Tool(t, "gitea")
	source, err := os.ReadFile(program + ".source")
	must(t, err)
	g := &gitea{dir: t.TempDir(), user: "acme", password: "correct-horse-1"}
	port := harness.FreePort(t)
	g.host = "127.0.0.1:" + port
	config := filepath.Join(g.dir, "app.ini")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true
WORK_PATH = %[1]s
RUN_MODE = prod
[database]
DB_TYPE = sqlite3
PATH = %[1]s/gitea.db
SQLITE_JOURNAL_MODE = WAL
[repository]
ROOT = %[1]s/repositories
[server]
HTTP_ADDR = 127.0.0.1
HTTP_PORT = %[2]s
ROOT_URL = http://127.0.0.1:%[2]s/
STATIC_ROOT_PATH = %[3]s
DISABLE_SSH = true
OFFLINE_MODE = true
[security]
INSTALL_LOCK = true
[webhook]
ALLOWED_HOST_LIST = loopback
[packages]
ENABLED = true
[log]
LEVEL = Warn
`, g.dir, port, source), 0o600))
	command := func(args ...string) harness.Command {
		return harness.Command{Path: program, Args: append([]string{"--config", config}, args...), Dir: g.dir, Env: []string{"HOME=" + g.dir, "GITEA_WORK_DIR=" + g.dir, "SSL_CERT_FILE=" + ca}}
	}
	harness.MustRun(t, command("migrate"))
	harness.MustRun(t, command("admin", "user", "create", "--username", g.user, "--password", g.password, "--email", "acme@example.com", "--admin", "--must-change-password=false"))
	harness.Start(t, command("web"))
	harness.Eventually(t, func() error {
		resp, err := http.Get("http://" + g.host + "/api/healthz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("healthz: %s", resp.Status)
		}
		return nil
	})
	return g
}

// do sends a request to Gitea's API.
func (g *gitea) do(t *testing.T, method, path string, body any) []byte {
	t.Helper()
	content, err := json.Marshal(body)
	must(t, err)
	req, err := http.NewRequest(method, "http://"+g.host+path, bytes.NewReader(content))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.SetBasicAuth(g.user, g.password)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	must(t, err)
	if resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %s: %s", method, path, resp.Status, answer)
	}
	return answer
}

func (g *gitea) auth() remote.Option {
	return remote.WithAuth(&authn.Basic{Username: g.user, Password: g.password})
}

func (g *gitea) reference(t *testing.T, ref string) name.Reference {
	t.Helper()
	parsed, err := name.ParseReference(g.host+"/"+ref, name.Insecure)
	must(t, err)
	return parsed
}

func (g *gitea) push(t *testing.T, ref string, what remote.Taggable) {
	t.Helper()
	var err error
	if index, is := what.(v1.ImageIndex); is {
		err = remote.WriteIndex(g.reference(t, ref), index, g.auth())
	} else {
		err = remote.Write(g.reference(t, ref), what.(v1.Image), g.auth())
	}
	must(t, err)
}

// stored is where each tag leads by Gitea's own tables and files, as repository:tag.
func (g *gitea) stored(t *testing.T) map[string]string {
	t.Helper()
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(g.dir, "gitea.db")+"?mode=ro")
	must(t, err)
	defer db.Close()
	rows, err := db.QueryContext(t.Context(), `SELECT u.lower_name, p.lower_name, v.lower_version, b.hash_sha256
FROM package p JOIN "user" u ON u.id = p.owner_id JOIN package_version v ON v.package_id = p.id
JOIN package_file f ON f.version_id = v.id JOIN package_blob b ON b.id = f.blob_id
WHERE p.type = 'container' AND v.is_internal = 0 AND f.is_lead = 1 AND v.lower_version NOT LIKE 'sha256:%'`)
	must(t, err)
	defer rows.Close()
	all := map[string]string{}
	for rows.Next() {
		var owner, pkg, tag, hash string
		must(t, rows.Scan(&owner, &pkg, &tag, &hash))
		content, err := os.ReadFile(filepath.Join(g.dir, "data", "packages", hash[:2], hash[2:4], hash))
		must(t, err)
		if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != hash {
			t.Fatalf("%s/%s:%s has other bytes", owner, pkg, tag)
		}
		all[owner+"/"+pkg+":"+tag] = "sha256:" + hash
	}
	must(t, rows.Err())
	return all
}

// knownTags is where the tags of a registry lead by what a server knows, without those that are
// gone.
func knownTags(t *testing.T, s *harness.Server, host string) map[string]string {
	t.Helper()
	var list struct {
		Items []struct {
			Spec   struct{ From struct{ Name string } }
			Status struct{ Items []struct{ Image string } }
		}
	}
	must(t, json.Unmarshal([]byte(s.Kubectl(t, "get", "imagetags", "-n", "default", "-o", "json")), &list))
	all := map[string]string{}
	for _, tag := range list.Items {
		ref, is := strings.CutPrefix(tag.Spec.From.Name, host+"/")
		if is && len(tag.Status.Items) > 0 && tag.Status.Items[0].Image != "" {
			all[ref] = tag.Status.Items[0].Image
		}
	}
	return all
}

// TestGitea: what a server knows from the webhooks of a real Gitea alone is what Gitea has in its
// tables and files in the end: after pushes, tags that go back and forth, and deletions by the
// registry and by the API of packages. Then Gitea's webhooks are gone, and sweeps find the same by
// Gitea's list of packages, also new repositories. A real zot is missing here: its module path
// contradicts its go.mod, so Go's proxy has none; package importer/registrytest imitates it.
func TestGitea(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	g := startGitea(t, filepath.Join(data, "pki", "ca.crt"))
	must(t, os.WriteFile(filepath.Join(dir, "hook-secret"), []byte(hookSecret+"\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "auth.json"), fmt.Appendf(nil, `{"auths":{"%s":{"auth":"%s"}}}`, g.host, base64.StdEncoding.EncodeToString([]byte(g.user+":"+g.password))), 0o600))
	config := filepath.Join(dir, "tidewaiter.yaml")
	text := fmt.Sprintf(`ownPodsOnly: true
authFile: auth.json
receivers:
- {name: gitea, type: gitea, hosts: ["%s"], secretFile: hook-secret}
`, g.host)
	must(t, os.WriteFile(config, []byte(text), 0o600))
	s := harness.StartServerOn(t, data, "--config", config)
	hook := g.do(t, http.MethodPost, "/api/v1/user/hooks", map[string]any{"type": "gitea", "active": true, "events": []string{"package"}, "config": map[string]string{
		"url": s.URL + "/hooks/gitea", "content_type": "json", "secret": hookSecret,
	}})

	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 46))
	pool := images.Numbered(t, 24)
	index := images.MultiArch(t)
	// change does something to the registry.
	change := func(repositories int) {
		repository := fmt.Sprintf("%s/app%d", g.user, random.IntN(repositories))
		tag := []string{"v1", "v2", "latest", "V1.0-RC"}[random.IntN(4)]
		switch ref := repository + ":" + tag; random.IntN(10) {
		case 0: // back and forth
			for _, i := range []int{0, 1, 0, 1, random.IntN(2)} {
				g.push(t, ref, pool[i])
			}
		case 1:
			g.push(t, ref, index)
		case 2, 3:
			stored := g.stored(t)
			if digest := stored[strings.ToLower(ref)]; digest != "" && random.IntN(2) == 0 {
				must(t, remote.Delete(g.reference(t, repository+"@"+digest), g.auth()))
			} else if digest != "" {
				must(t, remote.Delete(g.reference(t, ref), g.auth()))
			}
		case 4:
			if g.stored(t)[strings.ToLower(ref)] != "" {
				_, short, _ := strings.Cut(repository, "/")
				g.do(t, http.MethodDelete, fmt.Sprintf("/api/v1/packages/%s/container/%s/%s", g.user, short, strings.ToLower(tag)), nil)
			}
		default:
			g.push(t, ref, pool[random.IntN(len(pool))])
		}
	}
	// becomes waits until the server knows what Gitea has. Gitea reports a tag in lower case.
	becomes := func(what string) {
		t.Helper()
		want := g.stored(t)
		harness.Eventually(t, func() error {
			got := map[string]string{}
			for ref, digest := range knownTags(t, s, g.host) {
				got[strings.ToLower(ref)] = digest
			}
			if !maps.Equal(got, want) {
				return fmt.Errorf("seed %d, %s: %s", seed, what, cmp.Diff(want, got))
			}
			return nil
		})
		t.Logf("%s: %d tags, as stored", what, len(want))
		if len(want) < 3 {
			t.Errorf("seed %d: only %d tags are left", seed, len(want))
		}
	}
	for round := range 6 {
		for range 15 {
			change(4)
		}
		becomes(fmt.Sprintf("webhooks, round %d", round))
	}

	// No more webhooks.
	var made struct{ ID int64 }
	must(t, json.Unmarshal(hook, &made))
	g.do(t, http.MethodDelete, fmt.Sprintf("/api/v1/user/hooks/%d", made.ID), nil)
	for round := range 3 {
		for range 15 {
			change(6)
		}
		if code := s.Terminate(t); code != 0 {
			t.Fatalf("the server ends with %d", code)
		}
		must(t, os.WriteFile(config, []byte(text+fmt.Sprintf(`sweep:
  entries:
  - {repositories: ["%s/%s/**"], listing: gitea, every: 1h}
`, g.host, g.user)), 0o600))
		s = harness.StartServerOn(t, data, "--config", config) // which sweeps at once
		becomes(fmt.Sprintf("sweeps, round %d", round))
	}
}

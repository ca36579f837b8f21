package e2e

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// provider is a running provider of OpenID Connect, see e2e/oidc.
type provider struct {
	issuer, ca string // ca is PEM
	caFile     string
	client     *http.Client
}

const redirect = "http://localhost:8000"

var issuerLine = regexp.MustCompile(`issuer (https://\S+)`)

func startProvider(t *testing.T) *provider { return startProviderFor(t, redirect) }

// startProviderFor starts one whose client comes back to an address of its own.
func startProviderFor(t *testing.T, redirect string) *provider {
	t.Helper()
	file := filepath.Join(t.TempDir(), "ca.crt")
	p := harness.Start(t, harness.Command{Path: harness.Tool(t, "oidc"), Args: []string{"-ca", file, "-redirect", redirect}})
	issuer := p.Stdout.AwaitMatch(t, issuerLine)[1]
	ca, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &provider{issuer: issuer, ca: string(ca), caFile: file, client: &http.Client{
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// login goes the way of a browser, with PKCE, and returns an ID token.
func (p *provider) login(t *testing.T, user string) string {
	t.Helper()
	return p.loginFor(t, user, "openid profile")
}

// loginFor is login with other scopes.
func (p *provider) loginFor(t *testing.T, user, scopes string) string {
	t.Helper()
	verifier := rand.Text() + rand.Text()
	challenge := sha256.Sum256([]byte(verifier))
	at := p.follow(t, p.issuer+"auth?"+url.Values{
		"client_id": {"kubectl"}, "redirect_uri": {redirect}, "response_type": {"code"}, "scope": {scopes}, "state": {"s"},
		"code_challenge": {base64.RawURLEncoding.EncodeToString(challenge[:])}, "code_challenge_method": {"S256"},
	}.Encode(), nil)
	// The login page.
	at = p.follow(t, at.String(), url.Values{"id": {at.Query().Get("authRequestID")}, "username": {user}, "password": {"verysecure"}})
	at = p.follow(t, at.String(), nil)
	code := at.Query().Get("code")
	if code == "" {
		t.Fatalf("no code in %s", at)
	}
	resp, err := p.client.PostForm(p.issuer+"oauth/token", url.Values{
		"grant_type": {"authorization_code"}, "client_id": {"kubectl"}, "redirect_uri": {redirect}, "code": {code}, "code_verifier": {verifier},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var tokens struct {
		IDToken string `json:"id_token"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&tokens); err != nil || tokens.IDToken == "" {
		t.Fatalf("no ID token: %s, %v", resp.Status, err)
	}
	return tokens.IDToken
}

// follow asks for an address, with a form if there is one, and returns where it leads.
func (p *provider) follow(t *testing.T, at string, form url.Values) *url.URL {
	t.Helper()
	var resp *http.Response
	var err error
	if form == nil {
		resp, err = p.client.Get(at)
	} else {
		resp, err = p.client.PostForm(at, form)
	}
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	to, err := resp.Location()
	if err != nil {
		t.Fatalf("%s: %s leads nowhere: %v", at, resp.Status, err)
	}
	return to
}

// Real providers issue real tokens: those of two issuers are known by their own rules,
// written as CEL, and RBAC knows the groups that come of it.
func TestOpenIDConnect(t *testing.T) {
	t.Parallel()
	staff, guests := startProvider(t), startProvider(t)
	config := filepath.Join(t.TempDir(), "authentication.yaml")
	indent := func(pem string) string {
		return strings.ReplaceAll(strings.TrimSpace(pem), "\n", "\n        ")
	}
	text := fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: %s
    audiences: [kubectl]
    certificateAuthority: |
        %s
  claimMappings:
    username: {expression: "'staff:' + claims.sub"}
    groups: {expression: "claims.sub == 'id1' ? ['readers'] : []"}
- issuer:
    url: %s
    audiences: [kubectl]
    certificateAuthority: |
        %s
  claimValidationRules:
  - {expression: "claims.sub != 'id2'", message: "this guest was banned"}
  claimMappings:
    username: {claim: sub, prefix: "guest:"}
`, staff.issuer, indent(staff.ca), guests.issuer, indent(guests.ca))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s := harness.StartServer(t, "--authentication-config", config)
	whoami := func(token string) harness.Result {
		return harness.Run(t, noCredential(s.KubectlCommand(t, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.groups}", "--token", token), s, t))
	}
	reader := staff.login(t, "test-user@127.0.0.1")
	// The server asks the issuers for their keys when it starts, and may be early.
	harness.Eventually(t, func() error {
		if got := whoami(reader); got.Code != 0 {
			return fmt.Errorf("%s", got.Stderr)
		}
		return nil
	})
	wantContains(t, "who the reader is", whoami(reader).Stdout, "staff:id1", "readers", "system:authenticated")
	other := staff.login(t, "test-user2")
	if got := whoami(other).Stdout; !strings.Contains(got, "staff:id2") || strings.Contains(got, "readers") {
		t.Errorf("the other one is %s", got)
	}
	guest := guests.login(t, "test-user@127.0.0.1")
	harness.Eventually(t, func() error {
		if got := whoami(guest); !strings.Contains(got.Stdout, "guest:id1") {
			return fmt.Errorf("%s%s", got.Stdout, got.Stderr)
		}
		return nil
	})
	for name, token := range map[string]string{"a banned guest": guests.login(t, "test-user2"), "a changed token": reader[:len(reader)-8] + "AAAAAAAA", "an unsigned one": unsigned(t, reader)} {
		if got := whoami(token); got.Code == 0 {
			t.Errorf("%s is %s", name, got.Stdout)
		}
	}

	s.Kubectl(t, "create", "clusterrolebinding", "readers", "--clusterrole=view", "--group=readers")
	harness.Eventually(t, func() error {
		if got := harness.Run(t, noCredential(s.KubectlCommand(t, "get", "images", "--token", reader), s, t)); got.Code != 0 {
			return fmt.Errorf("%s", got.Stderr)
		}
		return nil
	})
	for _, token := range []string{other, guest} {
		if got := harness.Run(t, noCredential(s.KubectlCommand(t, "get", "images", "--token", token), s, t)); !strings.Contains(got.Stderr, "Forbidden") {
			t.Errorf("%s%s", got.Stdout, got.Stderr)
		}
	}
}

// noCredential takes the administrator's kubeconfig, whose token kubectl would prefer,
// from a command.
func noCredential(c harness.Command, s *harness.Server, t *testing.T) harness.Command {
	t.Helper()
	c.Args = append([]string{"--kubeconfig", tokenKubeconfig(t, s, "none")}, c.Args[2:]...)
	return c
}

// tokenKubeconfig names the server and holds a token.
func tokenKubeconfig(t *testing.T, s *harness.Server, token string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: t, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: t, user: {token: %q}}]
contexts: [{name: t, context: {cluster: t, user: t}}]
current-context: t
`, s.URL, filepath.Join(s.DataDir, "pki", "ca.crt"), token)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// unsigned is a token with the claims of another and the algorithm none.
func unsigned(t *testing.T, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("%d parts in a token", len(parts))
	}
	return base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." + parts[1] + "."
}

// A pipeline's robot imports and may do nothing else; its token is worth nothing once its
// account is gone.
func TestPipelineRobot(t *testing.T) {
	t.Parallel()
	s, r := harness.StartServer(t), registry.Start(t, registry.Distribution)
	good := r.Push(t, "team/app:v1", images.Numbered(t, 1)[0])

	s.Kubectl(t, "create", "serviceaccount", "robot", "-n", "ci")
	s.Kubectl(t, "create", "clusterrolebinding", "robot", "--clusterrole=tidewaiter:importer", "--serviceaccount=ci:robot")
	token := strings.TrimSpace(s.Kubectl(t, "create", "token", "robot", "-n", "ci", "--duration=1h"))
	kubeconfig := tokenKubeconfig(t, s, token)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	imports := harness.ImportCommand(t, "--server", s.URL, "--certificate-authority", filepath.Join(s.DataDir, "pki", "ca.crt"), "--token-file", file, good)
	harness.Eventually(t, func() error {
		if got := harness.Run(t, imports); got.Code != 0 {
			return fmt.Errorf("%s", got.Stderr)
		}
		return nil
	})
	if names := imageNames(t, s); len(names) == 0 {
		t.Error("nothing was imported")
	}
	kubectl := func(args ...string) harness.Result {
		c := s.KubectlCommand(t, args...)
		c.Args = append([]string{"--kubeconfig", kubeconfig}, args...)
		return harness.Run(t, c)
	}
	wantContains(t, "who the robot is", kubectl("auth", "whoami").Stdout, "system:serviceaccount:ci:robot")
	may := kubectl("auth", "can-i", "--list").Stdout
	wantContains(t, "what the robot may", may, "selfsubjectaccessreviews.authorization.k8s.io")
	granted := regexp.MustCompile(`(?m)^(\S+) .*\[([a-z ]+)\]\s*$`)
	for _, line := range granted.FindAllStringSubmatch(may, -1) {
		resource, verbs := line[1], strings.Fields(line[2])
		if strings.HasPrefix(resource, "pods") || strings.HasPrefix(resource, "serviceaccounts") || resource == "images.image.openshift.io" && slices.Contains(verbs, "delete") {
			t.Errorf("the robot may %q %s", verbs, resource)
		}
	}
	if !regexp.MustCompile(`(?m)^images\.image\.openshift\.io .*\bcreate\b`).MatchString(may) {
		t.Errorf("creating images is not listed:\n%s", may)
	}
	wantContains(t, "what the administrator may", s.Kubectl(t, "auth", "can-i", "--list"), "*.*", "[*]")
	for _, args := range [][]string{
		{"delete", "images", "--all"},
		{"get", "pods", "-A"},
		{"get", "namespaces"},
		{"get", "serviceaccounts", "-n", "ci"},
		{"create", "token", "robot", "-n", "ci"},
		{"create", "serviceaccount", "another", "-n", "ci"},
		{"create", "clusterrolebinding", "mine", "--clusterrole=cluster-admin", "--serviceaccount=ci:robot"},
		{"get", "--raw", "/metrics"},
		{"get", "--raw", "/tidewaiter/spool"},
		{"get", "images", "--as=system:admin", "--as-group=system:masters"},
	} {
		if got := kubectl(args...); got.Code == 0 || !strings.Contains(got.Stderr, "orbidden") {
			t.Errorf("kubectl %s: exit code %d\n%s%s", strings.Join(args, " "), got.Code, got.Stdout, got.Stderr)
		}
	}
	s.Kubectl(t, "delete", "serviceaccount", "robot", "-n", "ci")
	harness.Eventually(t, func() error {
		if got := harness.Run(t, imports); got.Code == 0 {
			return fmt.Errorf("the robot still imports: %s", got.Stdout)
		}
		return nil
	})
}

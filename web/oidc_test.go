package web

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/spf13/pflag"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
)

// issuer is a provider of OpenID Connect that serves its key.
type issuer struct {
	*httptest.Server
	key *ecdsa.PrivateKey
	ca  string // PEM
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &issuer{key: key}
	i.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := map[string]any{
			"/.well-known/openid-configuration": map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"}},
			"/keys":                             jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "a", Algorithm: "ES256", Use: "sig"}}},
		}[r.URL.Path]
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(i.Close)
	ca, err := certutil.EncodeCertificates(i.Certificate())
	if err != nil {
		t.Fatal(err)
	}
	i.ca = string(ca)
	return i
}

// token makes a token. claims are added to the usual ones, or take their place.
func (i *issuer) token(t *testing.T, claims map[string]any) string {
	t.Helper()
	now := time.Now()
	all := map[string]any{"iss": i.URL, "aud": "kubectl", "sub": "ann", "iat": now.Unix(), "exp": now.Add(10 * time.Minute).Unix()}
	maps.Copy(all, claims)
	raw, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return i.sign(t, string(raw))
}

// sign makes a token of claims in JSON.
func (i *issuer) sign(t *testing.T, claims string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "a"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign([]byte(claims))
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// who returns the user that a server takes the bearer of a token for.
func who(t *testing.T, c *Credentials, address, token string) (authenticationv1.UserInfo, error) {
	t.Helper()
	admin, err := c.adminToken()
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(&restclient.Config{Host: address, BearerToken: admin, TLSClientConfig: restclient.TLSClientConfig{CAFile: c.CAFile}})
	review, err := client.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !review.Status.Authenticated {
		return authenticationv1.UserInfo{}, fmt.Errorf("not known: %s", review.Status.Error)
	}
	return review.Status.User, nil
}

// The flags --oidc-* say whose tokens are accepted and what is read from them, as in
// kube-apiserver.
func TestOIDCFlags(t *testing.T) {
	t.Parallel()
	sso, stranger := newIssuer(t), newIssuer(t)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, []byte(sso.ca), 0o600); err != nil {
		t.Fatal(err)
	}
	a, flags := NewAuthentication(), pflag.NewFlagSet("", pflag.ContinueOnError)
	a.AddFlags(flags)
	err := flags.Parse([]string{
		"--oidc-issuer-url=" + sso.URL, "--oidc-client-id=kubectl", "--oidc-ca-file=" + ca, "--oidc-signing-algs=ES256",
		"--oidc-username-claim=email", "--oidc-username-prefix=sso:", "--oidc-groups-claim=teams", "--oidc-groups-prefix=sso:", "--oidc-required-claim=hd=example.com",
	})
	if err != nil {
		t.Fatal(err)
	}
	c := load(t)
	address := serveTLS(t, c, a)
	good := func(more map[string]any) map[string]any {
		claims := map[string]any{"email": "ann@example.com", "email_verified": true, "hd": "example.com", "teams": []string{"dev", "system:masters"}}
		maps.Copy(claims, more)
		return claims
	}
	// The issuer is asked for its keys while the server starts.
	await(t, "the issuer's keys", func() bool {
		_, err := who(t, c, address, sso.token(t, good(nil)))
		return err == nil
	})
	got, err := who(t, c, address, sso.token(t, good(nil)))
	if err != nil || got.Username != "sso:ann@example.com" || !slices.Equal(got.Groups, []string{"sso:dev", "sso:system:masters", "system:authenticated"}) {
		t.Errorf("%+v, %v", got, err)
	}
	forged := newIssuer(t)
	for what, token := range map[string]string{
		"for another client":           sso.token(t, good(map[string]any{"aud": "dashboard"})),
		"of another issuer":            stranger.token(t, good(nil)),
		"by another key":               forged.token(t, good(map[string]any{"iss": sso.URL})),
		"that has ended":               sso.token(t, good(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()})),
		"that has not begun":           sso.token(t, good(map[string]any{"nbf": time.Now().Add(time.Hour).Unix()})),
		"with another required claim":  sso.token(t, good(map[string]any{"hd": "example.org"})),
		"without the required claim":   sso.token(t, map[string]any{"email": "ann@example.com", "email_verified": true}),
		"with an address not verified": sso.token(t, good(map[string]any{"email_verified": false})),
	} {
		if got, err := who(t, c, address, token); err == nil {
			t.Errorf("a token %s is of %s", what, got.Username)
		}
	}
	// An issuer that is away ends nothing: its keys are known. Each of these tokens is new to the
	// server.
	sso.CloseClientConnections()
	sso.Close()
	for n := range 3 {
		if _, err := who(t, c, address, sso.token(t, good(map[string]any{"jti": fmt.Sprint(n)}))); err != nil {
			t.Errorf("while the issuer is away: %v", err)
		}
	}
}

// A token of another issuer makes nobody an administrator, nor any other name of Kubernetes',
// whatever its claims say and however they become names.
func TestAttackTokensClaimSystemNames(t *testing.T) {
	t.Parallel()
	sso := newIssuer(t)
	ca, err := json.Marshal(sso.ca) // is YAML, too
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for way, args := range map[string][]string{
		"flags": {"--oidc-issuer-url=" + sso.URL, "--oidc-client-id=kubectl", "--oidc-ca-file=" + file("ca.crt", sso.ca), "--oidc-signing-algs=ES256", "--oidc-username-prefix=-", "--oidc-groups-claim=groups"},
		"file": {"--authentication-config=" + file("authentication.yaml", fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer: {url: %s, audiences: [kubectl], certificateAuthority: %s}
  claimMappings:
    username: {claim: sub, prefix: ""}
    groups: {expression: "claims.groups"}
`, sso.URL, ca))},
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			a, flags := NewAuthentication(), pflag.NewFlagSet("", pflag.ContinueOnError)
			a.AddFlags(flags)
			if err := flags.Parse(args); err != nil {
				t.Fatal(err)
			}
			c := load(t)
			address := serveTLS(t, c, a)
			honest := sso.token(t, map[string]any{"groups": []string{"dev", "a:system:masters", "system:authenticated"}})
			await(t, "the issuer's keys", func() bool {
				_, err := who(t, c, address, honest)
				return err == nil
			})
			if got, err := who(t, c, address, honest); err != nil || got.Username != "ann" || !slices.Equal(got.Groups, []string{"dev", "a:system:masters", "system:authenticated"}) {
				t.Errorf("%+v, %v", got, err)
			}
			for name, claims := range map[string]map[string]any{
				"system:masters":                 {"groups": []string{"dev", "system:masters"}},
				"system:serviceaccounts":         {"groups": []string{"system:serviceaccounts", "dev"}},
				"system:unauthenticated":         {"groups": []string{"system:unauthenticated"}},
				"system:serviceaccount:ci:robot": {"sub": "system:serviceaccount:ci:robot", "groups": []string{}},
				"system:admin":                   {"sub": "system:admin", "groups": []string{"dev"}},
			} {
				got, err := who(t, c, address, sso.token(t, claims))
				if err == nil || !strings.Contains(err.Error(), strconv.Quote(name)) || !strings.Contains(err.Error(), "prefix") {
					t.Errorf("a token with the name %s is of %+v, %v", name, got, err)
				}
			}
		})
	}
}

// Each of several issuers has its own rules, in CEL, in a file.
func TestSeveralIssuersWithRulesInCEL(t *testing.T) {
	t.Parallel()
	staff, guests := newIssuer(t), newIssuer(t)
	indent := func(pem string) string {
		return strings.ReplaceAll(strings.TrimSpace(pem), "\n", "\n      ")
	}
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n"
	ofStaff := fmt.Sprintf(`- issuer:
    url: %s
    audiences: [kubectl, console]
    audienceMatchPolicy: MatchAny
    certificateAuthority: |
      %s
  claimValidationRules:
  - {expression: "claims.exp - claims.iat <= 3600", message: "the token lives for too long"}
  claimMappings:
    username: {expression: "claims.sub"}
    groups: {expression: "claims.roles.split(',').map(role, 'staff:' + role)"}
    uid: {expression: "claims.uid"}
    extra:
    - {key: "example.com/team", valueExpression: "claims.?team.orValue('none')"}
  userValidationRules:
  - {expression: "!user.username.startsWith('system:')", message: "a name of the system's"}
`, staff.URL, indent(staff.ca))
	ofGuests := fmt.Sprintf(`- issuer:
    url: %s
    audiences: [kubectl]
    certificateAuthority: |
      %s
  claimMappings:
    username: {claim: sub, prefix: "guest:"}
`, guests.URL, indent(guests.ca))
	a := NewAuthentication()
	a.AuthenticationConfigFile = filepath.Join(t.TempDir(), "authentication.yaml")
	if err := os.WriteFile(a.AuthenticationConfigFile, []byte(head+ofStaff+ofGuests), 0o600); err != nil {
		t.Fatal(err)
	}
	c := load(t)
	address := serveTLS(t, c, a)
	good := func(more map[string]any) map[string]any {
		claims := map[string]any{"roles": "dev,ops", "uid": "7"}
		maps.Copy(claims, more)
		return claims
	}
	for _, i := range []*issuer{staff, guests} {
		await(t, "an issuer's keys", func() bool {
			_, err := who(t, c, address, i.token(t, good(nil)))
			return err == nil
		})
	}
	got, err := who(t, c, address, staff.token(t, good(map[string]any{"aud": "console", "team": "blue"})))
	if err != nil || got.Username != "ann" || got.UID != "7" || !slices.Equal(got.Groups, []string{"staff:dev", "staff:ops", "system:authenticated"}) ||
		!slices.Equal(got.Extra["example.com/team"], []string{"blue"}) {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := who(t, c, address, guests.token(t, good(nil))); err != nil || got.Username != "guest:ann" || !slices.Equal(got.Groups, []string{"system:authenticated"}) {
		t.Errorf("a guest is %+v, %v", got, err)
	}
	for what, token := range map[string]string{
		"that lives for too long":         staff.token(t, good(map[string]any{"exp": time.Now().Add(2 * time.Hour).Unix()})),
		"with a name of the system's":     staff.token(t, good(map[string]any{"sub": "system:admin"})),
		"whose claims have no roles":      staff.token(t, nil),
		"of a guest for the console":      guests.token(t, good(map[string]any{"aud": "console"})),
		"of a guest in the staff's name":  guests.token(t, good(map[string]any{"iss": staff.URL})),
		"of staff in the name of a guest": staff.token(t, good(map[string]any{"iss": guests.URL})),
	} {
		if got, err := who(t, c, address, token); err == nil {
			t.Errorf("a token %s is of %s", what, got.Username)
		}
	}
}

// The files that docs/reference/access.md and docs/start/ci.md show let in people and jobs. These
// have the names to which the documents' commands give roles.
func TestDocumentedLogin(t *testing.T) {
	t.Parallel()
	for document, c := range map[string]struct {
		issuer, audience, name string
		claims                 map[string]any
		groups                 []string
	}{
		"reference/access.md": {"https://sso.example.com", "kubectl", "sso:ann", map[string]any{"groups": []string{"staff"}}, []string{"sso:staff"}},
		"start/ci.md": {"https://token.actions.githubusercontent.com", "tidewaiter", "github:repo:acme/app:ref:refs/heads/main",
			map[string]any{"sub": "repo:acme/app:ref:refs/heads/main", "aud": "tidewaiter"}, nil},
	} {
		t.Run(document, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join("..", "docs", document))
			if err != nil {
				t.Fatal(err)
			}
			_, file, found := strings.Cut(string(text), "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n")
			file, _, _ = strings.Cut(file, "```")
			if !found {
				t.Fatal("the document shows no such file")
			}
			sso := newIssuer(t)
			ca, err := json.Marshal(sso.ca) // is YAML, too
			if err != nil {
				t.Fatal(err)
			}
			audiences := "audiences: [" + c.audience + "]"
			file = strings.NewReplacer(c.issuer, sso.URL, audiences, audiences+", certificateAuthority: "+string(ca)).Replace(file)
			a := NewAuthentication()
			a.AuthenticationConfigFile = filepath.Join(t.TempDir(), "authentication.yaml")
			if err := os.WriteFile(a.AuthenticationConfigFile, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"+file), 0o600); err != nil {
				t.Fatal(err)
			}
			loaded := load(t)
			address := serveTLS(t, loaded, a)
			token := sso.token(t, c.claims)
			await(t, "the issuer's keys", func() bool {
				_, err := who(t, loaded, address, token)
				return err == nil
			})
			got, err := who(t, loaded, address, token)
			if err != nil || got.Username != c.name {
				t.Errorf("%+v, %v, want %s", got, err, c.name)
			}
			for _, group := range c.groups {
				if !slices.Contains(got.Groups, group) {
					t.Errorf("%+v, want the group %s", got, group)
				}
			}
		})
	}
}

// Who shows no credential is anonymous where a flag or the file says so. Who shows a wrong one is
// refused there, too.
func TestAnonymousCallers(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\nanonymous: {enabled: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for way, arg := range map[string]string{"flag": "--anonymous-auth=true", "file": "--authentication-config=" + file} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			a, flags := NewAuthentication(), pflag.NewFlagSet("", pflag.ContinueOnError)
			a.AddFlags(flags)
			if err := flags.Parse([]string{arg}); err != nil {
				t.Fatal(err)
			}
			c := load(t)
			config := restclient.Config{Host: serveTLS(t, c, a), TLSClientConfig: restclient.TLSClientConfig{CAFile: c.CAFile}}
			list := func(token string) error {
				config.BearerToken = token
				_, err := kubernetes.NewForConfigOrDie(&config).CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
				return err
			}
			if err := list(""); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "system:anonymous") {
				t.Errorf("without a credential: %v", err)
			}
			if err := list("wrong"); !apierrors.IsUnauthorized(err) {
				t.Errorf("with a wrong token: %v", err)
			}
		})
	}
}

// A token's claims count only if every parser reads the same: upstream's verifier takes "AUD" for
// "aud", and the last of two claims, and what reads names and groups does not. A token in another
// form than the verified one counts for nothing.
func TestAttackTokensReadInTwoWays(t *testing.T) {
	t.Parallel()
	sso := newIssuer(t)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, []byte(sso.ca), 0o600); err != nil {
		t.Fatal(err)
	}
	a, flags := NewAuthentication(), pflag.NewFlagSet("", pflag.ContinueOnError)
	a.AddFlags(flags)
	if err := flags.Parse([]string{"--oidc-issuer-url=" + sso.URL, "--oidc-client-id=kubectl", "--oidc-ca-file=" + ca, "--oidc-signing-algs=ES256", "--oidc-username-prefix=sso:", "--oidc-groups-claim=groups"}); err != nil {
		t.Fatal(err)
	}
	c := load(t)
	address := serveTLS(t, c, a)
	claims := func(more string) string {
		return fmt.Sprintf(`{"iss":%q,"sub":"ann","exp":%d,%s}`, sso.URL, time.Now().Add(time.Hour).Unix(), more)
	}
	nested := `"aud":"kubectl","access":{"App":1,"app":2},"Sub2":"x","Groups":["no"],"groups":["dev"]`
	await(t, "the issuer's keys", func() bool {
		got, err := who(t, c, address, sso.sign(t, claims(nested)))
		return err == nil && got.Username == "sso:ann" && slices.Contains(got.Groups, "dev")
	})
	honest, other := sso.sign(t, claims(`"aud":"kubectl"`)), sso.sign(t, claims(`"aud":"dashboard"`))
	swap := func(token string, part int, with string) string {
		parts := strings.Split(token, ".")
		parts[part] = strings.Split(with, ".")[part]
		return strings.Join(parts, ".")
	}
	for what, token := range map[string]string{
		"for another client":               other,
		"whose audience is spelt twice":    sso.sign(t, claims(`"aud":"dashboard","AUD":"kubectl"`)),
		"whose audience is spelt Aud":      sso.sign(t, claims(`"Aud":"kubectl"`)),
		"with two audiences by repetition": sso.sign(t, claims(`"aud":"dashboard","aud":"kubectl"`)),
		"of two people":                    sso.sign(t, claims(`"aud":"kubectl","sub":"root"`)),
		"of two people, in two spellings":  sso.sign(t, claims(`"aud":"kubectl","\u017fub":"root"`)),
		"that ends twice":                  sso.sign(t, claims(`"aud":"kubectl","eXp":99999999999`)),
		"with two kinds of groups":         sso.sign(t, claims(`"aud":"kubectl","groups":["dev"],"groups":["admins"]`)),
		"with the claims of another":       swap(honest, 1, other),
		"with the signature of another":    swap(honest, 2, other),
		"of four parts":                    honest + ".x",
		"and something after it":           honest + "=",
		"of JSON":                          `{"payload":"` + strings.Split(honest, ".")[1] + `","protected":"` + strings.Split(honest, ".")[0] + `","signature":"` + strings.Split(honest, ".")[2] + `"}`,
	} {
		if got, err := who(t, c, address, token); err == nil {
			t.Errorf("a token %s is of %s in %v", what, got.Username, got.Groups)
		}
	}
}

// Claims that are let through are those that the verifier reads, by exact names.
func FuzzAmbiguousClaims(f *testing.F) {
	for _, seed := range []string{
		`{"iss":"a","sub":"b","aud":"c","exp":1}`, `{"aud":"c","AUD":"d"}`, `{"sub":"a","sub":"b"}`, `{"\u017fub":"a"}`, `{"a":{"B":1,"b":2}}`, `[]`, `null`, `{"aud":["a"],"exp":1e3} `,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, claims string) {
		if ambiguousClaims("h."+base64.RawURLEncoding.EncodeToString([]byte(claims))+".s") != nil {
			return
		}
		var folded struct{ Iss, Sub, Aud, Exp, Nbf json.RawMessage } // without regard to case, the last counts
		var exact map[string]json.RawMessage
		if json.Unmarshal([]byte(claims), &exact) != nil || json.Unmarshal([]byte(claims), &folded) != nil {
			return
		}
		for name, value := range map[string]json.RawMessage{"iss": folded.Iss, "sub": folded.Sub, "aud": folded.Aud, "exp": folded.Exp, "nbf": folded.Nbf} {
			if string(value) != string(exact[name]) {
				t.Errorf("%s of %q is %s or %s", name, claims, value, exact[name])
			}
		}
	})
}

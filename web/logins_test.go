package web

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	k8sopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// An address that floods the server with wrong tokens is told to come later. A caller with a
// credential is let in, even from that address. Strangers elsewhere get their usual answer.
func TestAttackFloodOfWrongTokens(t *testing.T) {
	c := load(t)
	o := NewAuthentication()
	tokens, err := c.ServiceAccountTokens(o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{
		Scheme: legacyscheme.Scheme, Codecs: legacyscheme.Codecs, ParameterCodec: legacyscheme.ParameterCodec, OpenAPI: k8sopenapi.GetOpenAPIDefinitions,
		Credentials: c, Authentication: o, Tokens: tokens, Accounts: oneAccount{}, Version: "0.0.1-test",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	const flooded, elsewhere = "192.0.2.1", "192.0.2.2"
	ask := func(address, path, token string) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://localhost"+path, nil)
		r.RemoteAddr = address + ":1234"
		if token != "" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		s.api.Handler.FullHandlerChain.ServeHTTP(w, r)
		return w
	}
	failures := 0
	for ; ; failures++ {
		w := ask(flooded, "/apis", fmt.Sprintf("wrong-%d", failures))
		if w.Code == http.StatusTooManyRequests && w.Header().Get("Retry-After") != "" {
			break
		}
		if w.Code != http.StatusUnauthorized || failures > 100_000 {
			t.Fatalf("failure %d: %d %v", failures, w.Code, w.Header())
		}
	}
	if failures < 100 {
		t.Errorf("%d failures are answered, which a misconfigured client has soon", failures)
	}
	admin, err := c.adminToken()
	if err != nil {
		t.Fatal(err)
	}
	account, err := oneAccount{}.GetServiceAccount(t.Context(), "ci", "robot")
	if err != nil {
		t.Fatal(err)
	}
	claims, private, err := serviceaccount.Claims(api.ServiceAccount{ObjectMeta: account.ObjectMeta}, nil, nil, nil, nil, nil, 3600, 0, []string{defaultIssuer}, nil)
	if err != nil {
		t.Fatal(err)
	}
	robot, err := tokens.GenerateToken(t.Context(), claims, private)
	if err != nil {
		t.Fatal(err)
	}
	for _, request := range []struct {
		who, address, path, token string
		want                      int
	}{
		{"the administrator", flooded, "/apis", admin, http.StatusOK},
		{"a service account", flooded, "/apis", robot, http.StatusForbidden}, // it has no role
		{"a stranger elsewhere", elsewhere, "/apis", "wrong", http.StatusUnauthorized},
	} {
		if w := ask(request.address, request.path, request.token); w.Code != request.want {
			t.Errorf("%s is answered %d, want %d: %s", request.who, w.Code, request.want, w.Body)
		}
	}
}

// oneAccount has one service account.
type oneAccount struct{ noAccounts }

func (oneAccount) GetServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "1"}}, nil
}

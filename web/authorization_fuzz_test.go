package web

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	k8sopenapi "k8s.io/kubernetes/pkg/generated/openapi"
	"k8s.io/kubernetes/pkg/serviceaccount"
)

// Whatever an Authorization header or a websocket's protocols hold, the answer is 401
// unless it is the administrator's token; nothing panics.
func FuzzAuthorizationHeader(f *testing.F) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))
	f.Cleanup(func() { slog.SetDefault(before) })
	c := load(f)
	o := NewAuthentication()
	tokens, err := c.ServiceAccountTokens(o)
	if err != nil {
		f.Fatal(err)
	}
	s, err := New(Config{
		Scheme: legacyscheme.Scheme, Codecs: legacyscheme.Codecs, ParameterCodec: legacyscheme.ParameterCodec, OpenAPI: k8sopenapi.GetOpenAPIDefinitions,
		Credentials: c, Authentication: o, Tokens: tokens, Accounts: noAccounts{}, Version: "0.0.1-test",
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.stop)
	asked := 0
	ask := func(header, protocols string) int {
		r := httptest.NewRequest(http.MethodGet, "https://localhost/apis", nil)
		asked++ // each from another address, since an address may fail only so often
		r.RemoteAddr = fmt.Sprintf("10.%d.%d.%d:1234", asked>>16&255, asked>>8&255, asked&255)
		if header != "" {
			r.Header["Authorization"] = []string{header}
		}
		if protocols != "" {
			r.Header["Sec-Websocket-Protocol"] = []string{protocols}
			r.Header["Upgrade"], r.Header["Connection"] = []string{"websocket"}, []string{"Upgrade"}
		}
		w := httptest.NewRecorder()
		s.api.Handler.FullHandlerChain.ServeHTTP(w, r)
		return w.Code
	}
	admin, err := c.adminToken()
	if err != nil {
		f.Fatal(err)
	}
	if code := ask("Bearer "+admin, ""); code != http.StatusOK {
		f.Fatalf("the administrator is answered %d", code)
	}
	// Signed by the right key, for an account that does not exist.
	claims, private, err := serviceaccount.Claims(api.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "gone", UID: "1"}}, nil, nil, nil, nil, nil, 3600, 0, []string{defaultIssuer}, nil)
	if err != nil {
		f.Fatal(err)
	}
	orphan, err := tokens.GenerateToken(f.Context(), claims, private)
	if err != nil {
		f.Fatal(err)
	}
	const none = "eyJhbGciOiJub25lIn0." // {"alg":"none"}
	_, payload, _ := strings.Cut(orphan, ".")
	payload, _, _ = strings.Cut(payload, ".")
	for _, seed := range []string{
		"", "Bearer", "Bearer ", "Bearer  ", "bearer x", "Basic YTpi", "Bearer .", "Bearer ..", "Bearer a.b.c", "Bearer \x00", "Bearer é", "Negotiate abc",
		strings.Repeat("Bearer ", 1000), "Bearer " + orphan, "Bearer " + orphan + ".", "Bearer " + none + payload + ".", "Bearer " + none + ".",
		"Bearer " + admin[1:], "Bearer  " + admin[1:], "Token " + admin[1:], "Bearer " + admin[1:] + "A",
		"base64url.bearer.authorization.k8s.io.AAAA, x", "base64url.bearer.authorization.k8s.io." + base64.RawURLEncoding.EncodeToString([]byte(orphan)) + ",x",
	} {
		f.Add(seed, "")
		f.Add("", seed)
	}
	f.Fuzz(func(t *testing.T, header, protocols string) {
		if code := ask(header, protocols); code != http.StatusUnauthorized {
			t.Fatalf("%q, %q: %d", header, protocols, code)
		}
	})
}

// noAccounts has no service accounts.
type noAccounts struct{}

func (noAccounts) GetServiceAccount(_ context.Context, _, name string) (*corev1.ServiceAccount, error) {
	return nil, apierrors.NewNotFound(api.Resource("serviceaccounts"), name)
}

func (noAccounts) GetPod(_ context.Context, _, name string) (*corev1.Pod, error) {
	return nil, apierrors.NewNotFound(api.Resource("pods"), name)
}

func (noAccounts) GetSecret(_ context.Context, _, name string) (*corev1.Secret, error) {
	return nil, apierrors.NewNotFound(api.Resource("secrets"), name)
}

func (noAccounts) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	return nil, apierrors.NewNotFound(api.Resource("nodes"), name)
}

func (noAccounts) GetValidatingWebhookConfiguration(_ context.Context, name string) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	return nil, apierrors.NewNotFound(api.Resource("validatingwebhookconfigurations"), name)
}

func (noAccounts) GetMutatingWebhookConfiguration(_ context.Context, name string) (*admissionregistrationv1.MutatingWebhookConfiguration, error) {
	return nil, apierrors.NewNotFound(api.Resource("mutatingwebhookconfigurations"), name)
}

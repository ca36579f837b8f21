package e2e

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// imagesignatures has create and delete, and the signature shows in its Image.
func TestImageSignatures(t *testing.T) {
	t.Parallel()
	s := harness.SharedServer(t)
	s.KubectlStdin(t, plainImage("signed"), "create", "-f", "-")
	client := restClient(t, s.Config(t))
	path := "/apis/image.openshift.io/v1/imagesignatures"
	signature := func(name, content string) []byte {
		return fmt.Appendf(nil, `{"apiVersion":"image.openshift.io/v1","kind":"ImageSignature","metadata":{"name":%q},"type":"atomic","content":%q,`+
			`"conditions":[{"type":"Trusted","status":"True"},{"type":"ForImage","status":"True"}]}`, name, base64.StdEncoding.EncodeToString([]byte(content)))
	}
	post := func(name, content string) (int, string) {
		return answer(t, client.Post().AbsPath(path).Body(signature(name, content)))
	}
	for _, tc := range []struct {
		what, name, content string
		code                int
	}{
		{"new", "signed@one", "content 1", http.StatusCreated},
		{"same name", "signed@one", "content 2", http.StatusConflict},
		{"same content", "signed@two", "content 1", http.StatusConflict},
		{"another", "signed@two", "content 2", http.StatusCreated},
		{"unknown image", "unsigned@one", "content 1", http.StatusNotFound},
		{"no image in the name", "one", "content 3", http.StatusUnprocessableEntity},
		{"no content", "signed@three", "", http.StatusUnprocessableEntity},
	} {
		t.Run(tc.what, func(t *testing.T) {
			if code, body := post(tc.name, tc.content); code != tc.code {
				t.Errorf("%d, want %d: %s", code, tc.code, body)
			}
		})
	}
	names := func() string {
		t.Helper()
		return s.Kubectl(t, "get", "image", "signed", "-o", "jsonpath={.signatures[*].metadata.name}")
	}
	if got := names(); got != "signed@one signed@two" {
		t.Errorf("signatures %q", got)
	}
	// Nobody vouches for their own signature.
	if got := s.Kubectl(t, "get", "image", "signed", "-o", "jsonpath={.signatures[*].conditions}"); strings.Contains(got, `"True"`) || !strings.Contains(got, "NoMatchingPolicy") {
		t.Errorf("the client's verdict was taken: %s", got)
	}
	if rows := lines(s.Kubectl(t, "get", "image", "signed", "-o", "wide")); cells(rows[0], rows[1])["SIGNATURES"] != "2" {
		t.Errorf("the table:\n%s", strings.Join(rows, "\n"))
	}

	if code, body := answer(t, client.Delete().AbsPath(path, "signed@one")); code != http.StatusOK {
		t.Errorf("DELETE: %d: %s", code, body)
	}
	if code, _ := answer(t, client.Delete().AbsPath(path, "signed@one")); code != http.StatusNotFound {
		t.Errorf("DELETE again: %d", code)
	}
	if got := names(); got != "signed@two" {
		t.Errorf("signatures %q", got)
	}
	for _, verb := range []string{"GET", "PUT", "PATCH"} {
		if code, _ := answer(t, client.Verb(verb).AbsPath(path, "signed@two").Body([]byte("{}"))); code != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d, want 405", verb, code)
		}
	}
}

// answer carries out a request and returns the status code and the body.
func answer(t testing.TB, r *rest.Request) (int, string) {
	t.Helper()
	var code int
	body, err := r.MaxRetries(0).Do(t.Context()).StatusCode(&code).Raw()
	if err != nil && len(body) == 0 {
		t.Fatal(err)
	}
	return code, string(body)
}

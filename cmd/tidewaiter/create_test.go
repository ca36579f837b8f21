package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
)

// sendImage makes a request with an Image and returns the Image that is answered.
func (s *benchServer) sendImage(t *testing.T, method, name, body string, want int) (image imagev1.Image, raw string) {
	t.Helper()
	path := s.Config.Host + benchPath
	if method != http.MethodPost {
		path += "/" + name
	}
	req, err := http.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
	}
	req.Header.Set("Accept", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != want {
		t.Fatalf("%s of %s: %s: %s", method, body, resp.Status, answer)
	}
	if want < 300 {
		if err := json.Unmarshal(answer, &image); err != nil {
			t.Fatal(err)
		}
	}
	return image, string(answer)
}

// Managed fields are the same whether or not the metadata is plain JSON, which a surrogate pair is
// not, and the metadata itself arrives.
func TestCreateManagesMetadata(t *testing.T) {
	t.Parallel()
	s := connect(t, serve(t))
	var last string
	for i, metadata := range []string{
		`{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Id":"a","Created":null,"ContainerConfig":{},"Size":1000}`,
		`{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0","Id":"a","Created":null,"ContainerConfig":{},"Size":1000,"Comment":"\ud83d\ude00"}`,
		`{}`, `{"Comment":"\ud83d\ude00"}`,
	} {
		body := fmt.Sprintf(`{"kind":"Image","apiVersion":"image.openshift.io/v1","metadata":{"name":"a%d","labels":{"b":"c"}},"dockerImageReference":"quay.io/a","dockerImageMetadata":%s}`, i, metadata)
		image, raw := s.sendImage(t, http.MethodPost, "", body, http.StatusCreated)
		if i < 2 && !bytes.Contains(image.DockerImageMetadata.Raw, []byte(`"Id":"a"`)) {
			t.Errorf("the metadata is %s", image.DockerImageMetadata.Raw)
		}
		if len(image.ManagedFields) != 1 {
			t.Fatalf("managed fields of %s", raw)
		}
		fields := image.ManagedFields[0].FieldsV1.GetRawString()
		if i > 0 && fields != last || !strings.Contains(fields, `"f:dockerImageMetadata":{}`) {
			t.Errorf("%s: managed fields %s, before %s", metadata, fields, last)
		}
		last = fields
	}
	absent, _ := s.sendImage(t, http.MethodPost, "", `{"metadata":{"name":"b"},"dockerImageReference":"quay.io/a","dockerImageMetadata":null}`, http.StatusCreated)
	if fields := absent.ManagedFields[0].FieldsV1.GetRawString(); strings.Contains(fields, "f:dockerImageMetadata\"") {
		t.Errorf("managed fields %s without metadata", fields)
	}
	// What is not a creation is refused, and changes nothing.
	_, before := s.sendImage(t, http.MethodGet, "a0", "", http.StatusOK)
	s.sendImage(t, http.MethodPut, "a0", `{"kind":"Image","apiVersion":"image.openshift.io/v1","metadata":{"name":"a0"},"dockerImageReference":"quay.io/a","dockerImageMetadata":{"Id":"b"}}`, http.StatusUnprocessableEntity)
	s.sendImage(t, http.MethodPatch, "a0", `{"metadata":{"resourceVersion":null,"labels":{"b":"d"}}}`, http.StatusUnprocessableEntity)
	if _, after := s.sendImage(t, http.MethodGet, "a0", "", http.StatusOK); after != before {
		t.Errorf("%s became %s", before, after)
	}
}

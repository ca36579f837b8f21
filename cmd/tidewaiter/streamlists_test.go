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
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/server"
)

// A list of streams' tags without a limit has all of them, in every form. It is not parallel to
// other tests of its package, because each list must end within the server's minute for a request.
func TestListsOfStreamsAreWrittenInPages(t *testing.T) {
	if testing.Short() {
		t.Skip("slow, and nothing runs side by side")
	}
	config := serveWith(t, server.Options{DataDir: t.TempDir(), Isolated: true}, listen(t))
	client := httpClient(t, config)
	const streams, tagsOfEach = 11, 1000 // more than a page may have
	do := func(method, path, accept string, body []byte) (int, []byte) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, config.Host+"/apis/image.openshift.io/v1/"+path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Accept", accept)
		r.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		all, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return resp.StatusCode, all
	}
	for i := range streams {
		var all []any
		for j := range tagsOfEach {
			all = append(all, map[string]any{"name": fmt.Sprint("t", j), "from": map[string]any{"kind": "DockerImage", "name": "registry.example.com/team/app@" + manifest.Digest(fmt.Append(nil, j))}})
		}
		body, err := json.Marshal(map[string]any{"kind": "ImageStream", "apiVersion": "image.openshift.io/v1", "metadata": map[string]any{"name": fmt.Sprint("app", i)}, "spec": map[string]any{"tags": all}})
		if err != nil {
			t.Fatal(err)
		}
		if code, answer := do(http.MethodPost, "namespaces/default/imagestreams", "application/json", body); code != http.StatusCreated {
			t.Fatalf("stream %d: %d %s", i, code, answer[:min(len(answer), 1000)])
		}
	}
	const path = "imagestreamtags"
	code, answer := do(http.MethodGet, path, "application/json", nil)
	var list struct {
		Metadata struct{ Continue string }
		Items    []struct{ Metadata struct{ Name string } }
	}
	if err := json.Unmarshal(answer, &list); err != nil || code != http.StatusOK || list.Metadata.Continue != "" {
		t.Fatalf("%s: %d, %v, %q", path, code, err, list.Metadata.Continue)
	}
	seen := map[string]bool{}
	for _, item := range list.Items {
		seen[item.Metadata.Name] = true
	}
	if len(seen) != streams*tagsOfEach || len(list.Items) != len(seen) {
		t.Errorf("%s has %d tags, of which %d are distinct", path, len(list.Items), len(seen))
	}
	for accept, mark := range map[string]string{"application/yaml": "\n- ", "application/json;as=Table;v=v1;g=meta.k8s.io": `{"cells":[`} {
		if code, answer := do(http.MethodGet, path, accept, nil); code != http.StatusOK || strings.Count(string(answer), mark) != len(list.Items) {
			t.Errorf("%s as %s: %d, %d items: %s", path, accept, code, strings.Count(string(answer), mark), answer[:min(len(answer), 300)])
		}
	}
	code, answer = do(http.MethodGet, path, "application/vnd.kubernetes.protobuf", nil)
	tags := imagev1.ImageStreamTagList{}
	if whole := (runtime.Unknown{}); code != http.StatusOK || whole.Unmarshal(bytes.TrimPrefix(answer, []byte("k8s\x00"))) != nil || tags.Unmarshal(whole.Raw) != nil || len(tags.Items) != len(list.Items) || tags.Continue != "" {
		t.Errorf("%s in protobuf: %d, %d items: %q", path, code, len(tags.Items), answer[:min(len(answer), 300)])
	}
	if code, answer := do(http.MethodGet, "imagestreams", "application/json", nil); code != http.StatusOK || strings.Count(string(answer), `"generation":1,`) < streams {
		t.Errorf("streams: %d %s", code, answer[:min(len(answer), 300)])
	}
}

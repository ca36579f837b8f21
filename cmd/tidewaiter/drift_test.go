package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters/clustertest"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/server"
)

// A tag is pushed to while pods run what it led to. Tables of images and of tags, the metric, the
// review and pods count the same pods, and one Event tells of it.
func TestDriftIsCountedAlikeAndTold(t *testing.T) {
	h := &harbour{t: t, registry: registrytest.New(t), found: &brought{signatures: map[string][]imagev1.ImageSignature{}, annotations: map[string]map[string]string{}, fail: map[string]error{}}}
	q := &questions{harbour: h, cluster: clustertest.New(t), digests: map[string]string{}}
	dir := t.TempDir()
	for file, text := range map[string]string{"prod.kubeconfig": string(q.cluster.Kubeconfig()), "config.yaml": "clusters:\n- {name: prod, kubeconfig: prod.kubeconfig, importRunning: false}\n"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(dir, "data")
	q.Config = serveWith(t, server.Options{DataDir: data, ConfigFile: filepath.Join(dir, "config.yaml"), Isolated: true}, listen(t))
	q.kubeconfig, q.review = server.KubeconfigPath(data), newReviewer(t, q.Config)
	var err error
	if q.images, err = imageclient.New(q.Config); err != nil {
		t.Fatal(err)
	}
	if q.http, err = restclient.HTTPClientFor(q.Config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(q.http.CloseIdleConnections)
	q.image("old", "team/app:v1")
	q.importTag("team/app:v1")
	tag := q.registry.Host + "/team/app:v1"
	for _, pod := range []string{"a", "b"} {
		q.runs(pod, tag, q.digests["old"])
	}
	get := func(path string, asTable bool) (body []byte) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, q.Config.Host+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if asTable {
			request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
		}
		response, err := q.http.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if body, err = io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s, %v", path, response.StatusCode, body, err)
		}
		return body
	}
	// cell is the column Outdated of the one row whose first cell is name.
	cell := func(resource, name string) string {
		t.Helper()
		var table metav1.Table
		if err := json.Unmarshal(get("/apis/image.openshift.io/v1/"+resource, true), &table); err != nil {
			t.Fatal(err)
		}
		column := slices.IndexFunc(table.ColumnDefinitions, func(c metav1.TableColumnDefinition) bool { return c.Name == "Outdated" })
		for _, row := range table.Rows {
			var object metav1.PartialObjectMetadata
			if err := json.Unmarshal(row.Object.Raw, &object); err != nil {
				t.Fatal(err)
			}
			if object.Name == name {
				return fmt.Sprint(row.Cells[column])
			}
		}
		return "no row"
	}
	tagName := strings.NewReplacer(":", "_", "/", "--").Replace(q.registry.Host+"/team/app") + ":v1"
	events := func() (all []string) {
		var list corev1.EventList
		if err := json.Unmarshal(get("/api/v1/namespaces/default/events?fieldSelector=reason=Outdated", false), &list); err != nil {
			t.Fatal(err)
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Kind != "ImageTag" || e.InvolvedObject.Name != tagName || e.InvolvedObject.UID == "" || e.Count > 1 {
				t.Errorf("an Event about %+v, %d times", e.InvolvedObject, e.Count)
			}
			all = append(all, e.Message)
		}
		return all
	}
	want := func(when string, outdated int, ofImages map[string]string, told int) {
		t.Helper()
		said := ""
		if !within(time.Minute, func() bool {
			said = fmt.Sprint("imagetags: ", cell("imagetags", tagName))
			for called, digest := range q.digests {
				if got := cell("images", digest); got != ofImages[called] {
					said += fmt.Sprintf(", %s: %s", called, got)
				}
			}
			answer := q.review.ask(answers.Question{Reference: tag})[0]
			said += fmt.Sprintf(", the review: %d", answer.Running.Outdated)
			metric := `tidewaiter_outdated_pods{cluster="prod"} ` + fmt.Sprint(outdated)
			if !bytes.Contains(get("/metrics", false), []byte(metric+"\n")) {
				said += ", the metric is another"
			}
			_, stdout, _ := tidewaiter(t, "pods", "--outdated", tag, "--kubeconfig", q.kubeconfig)
			said += fmt.Sprintf(", pods: %d", strings.Count(stdout, tag))
			said += fmt.Sprintf(", %d Events", len(events()))
			return said == fmt.Sprintf("imagetags: %d, the review: %d, pods: %d, %d Events", outdated, outdated, outdated, told)
		}) {
			t.Fatalf("%s: %s: %q", when, said, events())
		}
	}
	want("as pushed", 0, map[string]string{"old": "0"}, 0)
	q.image("new", "team/app:v1")
	q.importTag("team/app:v1")
	want("pushed again", 2, map[string]string{"old": "2", "new": "0"}, 1)
	q.importTag("team/app:v1")
	q.runs("a", tag, q.digests["new"])
	want("a pod is replaced", 1, map[string]string{"old": "1", "new": "0"}, 1)
	q.runs("b", tag, q.digests["new"])
	want("all are", 0, map[string]string{"old": "0", "new": "0"}, 1)
	q.copies("old", "team/app:v1")
	want("rolled back", 2, map[string]string{"old": "0", "new": "2"}, 2)
}

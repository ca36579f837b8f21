package coreapi_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	_ "github.com/mattn/go-sqlite3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// What the API serves can be read as tables.
func TestViews(t *testing.T) {
	t.Parallel()
	var dir string
	d := dbtest.Open(t, func(o *db.Options) {
		dir = o.Dir
		for name, text := range coreapi.Views() {
			o.Views = append(o.Views, datafile.View{Name: name, SQL: text})
		}
	})
	s := follow(t, d)
	p := pod("a")
	p.Spec.NodeName = "worker-1"
	p.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "registry.example.com/init:1"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "model", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: "registry.example.com/model:1"}}}}
	p = s.createPod(t, "team", p)
	p.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{{Name: "main", ImageID: "registry.example.com/app@sha256:" + strings.Repeat("1", 64)}}}
	if _, err := s.CoreV1().Pods("team").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CoreV1().Events("team").Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "e"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "team", Name: "a"},
		Reason:         "Pulled", Type: corev1.EventTypeNormal, Message: "m", Count: 3,
		Source: corev1.EventSource{Component: "kubelet"}, LastTimestamp: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	s.uses(t, "sha256:"+strings.Repeat("1", 64), 1)
	reader, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "tidewaiter.db")+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for query, want := range map[string][]string{
		"SELECT namespace, name, phase, node, deleted FROM pods":                                                             {"team|a|Running|worker-1|<nil>"},
		"SELECT namespace, pod, container, image, image_id FROM pod_images ORDER BY container":                               {"team|a|init|registry.example.com/init:1|<nil>", "team|a|main|registry.example.com/app:1|registry.example.com/app@sha256:" + strings.Repeat("1", 64), "team|a|volume/model|registry.example.com/model:1|<nil>"},
		"SELECT last_seen, count, type, reason, object_kind, object_name, message, source, expires > datetime() FROM events": {"2026-01-02T03:04:05Z|3|Normal|Pulled|Pod|a|m|kubelet|1"},
	} {
		if diff := cmp.Diff(want, rows(t, reader, query)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
	}
}

// Gaps are counted and measured: those of a stretch that has ended are its own, and those of one
// that goes on are its cluster's since it began. One that goes on has a beginning and no length.
func TestImageRunsView(t *testing.T) {
	t.Parallel()
	var dir string
	d := dbtest.Open(t, func(o *db.Options) {
		dir = o.Dir
		o.Views = append(o.Views, datafile.View{Name: "image_runs", SQL: coreapi.Views()["image_runs"]})
	})
	for key, value := range map[string]string{
		"imageruns/team/over":  `{"spec":{"cluster":"away","workload":"over","from":"2026-01-01T00:00:00Z"},"status":{"until":"2026-01-01T01:00:00Z","unseen":[{"from":"2026-01-01T00:59:00Z","until":"2026-01-01T01:00:00Z"}]}}`,
		"imageruns/team/goes":  `{"spec":{"cluster":"away","workload":"goes","from":"2026-01-01T00:30:00Z"},"status":{}}`,
		"imageruns/team/whole": `{"spec":{"cluster":"seen","workload":"whole","from":"2026-01-01T00:00:00Z"},"status":{}}`,
		"clusters/away":        `{"status":{"records":{"unseen":[{"from":"2026-01-01T00:00:00Z","until":"2026-01-01T00:10:00Z"},{"from":"2026-01-01T00:20:00Z","until":"2026-01-01T00:40:00Z"},{"from":"2026-01-01T02:00:00Z"}]}}}`,
		"clusters/seen":        `{"status":{"records":{}}}`,
	} {
		if _, err := d.Put(t.Context(), "/tidewaiter.dev/"+key, 0, []byte(value), db.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	reader, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "tidewaiter.db")+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	want := []string{"goes|2|600|2026-01-01T02:00:00Z", "over|1|60|<nil>", "whole|0|0|<nil>"}
	if diff := cmp.Diff(want, rows(t, reader, "SELECT workload, gaps, unseen_seconds, unseen_since FROM image_runs ORDER BY workload")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// rows are the results of a query, columns joined by |.
func rows(t *testing.T, reader *sql.DB, query string) []string {
	t.Helper()
	result, err := reader.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer result.Close()
	columns, err := result.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for result.Next() {
		values := make([]any, len(columns))
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := result.Scan(into...); err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, v := range values {
			texts = append(texts, fmt.Sprint(v))
		}
		found = append(found, strings.Join(texts, "|"))
	}
	if err := result.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

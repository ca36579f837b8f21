package main

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/internal/controllers/imageevents"
)

// The first references of an import have an Event each, and one Event tells how many others were
// imported. Each failure has its own.
func TestEventsOfAnImportOfMany(t *testing.T) {
	t.Parallel()
	config := serve(t)
	events := &imageevents.Recorder{}
	if err := events.Start(t.Context(), config, config, "test"); err != nil {
		t.Fatal(err)
	}
	result := func(i int, action importer.Action) *importer.Result {
		digest := fmt.Sprintf("sha256:%064d", i)
		image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest, UID: "u"}}
		return &importer.Result{Digest: digest, Images: []importer.ImageResult{{Image: image, Action: action}}}
	}
	for i := range 45 {
		events.Imported(fmt.Sprint("r.example.com/app:", i), result(i, importer.Created), nil)
		events.Imported(fmt.Sprint("r.example.com/app:known", i), result(i, importer.Unchanged), nil)
	}
	for i := range 2 {
		events.Imported(fmt.Sprint("r.example.com/app:bad", i), nil, errors.New("not found"))
	}
	events.Flush()
	for reason, want := range map[string]int{"Imported": 21, "ImportFailed": 2} {
		list, err := kubernetes.NewForConfigOrDie(config).CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil || len(list.Items) != want {
			t.Fatalf("%d events of %s, %v, want %d", len(list.Items), reason, err, want)
		}
		const last = "Imported r.example.com/app:44, and 24 references before it that have no event of their own"
		var messages []string
		for _, e := range list.Items {
			messages = append(messages, e.Message)
		}
		if reason == "Imported" && !slices.Contains(messages, last) {
			t.Errorf("%q", messages)
		}
	}
}

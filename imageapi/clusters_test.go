package imageapi_test

import (
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/imageapi"
	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
)

// recorded are the warnings that a request is answered with.
type recorded []string

func (r *recorded) AddWarning(_, text string) { *r = append(*r, text) }

// While a cluster has not been read, an image that no known pod uses is not said to be unused, and
// whoever asks is told why nothing is known.
func TestUseIsUnknownWhileAClusterIs(t *testing.T) {
	p := &pods{synced: true, partly: true, doubts: []string{"the pods of cluster prod are not known yet: no route"}}
	s := newStoragesWith(t, imageapi.Options{Images: imageregistry.Options{Usage: p}})
	idle, busy := plain("idle", ""), plain("busy", "")
	s.mustCreate(t, idle)
	s.mustCreate(t, busy)
	p.use("busy")
	for selector, want := range map[string]string{
		"used=true": "busy", "used=false": "", "used=unknown": "idle", "used!=false": "busy idle", "used!=true": "idle",
		"used-by=prod": "busy", "used-by=prod/team": "busy", "used-by=prod/other": "", "used-by=": "idle",
	} {
		if got := s.selected(t, selector); got != want {
			t.Errorf("%s selected %q, want %q", selector, got, want)
		}
	}
	// The verdict on an image is not that for the name that pods use.
	for _, selector := range []string{"signatures.verified=NoPolicy,used=true", "used-by=prod,signatures.verified!=True", "verdicts=False@r.example.com/a,used=true", "attestations.verified=,used!=false",
		"used!=unknown,signatures.verified=False", "references=r.example.com/a:v1,signatures.verified=True,used=true"} {
		_, err := s.images.List(requestContext(), selecting(selector))
		_, watched := s.images.Watch(requestContext(), selecting(selector))
		_, deleted := s.images.DeleteCollection(requestContext(), rest.ValidateAllObjectFunc, &metav1.DeleteOptions{}, selecting(selector))
		for verb, err := range map[string]error{"list": err, "watch": watched, "delete": deleted} {
			if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "clusterpods --field-selector verified=") {
				t.Errorf("%s by %s: %v", verb, selector, err)
			}
		}
	}
	for _, selector := range []string{"signatures.verified=NoPolicy,used=unknown", "signatures.verified=NoPolicy,used!=true", "signatures.verified=NoPolicy,used-by="} {
		if got := s.selected(t, selector); got != "idle" {
			t.Errorf("%s selected %q", selector, got)
		}
	}
	if got := [2]any{s.cell(t, idle, "Pods"), s.cell(t, busy, "Pods")}; got != [2]any{"Unknown", "1+"} {
		t.Errorf("the column has %v", got)
	}
	var told recorded
	ctx := warning.WithWarningRecorder(requestContext(), &told)
	if _, err := s.images.List(ctx, selecting("used=true")); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(told, p.doubts) {
		t.Errorf("a list by use warns of %q, want %q", told, p.doubts)
	}

	p.partly, p.doubts = false, nil
	if got := s.selected(t, "used=false"); got != "idle" {
		t.Errorf("once all is known, used=false selected %q", got)
	}
	if got := s.cell(t, busy, "Pods"); got != "1" {
		t.Errorf("once all is known, the column has %v", got)
	}
}

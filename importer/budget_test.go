package importer_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

type rawDescriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int    `json:"size"`
}

// pushIndexes pushes n different indexes that list the same children.
func pushIndexes(registry *registrytest.Registry, tag string, n int, children []rawDescriptor) []rawDescriptor {
	var out []rawDescriptor
	for i := range n {
		raw, _ := json.Marshal(map[string]any{
			"schemaVersion": 2, "mediaType": types.OCIImageIndex, "manifests": children,
			"annotations": map[string]string{"n": fmt.Sprint(tag, i)},
		})
		d := rawDescriptor{string(types.OCIImageIndex), manifest.Digest(raw), len(raw)}
		registry.PushManifest(fmt.Sprintf("app:%s%d", tag, i), d.MediaType, d.Digest, raw)
		out = append(out, d)
	}
	return out
}

// An index of 30 × 30 × 30 held up the pushes of everybody for ten minutes: 91
// manifests were visited 27,931 times.
func TestIndexOfIndexesIsVisitedOnceForEachManifest(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	var leaves []rawDescriptor
	for i := range 30 {
		image := newImage(t, sample.Spec{Name: fmt.Sprint(i)})
		size, err := image.Size()
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, rawDescriptor{string(types.OCIManifestSchema1), registry.Push(fmt.Sprint("app:leaf", i), image), int(size)})
	}
	inner := pushIndexes(registry, "inner", 30, leaves)
	outer := pushIndexes(registry, "outer", 30, inner)
	pushIndexes(registry, "root", 1, outer)

	finder := &tagFinder{}
	result := mustImport(t, newImporter(t, importer.Options{Signatures: finder, Limits: pull.Limits{HostRate: 1e6, HostBurst: 1e6}}), registry.Host+"/app:root0", images)
	if len(result.Images) != 91 || len(images.Names()) != 91 {
		t.Errorf("%d images in the result, %d stored, want 91", len(result.Images), len(images.Names()))
	}
	if n := registry.Count("GET .*/manifests/(root0|sha256:.*)$"); n != 91 {
		t.Errorf("%d manifests were read, want 91", n)
	}
	if n := len(finder.asked); n != 91 {
		t.Errorf("signatures were looked for %d times, want 91", n)
	}
	if d := digests(result); len(slices.Compact(sorted(d))) != 91 || d[0] != result.Digest || d[1] != outer[0].Digest || d[2] != inner[0].Digest || d[3] != leaves[0].Digest {
		t.Errorf("the result is not in the order of the indexes")
	}
}

// One leaf that fails is one error, however many ways lead to it.
func TestErrorBelowIndexesIsToldOnce(t *testing.T) {
	registry := registrytest.New(t)
	leaf := registry.Push("app:leaf", newImage(t, sample.Spec{}))
	registry.Inject("/blobs/", 0, registrytest.Status(403, "DENIED"))
	inner := pushIndexes(registry, "inner", 20, []rawDescriptor{{string(types.OCIManifestSchema1), leaf, 1}})
	pushIndexes(registry, "root", 1, pushIndexes(registry, "outer", 20, inner))
	_, err := newImporter(t, importer.Options{}).Import(t.Context(), parse(t, registry.Host+"/app:root0"), &registrytest.Images{})
	wantReason(t, err, pull.Denied)
	if n := strings.Count(err.Error(), "injected DENIED"); n != 1 {
		t.Errorf("it is told %d times", n)
	}
}

func TestJobEndsWithItsBudget(t *testing.T) {
	for _, tc := range []struct {
		name   string
		limits pull.Limits
		fault  registrytest.Fault
		want   pull.Reason
		says   string
	}{
		{"manifests", pull.Limits{JobManifests: 3}, nil, pull.OverBudget, "budget of 3 manifests"},
		{"requests", pull.Limits{JobRequests: 5}, nil, pull.OverBudget, "budget of 5 requests"},
		{"repeated requests", pull.Limits{JobRequests: 4, Attempts: 1000}, hangUp, pull.OverBudget, "budget of 4 requests"},
		{"bytes", pull.Limits{JobBytes: 2000}, nil, pull.OverBudget, "budget of 2000 bytes"},
		{"seconds", pull.Limits{JobTime: 30 * time.Millisecond}, registrytest.StallHeaders(), pull.Timeout, "budget of 30ms"},
		{"seconds of a drip", pull.Limits{JobTime: 30 * time.Millisecond}, registrytest.Drip(time.Millisecond), pull.Timeout, "budget of 30ms"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			registry := registrytest.New(t)
			registry.PushIndex("app:v1", newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64", "linux/s390x", "linux/ppc64le"))
			if tc.fault != nil {
				registry.Inject("GET .*/manifests/", 0, tc.fault)
			}
			o := importer.Options{Limits: tc.limits, Signatures: &tagFinder{}}
			if tc.limits.Attempts > 0 {
				o.Clock = &skippingClock{}
			}
			im := newImporter(t, o)
			_, err := im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
			e := wantReason(t, err, tc.want)
			if !strings.Contains(e.Error(), tc.says) {
				t.Errorf("%v does not name the budget, %q", e, tc.says)
			}
			if limit := tc.limits.JobRequests; limit > 0 && int64(len(registry.AllRequests())) > limit+1 {
				// net/http repeats one
				t.Errorf("%d requests were made", len(registry.AllRequests()))
			}
		})
	}
}

// All that is done with a job's context comes out of one budget.
func TestJobOfManyImportsHasOneBudget(t *testing.T) {
	registry := registrytest.New(t)
	for i := range 5 {
		registry.Push(fmt.Sprint("app:", i), newImage(t, sample.Spec{Name: fmt.Sprint(i)}))
	}
	im := newImporter(t, importer.Options{Limits: pull.Limits{JobManifests: 3}})
	ctx, done := im.Job(t.Context())
	defer done()
	for i := range 5 {
		_, err := im.Import(ctx, parse(t, fmt.Sprint(registry.Host, "/app:", i)), &registrytest.Images{})
		if over := pull.ReasonOf(err) == pull.OverBudget; over != (i >= 3) {
			t.Errorf("import %d: %v", i, err)
		}
	}
	mustImport(t, im, registry.Host+"/app:4", &registrytest.Images{}) // is a job of its own
}

// A HEAD that claimed the digest of somebody else's image, and then dripped, held the
// lock on that digest for two minutes.
func TestRegistryThatClaimsADigestDoesNotHoldUpAnother(t *testing.T) {
	honest, evil := registrytest.New(t), registrytest.New(t)
	image := newImage(t, sample.Spec{})
	honest.Push("team/app:v1", image)
	evil.Push("team/app:v1", image)
	arrived := make(chan struct{}, 1)
	evil.Inject("GET .*/manifests/", 0, arrives(arrived))
	im := newImporter(t, importer.Options{Limits: pull.Limits{Stall: time.Hour, Request: time.Hour}})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := im.Import(ctx, parse(t, evil.Host+"/team/app:v1"), &registrytest.Images{})
		ended <- err
	}()
	<-arrived
	soon, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if _, err := im.Import(soon, parse(t, honest.Host+"/team/app:v1"), &registrytest.Images{}); err != nil {
		t.Error(err)
	}
	stop()
	wantReason(t, <-ended, pull.Canceled)
}

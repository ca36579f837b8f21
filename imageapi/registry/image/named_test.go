package image

import (
	"context"
	"slices"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// naming is a Usage in which a pod names a tag and tells no digest. Its version is set by the test.
type naming struct {
	used
	version uint64
}

// PodsUsing is part of Usage: the pod is found by the tag alone.
func (*naming) PodsUsing(keys []string, _ []reference.Reference) (n int) {
	if slices.Contains(keys, "registry.example.com/app:1") {
		n = 1
	}
	return n
}

func (n *naming) Named(uint64) ([]usage.Named, uint64) {
	return []usage.Named{{Tag: "registry.example.com/app:1", Since: 10}}, n.version
}

// Pods that start between the refresh of the names and the question do not make use unknown: the
// tags are read again.
func TestUncertainAfterPodsHaveChanged(t *testing.T) {
	t.Parallel()
	pods := &naming{version: 1}
	f := &facts{usage: pods, indexes: followIndexes(pods, func(context.Context, string) (*imagev1.Image, error) { return nil, nil }, nothingAbove, nothingAbove)}
	created := func(at int64) metav1.Time { return metav1.NewTime(time.Unix(at, 0)) }
	f.named.tag = func(context.Context, reference.Reference) (*imagev1.ImageTag, error) {
		return &imagev1.ImageTag{Status: &imagev1.NamedTagEventList{Items: []imagev1.TagEvent{{Image: "now", Created: created(30)}, {Image: "then", Created: created(20)}, {Image: "before", Created: created(5)}, {Image: "long ago", Created: created(1)}}}}, nil
	}
	f.named.revision = func(context.Context) (uint64, error) { return 1, nil }
	f.refreshNames(t.Context())
	// The pod counts for what its tag leads to, which no Image says that is not stored.
	for digest, want := range map[string]int{"now": 1, "then": 0, "other": 0} {
		if got := f.pods(digest, nil); got != want {
			t.Errorf("%s, which is not stored, is used by %d pods, want %d", digest, got, want)
		}
	}
	pods.version++
	for digest, unknown := range map[string]bool{"now": false, "then": true, "before": true, "long ago": false, "other": false} {
		if got := f.uncertain(digest, nil); got == notRead || (got != "") != unknown {
			t.Errorf("%s: %q, want unknown: %t", digest, got, unknown)
		}
	}
}

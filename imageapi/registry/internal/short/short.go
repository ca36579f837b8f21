// Package short warns clients what a shortened reference in a field selector was taken to mean.
package short

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/fields"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// maxNoted bounds the warnings about one selector.
const maxNoted = 5

// Warn warns of references in the field selector of a request that name no registry. Unlike a
// verb's reference, one in a selector always means Docker Hub. of are the fields that have
// references.
func Warn(ctx context.Context, of ...string) {
	info, ok := genericapirequest.RequestInfoFrom(ctx)
	if !ok || info.FieldSelector == "" {
		return
	}
	selector, err := fields.ParseSelector(info.FieldSelector)
	if err != nil {
		return // the request is refused
	}
	noted := 0
	for _, r := range selector.Requirements() {
		if !slices.Contains(of, r.Field) || reference.NamesRegistry(r.Value) || reference.IsDigest(r.Value) {
			continue
		}
		if ref, err := reference.Parse(r.Value); err == nil && noted < maxNoted {
			noted++
			warning.AddWarning(ctx, "", fmt.Sprintf("%s=%s names no registry, so it means %s: a selector takes the whole name, which tidewaiter get %s finds", r.Field, r.Value, ref, r.Value))
		}
	}
}

package imagestream

import (
	"context"
	"net/http"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
)

// metadataOnly is the key of a context in which streams are shown as they are stored: the answer
// holds their metadata alone.
type metadataOnly struct{}

// WithMetadataReads marks reads that are answered with PartialObjectMetadata alone, for the storage
// of image streams. Such a read does not look up where the tags lead. A garbage collector watches
// all streams in this way, and each event of a stream would read all its tags: up to 100,000.
func WithMetadataReads(next http.Handler, serializer runtime.NegotiatedSerializer) http.Handler {
	// whose rules say what is answered
	scope := &handlers.RequestScope{TableConvertor: rest.NewDefaultTableConvertor(imagev1.Resource("imagestreams"))}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		info, ok := genericapirequest.RequestInfoFrom(ctx)
		if ok && info.APIGroup == imagev1.GroupName && info.Resource == "imagestreams" && info.Subresource == "" && (info.Verb == "get" || info.Verb == "list" || info.Verb == "watch") {
			if answer, _, err := negotiation.NegotiateOutputMediaType(r, serializer, scope); err == nil && answer.Convert != nil && strings.HasPrefix(answer.Convert.Kind, "PartialObjectMetadata") {
				r = r.WithContext(context.WithValue(ctx, metadataOnly{}, true))
			}
		}
		next.ServeHTTP(w, r)
	})
}

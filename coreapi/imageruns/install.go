package imageruns

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
)

// Resource is the resource of ImageRun, of the group of package clusters.
const Resource = "imageruns"

// Install registers ImageRun and its list with scheme. The API machinery works with the Go types
// that are served, so nothing is ever converted.
func Install(scheme *runtime.Scheme) error {
	gv := clusters.GroupVersion
	for _, gv := range []schema.GroupVersion{{Group: gv.Group, Version: runtime.APIVersionInternal}, gv} {
		scheme.AddKnownTypes(gv, &ImageRun{}, &ImageRunList{})
	}
	metav1.AddToGroupVersion(scheme, gv)
	return scheme.AddFieldLabelConversionFunc(gv.WithKind("ImageRun"), fieldLabel)
}

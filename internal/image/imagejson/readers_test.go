package imagejson

import (
	"reflect"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/plainjson/readergen"
)

//go:generate go test -run ^TestReadersAreGenerated$ . -write-readers

// The generated readers match the present types.
func TestReadersAreGenerated(t *testing.T) {
	readergen.Check(t, "zz_generated.readers.go", readergen.Package{
		Name: "imagejson", Path: "github.com/tidewaiter/tidewaiter/internal/image/imagejson",
		Imports: map[string]string{
			"github.com/openshift/api/image/v1": "imagev1", "k8s.io/api/core/v1": "corev1",
			"k8s.io/apimachinery/pkg/apis/meta/v1": "metav1", "k8s.io/apimachinery/pkg/types": "types",
			"github.com/tidewaiter/tidewaiter/internal/image/record": "record",
		},
		ByHand: map[reflect.Type]string{
			reflect.TypeFor[metav1.Time](): "readTime", reflect.TypeFor[*metav1.FieldsV1](): "readFieldsV1", reflect.TypeFor[runtime.RawExtension](): "readExtension",
		},
		Readers: []readergen.Reader{
			// The serializer reads kind, version, and signatures of schema 1.
			{Func: "readImage", Of: imagev1.Image{}, Field: true, Except: []string{"kind", "apiVersion", "dockerImageSignatures"}},
			// Metadata is read as clients write it and as it is stored, except for owners and the fields of
			// objects that are being deleted.
			{Func: "readMeta", Of: metav1.ObjectMeta{}, Except: []string{
				"selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences", "finalizers",
			}},
			{Func: "readManaged", Of: metav1.ManagedFieldsEntry{}},
			{Func: "readLayer", Of: imagev1.ImageLayer{}},
			{Func: "readManifest", Of: imagev1.ImageManifest{}},
			{Func: "readSignature", Of: imagev1.ImageSignature{}},
			{Func: "readCondition", Of: imagev1.SignatureCondition{}},
			{Func: "readIssuer", Of: imagev1.SignatureIssuer{}},
			{Func: "readSubject", Of: imagev1.SignatureSubject{}},
			{Func: "readSpec", Of: record.ImageRecordSpec{}},
			{Func: "readRecordItem", Of: record.Item{}},
			{Func: "readRecorded", Of: record.Image{}},
			{Func: "readFound", Of: record.Signature{}},
			{Func: "readTag", Of: record.Tag{}},
			{Func: "readRepository", Of: record.Repository{}},
		},
	})
}

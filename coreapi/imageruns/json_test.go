package imageruns

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/internal/plainjson/readergen"
)

//go:generate go test -run ^TestReadersAreGenerated$ . -write-readers

// The readers are those of the types, as they are now.
func TestReadersAreGenerated(t *testing.T) {
	readergen.Check(t, "zz_generated.readers.go", readergen.Package{
		Name: "imageruns", Path: "github.com/tidewaiter/tidewaiter/coreapi/imageruns",
		Imports: map[string]string{
			"github.com/tidewaiter/tidewaiter/coreapi/clusters": "clusters",
			"k8s.io/apimachinery/pkg/apis/meta/v1":              "metav1", "k8s.io/apimachinery/pkg/types": "types",
		},
		ByHand: map[reflect.Type]string{reflect.TypeFor[metav1.Time](): "readTime", reflect.TypeFor[int32](): "readInt32"},
		Readers: []readergen.Reader{
			{Func: "readRun", Of: ImageRun{}, Field: true, Except: []string{"kind", "apiVersion"}},
			// The server's own writes have no other metadata.
			{Func: "readMeta", Of: metav1.ObjectMeta{}, Except: []string{
				"generateName", "selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "ownerReferences", "finalizers", "managedFields",
			}},
			{Func: "readSpec", Of: ImageRunSpec{}},
			{Func: "readStatus", Of: ImageRunStatus{}},
			{Func: "readVerdict", Of: RunVerdict{}},
			{Func: "readGap", Of: clusters.Gap{}},
		},
	})
}

// storedRun is an ImageRun that has every field.
func storedRun(tb testing.TB) string {
	tb.Helper()
	at := func(hour int) metav1.Time { return metav1.NewTime(time.Date(2026, 11, 24, hour, 0, 0, 0, time.UTC)) }
	until := at(9)
	raw, err := json.Marshal(&ImageRun{
		TypeMeta:   metav1.TypeMeta{Kind: "ImageRun", APIVersion: clusters.GroupVersion.String()},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "20261124t040000z-0", UID: "u", Generation: 1, CreationTimestamp: at(4), Labels: map[string]string{"a": "<\"é>"}},
		Spec: ImageRunSpec{
			Cluster: "prod", Workload: "Deployment/app", Container: "main", Image: "registry.example.com/app:1", ImageID: "registry.example.com/app@sha256:1", Digest: "sha256:1", Platform: "linux/amd64", From: at(4),
		},
		Status: ImageRunStatus{
			Until: &until, MostPods: 3, Admission: AdmissionWarned, AdmissionMessage: "m", VerdictsDropped: 2,
			Verdicts: []RunVerdict{{Since: at(4), Verified: "True", Reason: "r", Message: "m", Policies: []string{"p"}, PolicyVersions: []string{"1"}, Signers: []string{"s", "t"}, ExceptionUntil: "2026-12-01", Cause: "c"}, {Since: at(5)}},
			Unseen:   []clusters.Gap{{From: at(6), Until: &until}, {From: at(8)}},
		},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return string(raw)
}

// decoders are the reader of stored objects, and the API machinery's own.
func decoders(tb testing.TB) (ours, upstream runtime.Decoder) {
	tb.Helper()
	scheme := runtime.NewScheme()
	if err := Install(scheme); err != nil {
		tb.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	ofJSON := func(s runtime.StorageSerializer) runtime.Decoder {
		info, ok := runtime.SerializerInfoForMediaType(s.SupportedMediaTypes(), runtime.ContentTypeJSON)
		if !ok {
			tb.Fatal("no JSON")
		}
		return info.Serializer
	}
	return ofJSON(NewStorageSerializer(codecs)), ofJSON(codecs)
}

// A stored stretch is read plainly, and no field is left to the API machinery but kind and version.
func TestStoredRunIsPlain(t *testing.T) {
	text := storedRun(t)
	rest := &noted{}
	if _, _, err := (runReader{rest}).Decode([]byte(text), nil, &ImageRun{}); err != nil {
		t.Fatal(err)
	}
	if want := `{"kind":"ImageRun","apiVersion":"tidewaiter.dev/v1"}`; rest.data != want {
		t.Errorf("left to the API machinery is %s, want %s", rest.data, want)
	}
}

// noted is a serializer that notes what it gets.
type noted struct {
	runtime.Serializer
	data string
}

func (n *noted) Decode(data []byte, _ *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	n.data = string(data)
	return into, nil, nil
}

// FuzzRunReader: whatever is stored, the stretch that is read, its kind and the error are the API
// machinery's.
func FuzzRunReader(f *testing.F) {
	text := storedRun(f)
	for _, seed := range []string{
		text, "{}", "[]", "null", text[:len(text)-1], text + "x",
		strings.Replace(text, `"mostPods":3`, `"mostPods":3000000000`, 1), strings.Replace(text, `"mostPods":3`, `"mostPods":3.5`, 1),
		strings.Replace(text, `"mostPods":3`, `"mostPods":3,"mostPods":4`, 1), strings.Replace(text, `"until"`, `"Until"`, 1),
		strings.Replace(text, `"2026-11-24T09:00:00Z"`, `"2026-11-24"`, 1), strings.Replace(text, `"status"`, `"other"`, 1),
		strings.Replace(text, `"uid":"u"`, `"uid":"u","managedFields":[{"manager":"m"}],"finalizers":["f"]`, 1),
		strings.Replace(text, `"verdicts":[`, `"verdicts":null,"x":[`, 1), strings.Replace(text, "ImageRun", "ImageRunList", 1),
	} {
		f.Add([]byte(seed))
	}
	ours, upstream := decoders(f)
	gvk := clusters.GroupVersion.WithKind("ImageRun")
	f.Fuzz(func(t *testing.T, data []byte) {
		got, gotKind, gotErr := ours.Decode(data, &gvk, &ImageRun{})
		want, wantKind, wantErr := upstream.Decode(data, &gvk, &ImageRun{})
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(gotKind, wantKind) {
			t.Errorf("%v %+v, want %v %+v", gotKind, got, wantKind, want)
		}
		if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
			t.Errorf("%v, want %v", gotErr, wantErr)
		}
	})
}

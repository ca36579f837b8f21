package imagejson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/plainjson"
)

// install registers the kinds that are read here, as internal and as v1 types, as the server does.
func install(scheme *runtime.Scheme) error {
	for _, version := range []string{runtime.APIVersionInternal, imagev1.GroupVersion.Version} {
		scheme.AddKnownTypes(schema.GroupVersion{Group: imagev1.GroupName, Version: version}, &imagev1.Image{}, &imagev1.ImageList{}, &imagev1.ImageStream{})
	}
	metav1.AddToGroupVersion(scheme, imagev1.GroupVersion)
	return scheme.SetVersionPriority(imagev1.GroupVersion)
}

// readers returns the readers of JSON for requests, and the API machinery's own.
func readers(tb testing.TB) (ours, upstream map[string]runtime.Serializer) {
	tb.Helper()
	scheme := runtime.NewScheme()
	if err := install(scheme); err != nil {
		tb.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	return ofJSON(tb, NewStorageSerializer(codecs)), ofJSON(tb, codecs)
}

// ofJSON returns the serializers of JSON.
func ofJSON(tb testing.TB, s interface {
	SupportedMediaTypes() []runtime.SerializerInfo
}) map[string]runtime.Serializer {
	tb.Helper()
	info, ok := runtime.SerializerInfoForMediaType(s.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		tb.Fatal("no JSON")
	}
	return map[string]runtime.Serializer{"lenient": info.Serializer, "strict": info.StrictSerializer}
}

// TestDerivedIsDropped: requests leave out the metadata that the server derives, and nothing else
// does.
func TestDerivedIsDropped(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := install(scheme); err != nil {
		t.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	stored, requests := ofJSON(t, NewStorageSerializer(codecs))["strict"], ofJSON(t, NewSerializer(codecs))["strict"]
	read := func(s runtime.Serializer, document string) *imagev1.Image {
		t.Helper()
		image := &imagev1.Image{}
		if _, _, err := s.Decode([]byte(document), nil, image); err != nil {
			t.Fatal(err)
		}
		return image
	}
	sample := string(sampleImage(t))
	change := func(old, new string) string {
		changed := strings.Replace(sample, old, new, 1)
		if changed == sample {
			t.Fatalf("no %s in %s", old, sample)
		}
		return changed
	}
	for document, kept := range map[string]bool{
		sample: false,
		// is not read plainly
		change(`"Size":1500`, `"Comment":"\ud83d\ude00"`):                               false,
		change(`"name":"a"`, `"name":"a","resourceVersion":"1"`):                        true,
		strings.Replace(sample, "dockerImageConfig", "dockerImageManifestMediaType", 1): true,
	} {
		want, got := read(stored, document), read(requests, document)
		if len(want.DockerImageMetadata.Raw) == 0 || (len(got.DockerImageMetadata.Raw) > 0) != kept {
			t.Errorf("of %s the metadata is %s, kept: %t", document, got.DockerImageMetadata.Raw, kept)
		}
		want.DockerImageMetadata, got.DockerImageMetadata = runtime.RawExtension{}, runtime.RawExtension{}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

func sampleImage(tb testing.TB) []byte {
	tb.Helper()
	now := metav1.Date(2026, 1, 2, 3, 4, 5, 0, time.Local)
	raw, err := json.Marshal(&imagev1.Image{
		TypeMeta: metav1.TypeMeta{APIVersion: "image.openshift.io/v1", Kind: "Image"},
		ObjectMeta: metav1.ObjectMeta{
			Name: "a", UID: "u", Generation: 1, CreationTimestamp: now, Labels: map[string]string{"b": "<\"\\&\u2028é\x00>"},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "m", Operation: "Update", APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{".":{}}}`), Subresource: "s"}, {},
			},
		},
		DockerImageReference: "registry.example.com/a",
		DockerImageMetadata:  runtime.RawExtension{Raw: []byte(`{"kind":"DockerImage","Size":1500,"Config":{"Cmd":["a","b"]}}`)},
		DockerImageManifest:  "{\n\t\"schemaVersion\":2,\"x\":\"<\\\"\\\\&\u2028é\x00>\"}",
		DockerImageConfig:    strings.Repeat(`{"os":"linux"}`, 3),
		DockerImageLayers:    []imagev1.ImageLayer{{Name: "sha256:00", LayerSize: 3, MediaType: "t"}, {Name: "sha256:01", LayerSize: 4, MediaType: "t"}},
		DockerImageManifests: []imagev1.ImageManifest{{Digest: "sha256:01", MediaType: "t", ManifestSize: 4, Architecture: "arm", OS: "linux", Variant: "v6"}},
		Signatures: []imagev1.ImageSignature{{
			ObjectMeta: metav1.ObjectMeta{Name: "a@b", CreationTimestamp: now}, Type: "atomic", Content: []byte("content"),
			Conditions: []imagev1.SignatureCondition{
				{Type: "Trusted", Status: "True", LastProbeTime: now, LastTransitionTime: now, Reason: "r", Message: "m"}, {Type: "Complete"},
			},
			ImageIdentity: "a", SignedClaims: map[string]string{"b": "c"}, Created: &now,
			IssuedBy: &imagev1.SignatureIssuer{SignatureGenericEntity: imagev1.SignatureGenericEntity{Organization: "o", CommonName: "n"}},
			IssuedTo: &imagev1.SignatureSubject{SignatureGenericEntity: imagev1.SignatureGenericEntity{CommonName: "n"}, PublicKeyID: "k"},
		}},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

// fuzzReaders compares our readers of a kind with the API machinery's.
func fuzzReaders(f *testing.F, gvk schema.GroupVersionKind, newObject func() runtime.Object) {
	ours, upstream := readers(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for name := range ours {
			got, gotKind, gotErr := ours[name].Decode(data, &gvk, newObject())
			want, wantKind, wantErr := upstream[name].Decode(data, &gvk, newObject())
			if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(gotKind, wantKind) {
				t.Errorf("%s: %v %+v, want %v %+v", name, gotKind, got, wantKind, want)
			}
			if (gotErr == nil) != (wantErr == nil) || gotErr != nil && gotErr.Error() != wantErr.Error() {
				t.Errorf("%s: %v, want %v", name, gotErr, wantErr)
			}
		}
	})
}

// FuzzImageReader: for any input, the object, its kind, errors and warnings equal the API
// machinery's.
func FuzzImageReader(f *testing.F) {
	f.Add(sampleImage(f))
	f.Add(bytes.Replace(sampleImage(f), []byte("1500"), []byte("1.5e3"), 1))
	f.Add(bytes.Replace(sampleImage(f), []byte("1500"), []byte("1e999"), 1))
	for _, seed := range []string{
		``, `{}`, `[]`, `null`, ` { } `, `{"dockerImageConfig":"a"`, `{"dockerImageConfig":"a"}x`, `{"dockerImageConfig":"a",}`,
		`{"kind":"Image","apiVersion":"image.openshift.io/v1","dockerImageConfig":"a"}`,
		"\t{ \"dockerImageConfig\" : \"a\" ,\r\n \"dockerImageManifest\":\"\\u00e9\\/\\b\\f\\n\\r\\t\" } \n",
		`{"dockerImageConfig":"a","dockerImageConfig":"b"}`,
		`{"metadata":{"creationTimestamp":"2026-01-02T03:04:05.678+02:00","managedFields":[{"time":null,"fieldsV1":null},null]}}`,
		`{"metadata":{"creationTimestamp":"yesterday"}}`, `{"metadata":{"creationTimestamp":1,"managedFields":[{"fieldsV1":{"a":1,"a":2}}]}}`,
		`{"signatures":[{"conditions":null,"signedClaims":null,"created":null,"issuedBy":null,"issuedTo":{}},{"issuedBy":{"publicKeyID":"a"}}]}`,
		`{"signatures":[{"conditions":[{"lastProbeTime":""}],"created":"2026-01-02T03:04:05Z"}],"dockerImageManifests":[]}`,
		`{"dockerImageConfig":"a","docker\u0049mageConfig":"b"}`,
		`{"dockerImageConfig":"a","DockerImageConfig":"b"}`,
		`{"dockerImageConfig":null,"dockerImageManifest":7}`,
		`{"dockerImageConfig":"a","unknown":1,"kind":"Image","KIND":"Pod"}`,
		`{"dockerImageConfig":"\ud83d\ude00","dockerImageManifest":"\ud83d"}`,
		`{"dockerImageConfig":"\'","dockerImageManifest":"\u12"}`,
		"{\"dockerImageConfig\":\"\xff\",\"dockerImageManifest\":\"\x01\"}",
		`{"dockerImageConfig":"\\\\\"","dockerImageManifest":"\\"}`,
		`{"dockerImageMetadata":{"a":[1,{"b":"}"}]},"metadata":{"name":"a"}}`,
		`{"dockerImageMetadata":{"a":[1},"metadata":{"name":"a"}}`,
		`{"dockerImageMetadata":{"a":1,"a":2},"metadata":{"name":"a","name":"b"}}`,
		`{"dockerImageMetadata":null,"dockerImageConfig":"a"}`,
		`{"dockerImageConfig":"a","metadata":[}],"x":{]}`,
		`{"dockerImageConfig":"a","dockerImageLayers":[1}}`,
		`{"dockerImageConfig":"a","dockerImageLayers":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`,
		`{"kind":"ImageList","apiVersion":"image.openshift.io/v1","dockerImageConfig":"a"}`,
		`{"kind":"Image","apiVersion":"image.openshift.io/v2","dockerImageConfig":"a"}`,
	} {
		f.Add([]byte(seed))
	}
	fuzzReaders(f, imagev1.GroupVersion.WithKind("Image"), func() runtime.Object { return &imagev1.Image{} })
}

// FuzzImageListReader is FuzzImageReader for lists.
func FuzzImageListReader(f *testing.F) {
	list := func(items ...string) []byte {
		return []byte(`{"kind":"ImageList","apiVersion":"image.openshift.io/v1","metadata":{"resourceVersion":"7","continue":"x","remainingItemCount":3},"items":[` + strings.Join(items, ",") + `]}`)
	}
	sample := string(sampleImage(f))
	f.Add(list())
	f.Add(list(sample, sample))
	f.Add(list(strings.Replace(sample, "1500", "1.5e3", 1), sample))
	f.Add(list(`{"metadata":{"name":"a"},"dockerImageConfig":"b"}`, `{"kind":null,"apiVersion":"v1","metadata":null}`, `{"kind":"Pod"}`))
	f.Add(list(`{"metadata":{"name":"a","finalizers":["f"]},"dockerImageSignatures":["YQ=="]}`))
	f.Add(list(`null`))
	f.Add(list(`{"kind":1}`))
	f.Add(list(`{"unknown":1}`))
	f.Add(list(`{"metadata":{"name":"a"},"metadata":{"name":"b"}}`))
	f.Add(list(`{"kind":"Image","Kind":"Image"}`))
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"items":null}`, `{"items":{}}`, `{"items":[{}],"items":[{},{}]}`, `{"items":[{}]}x`, `{"items":[{}`, `{"items":[{},]}`,
		`{"kind":"Image","apiVersion":"image.openshift.io/v1","items":[{}]}`, `{"kind":"ImageList","apiVersion":"v2","items":[{}]}`,
		`{"metadata":{"resourceVersion":1},"items":[{"metadata":{"name":"a"}}]}`, `{"unknown":[{"a":1}],"items":[{"dockerImageConfig":"a"}]}`, `{"Items":[{"dockerImageConfig":"a"}]}`,
	} {
		f.Add([]byte(seed))
	}
	fuzzReaders(f, imagev1.GroupVersion.WithKind("ImageList"), func() runtime.Object { return &imagev1.ImageList{} })
}

// sampleItems are an image and a tag of an ImageRecord.
const sampleItems = `{"image":{"name":"sha256:00","repository":"registry.example.com/a","dockerImageReference":"registry.example.com/a@sha256:00","dockerImageManifest":"{\n\"schemaVersion\":2}","dockerImageManifestMediaType":"t","dockerImageConfig":"\u003cé>","annotations":{"a":"b"},"stored":true,"searched":true,"signatures":[{"name":"a@b","type":"atomic","content":"Y29udGVudA=="}]}},` +
	`{"tag":{"reference":"registry.example.com/a:b","version":"7","digest":"sha256:00","absent":true,"reason":"r","message":"m","paused":true,"contested":true,"alone":true,"cause":"import"}}`

// FuzzImageRecordReader is FuzzImageReader for ImageRecords.
func FuzzImageRecordReader(f *testing.F) {
	told := func(items string) []byte {
		return []byte(`{"apiVersion":"tidewaiter.dev/v1","kind":"ImageRecord","spec":{"items":[` + items + `]}}`)
	}
	for _, items := range []string{
		``, sampleItems, `{}`, `null`, `1`, `{"image":null,"tag":null}`, `{"image":{"name":1}}`, `{"image":{"unknown":1}}`, `{"image":{"name":"a","name":"b"}}`, `{"Image":{"name":"a"}}`,
		`{"image":{"signatures":[null,{"content":"?"}],"annotations":{"a":"b","a":"c"}}}`, `{"image":{"signatures":[],"annotations":null}}`, `{"tag":{"absent":"yes"}}`, `{"image":{"dockerImageConfig":"\ud83d"}}`,
	} {
		f.Add(told(items))
	}
	for _, seed := range []string{
		``, `{}`, `null`, `[]`, `{"spec":null}`, `{"spec":{}}`, `{"spec":{"items":null}}`, `{"spec":[]}`, `{"spec":{"items":[]},"spec":{}}`, `{"spec":{"items":[{}]}}x`, `{"spec":{"more":1}}`, `{"Spec":{"items":[{}]}}`,
		`{"kind":"Image","spec":{"items":[{}]}}`, `{"apiVersion":"v2","spec":{"items":[{}]}}`, `{"metadata":{"name":"a","labels":{"b":"c"}},"spec":{"items":[{}]},"status":{"items":[{"left":["a"]}]}}`, `{"metadata":1,"spec":{}}`, `{"unknown":{},"spec":{}}`,
	} {
		f.Add([]byte(seed))
	}
	fuzzReaders(f, record.GroupVersion.WithKind(record.Kind), func() runtime.Object { return &record.ImageRecord{} })
}

// All fields of a record are plain: otherwise the comparison above would compare nothing.
func TestRecordIsPlain(t *testing.T) {
	document := plainjson.New([]byte(`{"items":[` + sampleItems + `]}`))
	if spec := readSpec(document); !document.Done() || len(spec.Items) != 2 {
		t.Errorf("read %+v", spec)
	}
}

// If fields were never taken, the comparison above would compare nothing.
func TestFieldsAreTaken(t *testing.T) {
	data := sampleImage(t)
	var image, want imagev1.Image
	rest, ok := takeFields(data, &image)
	if !ok || string(rest) != `{"kind":"Image","apiVersion":"image.openshift.io/v1"}` {
		t.Fatalf("left %s, %v", rest, ok)
	}
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	want.TypeMeta = metav1.TypeMeta{}
	if !reflect.DeepEqual(image, want) {
		t.Errorf("took %+v, want %+v", image, want)
	}
}

// A brief list has Images with everything except their content.
func TestBriefList(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := install(scheme); err != nil {
		t.Fatal(err)
	}
	reader := ofJSON(t, NewBriefSerializer(serializer.NewCodecFactory(scheme)))["lenient"]
	data := sampleImage(t)
	var image imagev1.Image
	if err := json.Unmarshal(data, &image); err != nil {
		t.Fatal(err)
	}
	image.DockerImageManifest, image.DockerImageConfig, image.DockerImageMetadata = "", "", runtime.RawExtension{}
	list, want := imagev1.ImageList{}, []imagev1.Image{image, image}
	if _, _, err := reader.Decode(fmt.Appendf(nil, `{"kind":"ImageList","apiVersion":"image.openshift.io/v1","items":[%s,%s]}`, data, data), nil, &list); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(list.Items, want) {
		t.Errorf("read %+v, want %+v", list.Items, want)
	}
}

// ReadKnown reads the parts of a known image that an import compares, without its content.
func TestReadKnown(t *testing.T) {
	t.Parallel()
	var image imagev1.Image
	if err := json.Unmarshal(sampleImage(t), &image); err != nil {
		t.Fatal(err)
	}
	read := func(change func(*imagev1.Image)) (got, whole *imagev1.Image, ok bool) {
		t.Helper()
		whole = image.DeepCopy()
		whole.DockerImageManifest, whole.DockerImageConfig, whole.DockerImageManifests = "{}", "{}", nil
		change(whole)
		data, err := json.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		got, ok = ReadKnown(data)
		whole.DockerImageConfig, whole.DockerImageMetadata, whole.DockerImageLayers, whole.TypeMeta = "", runtime.RawExtension{}, nil, metav1.TypeMeta{}
		return got, whole, ok
	}
	got, want, ok := read(func(*imagev1.Image) {})
	if want.DockerImageManifest = ""; !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, want %+v", got, want)
	}
	got, want, ok = read(func(i *imagev1.Image) {
		i.DockerImageManifest, i.DockerImageConfig, i.DockerImageManifests = `{"manifests":[]}`, "", []imagev1.ImageManifest{{Digest: "sha256:a"}}
	})
	if !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("an index: read %+v, want %+v", got, want)
	}
	for what, change := range map[string]func(*imagev1.Image){
		"no manifest": func(i *imagev1.Image) { i.DockerImageManifest = "" },
		"no config":   func(i *imagev1.Image) { i.DockerImageConfig = "" },
	} {
		if got, _, ok := read(change); ok {
			t.Errorf("%s: read %+v", what, got)
		}
	}
	if _, ok := ReadKnown([]byte(`{"metadata":{}`)); ok {
		t.Error("half a document was read")
	}
}

func BenchmarkImageReader(b *testing.B) {
	image := imagev1.Image{}
	if err := json.Unmarshal(sampleImage(b), &image); err != nil {
		b.Fatal(err)
	}
	image.DockerImageManifest = strings.Repeat(`{"digest":"sha256:0123456789abcdef","size":12345},`, 50)
	image.DockerImageConfig = strings.Repeat(`{"Env":["PATH=/usr/bin:/bin"],"created_by":"RUN x"},`, 150)
	data, err := json.Marshal(image)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("Reader=Known", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			if _, ok := ReadKnown(data); !ok {
				b.Fatal("not read")
			}
		}
	})
	ours, upstream := readers(b)
	for name, r := range map[string]runtime.Serializer{"Image": ours["strict"], "Any": upstream["strict"]} {
		b.Run("Reader="+name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, _, err := r.Decode(data, nil, &imagev1.Image{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

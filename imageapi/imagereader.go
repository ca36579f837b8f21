package imageapi

import (
	"bytes"
	"reflect"

	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/recognizer"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tidewaiter/tidewaiter/imageapi/plainjson"
)

// imageReader is a serializer of JSON. It takes the fields that it knows out of an Image's document,
// reads them itself and leaves the rest to the serializer. In doubt it leaves everything to it, so
// that what is accepted, and every error and warning, is the serializer's.
type imageReader struct{ runtime.Serializer }

var _ recognizer.RecognizingDecoder = imageReader{}

// RecognizesData is part of recognizer.RecognizingDecoder.
func (r imageReader) RecognizesData(data []byte) (ok, unknown bool, err error) {
	if d, is := r.Serializer.(recognizer.RecognizingDecoder); is {
		return d.RecognizesData(data)
	}
	return false, true, nil
}

// Decode is part of runtime.Decoder.
func (r imageReader) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	image, ok := into.(*imagev1.Image)
	if !ok || !reflect.ValueOf(image).Elem().IsZero() {
		return r.Serializer.Decode(data, defaults, into)
	}
	rest, ok := takeFields(data, image)
	if ok {
		obj, gvk, err := r.Serializer.Decode(rest, defaults, image)
		if err == nil && obj == runtime.Object(image) {
			return obj, gvk, nil
		}
	}
	*image = imagev1.Image{}
	return r.Serializer.Decode(data, defaults, into)
}

// imageFields are the fields of an Image that are taken.
var imageFields = plainjson.Fields{
	"metadata", "dockerImageReference", "dockerImageMetadata", "dockerImageMetadataVersion", "dockerImageManifest",
	"dockerImageLayers", "signatures", "dockerImageManifestMediaType", "dockerImageConfig", "dockerImageManifests",
}

// takeFields splits an Image in JSON: fields that are plain are read into image, and rest is a
// document of all others as they stand. What is wrong with those is still wrong in rest. It is false
// of a document that is not plain.
func takeFields(data []byte, image *imagev1.Image) (rest []byte, ok bool) {
	rest = append(make([]byte, 0, 256), '{')
	r := plainjson.New(data)
	for key := range imageFields.Of(r) {
		before := *r
		if takeField(r, key, image); !r.Failed() {
			continue
		}
		*r = before
		value := r.Raw()
		if len(rest) > 1 {
			rest = append(rest, ',')
		}
		rest = append(append(append(append(rest, '"'), key...), '"', ':'), value...)
	}
	return append(rest, '}'), r.Done()
}

// takeField reads a field into image. It sets nothing where it fails.
func takeField(r *plainjson.Reader, key string, image *imagev1.Image) {
	switch key {
	case "metadata":
		set(r, &image.ObjectMeta, readMeta)
	case "dockerImageReference":
		set(r, &image.DockerImageReference, (*plainjson.Reader).Text)
	case "dockerImageMetadata":
		set(r, &image.DockerImageMetadata, readExtension)
	case "dockerImageMetadataVersion":
		set(r, &image.DockerImageMetadataVersion, (*plainjson.Reader).Text)
	case "dockerImageManifest":
		set(r, &image.DockerImageManifest, (*plainjson.Reader).Text)
	case "dockerImageLayers":
		set(r, &image.DockerImageLayers, readLayers)
	case "signatures":
		set(r, &image.Signatures, readSignatures)
	case "dockerImageManifestMediaType":
		set(r, &image.DockerImageManifestMediaType, (*plainjson.Reader).Text)
	case "dockerImageConfig":
		set(r, &image.DockerImageConfig, (*plainjson.Reader).Text)
	case "dockerImageManifests":
		set(r, &image.DockerImageManifests, readManifests)
	default:
		r.Fail()
	}
}

func set[T any](r *plainjson.Reader, to *T, read func(*plainjson.Reader) T) {
	if v := read(r); !r.Failed() {
		*to = v
	}
}

// readExtension reads any value as it stands.
func readExtension(r *plainjson.Reader) (e runtime.RawExtension) {
	if !r.Null() {
		e.Raw = bytes.Clone(r.Raw())
	}
	return e
}

var metaFields = plainjson.Fields{
	"name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "labels", "annotations", "managedFields",
}

// readMeta reads metadata as clients write it and as it is stored, but for what objects have only while
// they are deleted, and owners.
func readMeta(r *plainjson.Reader) (m metav1.ObjectMeta) {
	if r.Null() {
		return m
	}
	for key := range metaFields.Of(r) {
		switch key {
		case "name":
			m.Name = r.Text()
		case "generateName":
			m.GenerateName = r.Text()
		case "namespace":
			m.Namespace = r.Text()
		case "uid":
			m.UID = types.UID(r.Text())
		case "resourceVersion":
			m.ResourceVersion = r.Text()
		case "generation":
			m.Generation = r.Number()
		case "creationTimestamp":
			m.CreationTimestamp = readTime(r)
		case "labels":
			m.Labels = plainjson.Map(r, (*plainjson.Reader).Text)
		case "annotations":
			m.Annotations = plainjson.Map(r, (*plainjson.Reader).Text)
		case "managedFields":
			m.ManagedFields = plainjson.List(r, readManaged)
		default:
			r.Fail()
		}
	}
	return m
}

// readTime reads a time or null.
func readTime(r *plainjson.Reader) metav1.Time { return metav1.Time{Time: r.Time()} }

var managedFields = plainjson.Fields{"manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"}

func readManaged(r *plainjson.Reader) (m metav1.ManagedFieldsEntry) {
	for key := range managedFields.Of(r) {
		switch key {
		case "manager":
			m.Manager = r.Text()
		case "operation":
			m.Operation = metav1.ManagedFieldsOperationType(r.Text())
		case "apiVersion":
			m.APIVersion = r.Text()
		case "time":
			m.Time = plainjson.Pointer(r, readTime)
		case "fieldsType":
			m.FieldsType = r.Text()
		case "fieldsV1":
			if !r.Null() {
				m.FieldsV1 = metav1.NewFieldsV1(string(r.Raw()))
			}
		case "subresource":
			m.Subresource = r.Text()
		default:
			r.Fail()
		}
	}
	return m
}

var layerFields = plainjson.Fields{"name", "size", "mediaType"}

func readLayers(r *plainjson.Reader) []imagev1.ImageLayer { return plainjson.List(r, readLayer) }

func readLayer(r *plainjson.Reader) (l imagev1.ImageLayer) {
	for key := range layerFields.Of(r) {
		switch key {
		case "name":
			l.Name = r.Text()
		case "size":
			l.LayerSize = r.Number()
		case "mediaType":
			l.MediaType = r.Text()
		default:
			r.Fail()
		}
	}
	return l
}

var manifestFields = plainjson.Fields{"digest", "mediaType", "manifestSize", "architecture", "os", "variant"}

func readManifests(r *plainjson.Reader) []imagev1.ImageManifest {
	return plainjson.List(r, readManifest)
}

func readManifest(r *plainjson.Reader) (m imagev1.ImageManifest) {
	for key := range manifestFields.Of(r) {
		switch key {
		case "digest":
			m.Digest = r.Text()
		case "mediaType":
			m.MediaType = r.Text()
		case "manifestSize":
			m.ManifestSize = r.Number()
		case "architecture":
			m.Architecture = r.Text()
		case "os":
			m.OS = r.Text()
		case "variant":
			m.Variant = r.Text()
		default:
			r.Fail()
		}
	}
	return m
}

var signatureFields = plainjson.Fields{
	"kind", "apiVersion", "metadata", "type", "content", "conditions", "imageIdentity", "signedClaims", "created", "issuedBy", "issuedTo",
}

func readSignatures(r *plainjson.Reader) []imagev1.ImageSignature {
	return plainjson.List(r, readSignature)
}

func readSignature(r *plainjson.Reader) (s imagev1.ImageSignature) {
	for key := range signatureFields.Of(r) {
		switch key {
		case "kind":
			s.Kind = r.Text()
		case "apiVersion":
			s.APIVersion = r.Text()
		case "metadata":
			s.ObjectMeta = readMeta(r)
		case "type":
			s.Type = r.Text()
		case "content":
			s.Content = r.Base64()
		case "conditions":
			s.Conditions = plainjson.List(r, readCondition)
		case "imageIdentity":
			s.ImageIdentity = r.Text()
		case "signedClaims":
			s.SignedClaims = plainjson.Map(r, (*plainjson.Reader).Text)
		case "created":
			s.Created = plainjson.Pointer(r, readTime)
		case "issuedBy":
			s.IssuedBy = plainjson.Pointer(r, readIssuer)
		case "issuedTo":
			s.IssuedTo = plainjson.Pointer(r, readSubject)
		default:
			r.Fail()
		}
	}
	return s
}

var conditionFields = plainjson.Fields{"type", "status", "lastProbeTime", "lastTransitionTime", "reason", "message"}

func readCondition(r *plainjson.Reader) (c imagev1.SignatureCondition) {
	for key := range conditionFields.Of(r) {
		switch key {
		case "type":
			c.Type = imagev1.SignatureConditionType(r.Text())
		case "status":
			c.Status = corev1.ConditionStatus(r.Text())
		case "lastProbeTime":
			c.LastProbeTime = readTime(r)
		case "lastTransitionTime":
			c.LastTransitionTime = readTime(r)
		case "reason":
			c.Reason = r.Text()
		case "message":
			c.Message = r.Text()
		default:
			r.Fail()
		}
	}
	return c
}

var entityFields = plainjson.Fields{"organization", "commonName", "publicKeyID"}

func readIssuer(r *plainjson.Reader) (i imagev1.SignatureIssuer) {
	for key := range entityFields.Of(r) {
		switch key {
		case "organization":
			i.Organization = r.Text()
		case "commonName":
			i.CommonName = r.Text()
		default:
			r.Fail()
		}
	}
	return i
}

func readSubject(r *plainjson.Reader) (s imagev1.SignatureSubject) {
	for key := range entityFields.Of(r) {
		switch key {
		case "organization":
			s.Organization = r.Text()
		case "commonName":
			s.CommonName = r.Text()
		case "publicKeyID":
			s.PublicKeyID = r.Text()
		default:
			r.Fail()
		}
	}
	return s
}

package imageapi

import (
	"fmt"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/client-go/tools/cache"

	"tidewaiter/imageapi/manifest"
)

// selectableFields are the field selectors of images beside metadata.name. Each is also an index of
// the storage.
var selectableFields = storage.IndexerFuncs{
	"dockerImageReference":             func(obj runtime.Object) string { return obj.(*imagev1.Image).DockerImageReference },
	"dockerImageManifestMediaType":     func(obj runtime.Object) string { return obj.(*imagev1.Image).DockerImageManifestMediaType },
	"dockerImageMetadata.Architecture": func(obj runtime.Object) string { return architecture(obj.(*imagev1.Image)) },
}

// architecture is "" for images without readable metadata and for indexes.
func architecture(image *imagev1.Image) string {
	metadata, err := manifest.Metadata(image)
	if err != nil {
		return ""
	}
	return metadata.Architecture
}

// convertFieldLabel accepts the selectable fields as they are. The API server answers 400 to any other.
func convertFieldLabel(label, value string) (string, string, error) {
	if _, ok := selectableFields[label]; ok || label == "metadata.name" {
		return label, value, nil
	}
	return "", "", fmt.Errorf("field label %q is not supported for images: select by metadata.name, dockerImageReference, dockerImageManifestMediaType or dockerImageMetadata.Architecture", label)
}

// attributes are what label and field selectors match against.
func attributes(obj runtime.Object) (labels.Set, fields.Set, error) {
	image, ok := obj.(*imagev1.Image)
	if !ok {
		return nil, nil, fmt.Errorf("%T is no Image", obj)
	}
	set := fields.Set{}
	for name, value := range selectableFields {
		set[name] = value(image)
	}
	return image.Labels, generic.AddObjectMetaFieldsSet(set, &image.ObjectMeta, false), nil
}

// predicate selects images. Naming the indexed fields lets the storage answer from an index.
func predicate(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
	p := storage.SelectionPredicate{Label: label, Field: field, GetAttrs: attributes}
	for name := range selectableFields {
		p.IndexFields = append(p.IndexFields, name)
	}
	return p
}

// indexers are selectableFields in the form that caches take.
func indexers() *cache.Indexers {
	out := cache.Indexers{}
	for name, value := range selectableFields {
		out[storage.FieldIndex(name)] = func(obj any) ([]string, error) {
			image, ok := obj.(*imagev1.Image)
			if !ok {
				return nil, fmt.Errorf("%T is no Image", obj)
			}
			return []string{value(image)}, nil
		}
	}
	return &out
}

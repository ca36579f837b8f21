package imageapi

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/openshift/api/image/docker10"
	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"tidewaiter/imageapi/manifest"
)

// none is what kubectl's tables say for nothing.
const none = "<none>"

// maxPlatforms is how many platforms of an index a cell names.
const maxPlatforms = 4

// column is one column of the table. cell gets the image and its decoded metadata.
type column struct {
	metav1.TableColumnDefinition
	cell func(image *imagev1.Image, metadata *docker10.DockerImage) any
}

// columns of `kubectl get images`. Those of priority 1 are shown by -o wide.
var columns = []column{
	{
		metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: "The digest of the image's manifest."},
		func(image *imagev1.Image, _ *docker10.DockerImage) any { return image.Name },
	},
	{
		metav1.TableColumnDefinition{Name: "Image Reference", Type: "string", Description: "The reference the image can be pulled by."},
		func(image *imagev1.Image, _ *docker10.DockerImage) any { return image.DockerImageReference },
	},
	{
		metav1.TableColumnDefinition{Name: "Size", Type: "string", Priority: 1, Description: "Bytes in the registry, each layer counted once."},
		func(_ *imagev1.Image, metadata *docker10.DockerImage) any { return humanSize(metadata.Size) },
	},
	{
		metav1.TableColumnDefinition{Name: "Layers", Type: "integer", Priority: 1, Description: "Number of layers."},
		func(image *imagev1.Image, _ *docker10.DockerImage) any { return int64(len(image.DockerImageLayers)) },
	},
	{
		metav1.TableColumnDefinition{Name: "Platform", Type: "string", Priority: 1, Description: "Operating system and architecture; of an index, those of its images."},
		func(image *imagev1.Image, metadata *docker10.DockerImage) any { return platforms(image, metadata) },
	},
	{
		metav1.TableColumnDefinition{Name: "Signatures", Type: "integer", Priority: 1, Description: "Number of signatures, trusted or not."},
		func(image *imagev1.Image, _ *docker10.DockerImage) any { return int64(len(image.Signatures)) },
	},
	{
		metav1.TableColumnDefinition{Name: "Media Type", Type: "string", Priority: 1, Description: "Media type of the manifest."},
		func(image *imagev1.Image, _ *docker10.DockerImage) any {
			return orNone(image.DockerImageManifestMediaType)
		},
	},
	{
		metav1.TableColumnDefinition{Name: "Created", Type: "string", Format: "date-time", Priority: 1, Description: "When the image was built, by its own account."},
		func(_ *imagev1.Image, metadata *docker10.DockerImage) any {
			if metadata.Created.IsZero() {
				return none
			}
			return metadata.Created.UTC().Format(time.RFC3339)
		},
	},
	{
		metav1.TableColumnDefinition{Name: "Age", Type: "string", Priority: 1, Description: "Time since the Image object was created."},
		func(image *imagev1.Image, _ *docker10.DockerImage) any {
			return metatable.ConvertToHumanReadableDateType(image.CreationTimestamp)
		},
	},
}

// tableConvertor implements rest.TableConvertor for Image and ImageList.
type tableConvertor struct{}

// ConvertToTable prints an Image or an ImageList.
func (tableConvertor) ConvertToTable(_ context.Context, object runtime.Object, tableOptions runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if opt, ok := tableOptions.(*metav1.TableOptions); !ok || !opt.NoHeaders {
		for _, c := range columns {
			table.ColumnDefinitions = append(table.ColumnDefinitions, c.TableColumnDefinition)
		}
	}
	addRow := func(obj runtime.Object) error {
		image, ok := obj.(*imagev1.Image)
		if !ok {
			return fmt.Errorf("%T is no Image", obj)
		}
		table.Rows = append(table.Rows, row(image))
		return nil
	}
	if meta.IsListType(object) {
		list, err := meta.ListAccessor(object)
		if err != nil {
			return nil, err
		}
		table.ResourceVersion, table.Continue, table.RemainingItemCount = list.GetResourceVersion(), list.GetContinue(), list.GetRemainingItemCount()
		return table, meta.EachListItem(object, addRow)
	}
	if m, err := meta.CommonAccessor(object); err == nil {
		table.ResourceVersion = m.GetResourceVersion()
	}
	return table, addRow(object)
}

func row(image *imagev1.Image) metav1.TableRow {
	metadata, err := manifest.Metadata(image)
	if err != nil {
		metadata = &docker10.DockerImage{}
	}
	r := metav1.TableRow{Object: runtime.RawExtension{Object: image}}
	for _, c := range columns {
		r.Cells = append(r.Cells, c.cell(image, metadata))
	}
	return r
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

// platforms names what the image runs on. Without the annotation, the architecture is all that is known.
func platforms(image *imagev1.Image, metadata *docker10.DockerImage) string {
	if len(image.DockerImageManifests) == 0 {
		if p := image.Annotations[manifest.PlatformAnnotation]; p != "" {
			return p
		}
		return orNone(metadata.Architecture)
	}
	var all []string
	for i, m := range image.DockerImageManifests {
		if i == maxPlatforms {
			all = append(all, fmt.Sprintf("+%d", len(image.DockerImageManifests)-i))
			break
		}
		all = append(all, orNone(manifest.Platform{OS: m.OS, Architecture: m.Architecture, Variant: m.Variant}.String()))
	}
	return strings.Join(all, ",")
}

// humanSize prints bytes in decimal units with three significant digits, as registries and docker
// do; "<none>" for 0, which no image has.
func humanSize(n int64) string {
	if n <= 0 {
		return none
	}
	if n < 1000 {
		return fmt.Sprintf("%dB", n)
	}
	size, unit := float64(n), 0
	for size >= 999.5 && unit < len(sizeUnits)-1 {
		size /= 1000
		unit++
	}
	return fmt.Sprintf("%.3g%s", size, sizeUnits[unit])
}

var sizeUnits = []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"}

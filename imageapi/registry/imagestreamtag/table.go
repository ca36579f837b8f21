package imagestreamtag

import (
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// streamTagTable prints ImageStreamTags. The columns are OpenShift's.
var streamTagTable = table.Of[*imagev1.ImageStreamTag]{
	Columns: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "The stream and the tag."},
		{Name: "Image Reference", Type: "string", Description: "The reference that the image can be pulled by."},
		{Name: "Updated", Type: "string", Description: "Time since the tag moved."},
		{Name: "Image Name", Type: "string", Priority: 1, Description: "The Image that the tag leads to."},
	},
	Rows: func(tag *imagev1.ImageStreamTag) [][]any {
		return [][]any{{tag.Name, tag.Image.DockerImageReference, imagestream.Ago(tag.CreationTimestamp), tag.Image.Name}}
	},
}

package manifest

import (
	"github.com/openshift/api/image/docker10"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/plainjson"
)

// readMetadata reads a dockerImageMetadata that is plain JSON, as derived ones are; false of any other.
func readMetadata(raw []byte) (*docker10.DockerImage, bool) {
	r := plainjson.New(raw)
	d := metadataOf(r)
	return d, r.Done()
}

var metadataFields = plainjson.Fields{
	"kind", "apiVersion", "Id", "Parent", "Comment", "Created", "Container", "ContainerConfig", "DockerVersion", "Author", "Config",
	"Architecture", "Size",
}

func metadataOf(r *plainjson.Reader) *docker10.DockerImage {
	d := &docker10.DockerImage{}
	for key := range metadataFields.Of(r) {
		switch key {
		case "kind":
			d.Kind = r.Text()
		case "apiVersion":
			d.APIVersion = r.Text()
		case "Id":
			d.ID = r.Text()
		case "Parent":
			d.Parent = r.Text()
		case "Comment":
			d.Comment = r.Text()
		case "Created":
			d.Created = metav1.Time{Time: r.Time()}
		case "Container":
			d.Container = r.Text()
		case "ContainerConfig":
			if !r.Null() {
				d.ContainerConfig = readDockerConfig(r)
			}
		case "DockerVersion":
			d.DockerVersion = r.Text()
		case "Author":
			d.Author = r.Text()
		case "Config":
			d.Config = plainjson.Pointer(r, readDockerConfig)
		case "Architecture":
			d.Architecture = r.Text()
		case "Size":
			d.Size = r.Number()
		default:
			r.Skip()
		}
	}
	return d
}

func readDockerConfig(r *plainjson.Reader) docker10.DockerConfig {
	c := readRunConfig(r)
	d := c.DockerConfig
	d.Entrypoint, d.Cmd = c.Entrypoint, c.Cmd
	return d
}

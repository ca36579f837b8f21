package manifest

import "github.com/tidewaiter/tidewaiter/imageapi/plainjson"

var manifestFields = plainjson.Fields{"schemaVersion", "mediaType", "artifactType", "config", "layers", "manifests", "subject", "annotations"}

// readManifest reads a manifest that is plain JSON and has no field that is unknown here; false of
// any other.
func readManifest(raw []byte) (*wireManifest, bool) {
	r := plainjson.New(raw)
	m := &wireManifest{}
	for key := range manifestFields.Of(r) {
		switch key {
		case "schemaVersion":
			m.SchemaVersion = int(r.Number())
		case "mediaType":
			m.MediaType = r.Text()
		case "artifactType":
			m.ArtifactType = r.Text()
		case "config":
			m.Config = plainjson.Pointer(r, readDescriptor)
		case "layers":
			m.Layers = plainjson.Pointer(r, readDescriptors)
		case "manifests":
			m.Manifests = plainjson.Pointer(r, readDescriptors)
		case "subject":
			m.Subject = plainjson.Pointer(r, readDescriptor)
		case "annotations":
			m.Annotations = plainjson.Map(r, (*plainjson.Reader).Text)
		default:
			r.Fail() // schema 1, or unknown
		}
	}
	return m, r.Done()
}

var descriptorFields = plainjson.Fields{"mediaType", "digest", "size", "annotations", "artifactType", "platform"}

func readDescriptors(r *plainjson.Reader) []Descriptor { return plainjson.List(r, readDescriptor) }

func readDescriptor(r *plainjson.Reader) (d Descriptor) {
	for key := range descriptorFields.Of(r) {
		switch key {
		case "mediaType":
			d.MediaType = r.Text()
		case "digest":
			d.Digest = r.Text()
		case "size":
			d.Size = r.Number()
		case "annotations":
			d.Annotations = plainjson.Map(r, (*plainjson.Reader).Text)
		case "artifactType":
			d.ArtifactType = r.Text()
		case "platform":
			d.Platform = plainjson.Pointer(r, readPlatform)
		default:
			r.Fail()
		}
	}
	return d
}

var platformFields = plainjson.Fields{"architecture", "os", "os.version", "os.features", "variant"}

func readPlatform(r *plainjson.Reader) (p Platform) {
	for key := range platformFields.Of(r) {
		switch key {
		case "architecture":
			p.Architecture = r.Text()
		case "os":
			p.OS = r.Text()
		case "os.version":
			p.OSVersion = r.Text()
		case "os.features":
			p.OSFeatures = r.Texts()
		case "variant":
			p.Variant = r.Text()
		default:
			r.Fail()
		}
	}
	return p
}

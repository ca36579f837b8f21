package imageapi

import _ "embed" // the views

var (
	//go:embed views/image_references.sql
	imageReferencesView string
	//go:embed views/images.sql
	imagesView string
	//go:embed views/layers.sql
	layersView string
	//go:embed views/signature_conditions.sql
	signatureConditionsView string
	//go:embed views/signatures.sql
	signaturesView string
)

// Views returns SQL views of images, by name: SELECT statements in SQLite's dialect over a view
// objects (key, value), where the key of an image is /image.openshift.io/images/<name> and value is
// the object as JSON text. The program that opens the database declares them.
func Views() map[string]string {
	return map[string]string{
		"image_references":     imageReferencesView,
		"images":               imagesView,
		"layers":               layersView,
		"signature_conditions": signatureConditionsView,
		"signatures":           signaturesView,
	}
}

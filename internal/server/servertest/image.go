package servertest

import (
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// SampleImage returns a small image that differs by name.
func SampleImage(t *testing.T, name string) v1.Image {
	t.Helper()
	image, err := sample.New(sample.Spec{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return image
}

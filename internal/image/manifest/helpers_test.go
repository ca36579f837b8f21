package manifest_test

import (
	"os"
	"path/filepath"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Digests of files in testdata, as sha256sum prints them.
const (
	digestOCIImage      = "sha256:07e2743435a8c3a1916e4f5bc9e3ea48cf87f13db9811c0fa2dbbd3348b3b724"
	digestOCIConfig     = "sha256:9e4eefac87e463c465b37425ab8f824f61a1205dec06084d31bb91c9a242138f"
	digestOCIIndex      = "sha256:3dbd114a824aeb09779393a23643bce2080cd99e7ae2defc41a085cd810d84ed"
	digestDockerSchema2 = "sha256:e5eaa63f49af6421971a9cbeea6464ffcf96c02278bc52d0ab8a22fa2e4c3015"
	digestDockerList    = "sha256:b9e9c4cd61dbc6e8c0ea65af7d7dcdc251d982bc237e52ae0d6623134f2f9452"
	// The digest of schema1.json, and of schema1-signed.json, whose payload it is.
	digestSchema1 = "sha256:baea60a5577268b54178057ebeab20b5f234ba2af0a3fb4abc10d87c17a52e08"

	digestLayer1 = "sha256:2804bad6fe94a55f18b2b37e300919a5fd517b95aa81e95db574c0ba069a3740"
	digestLayer2 = "sha256:8a1cee436cbac1489a1883c9d886fcfc46f302c55ed4106ae31729e4f4eb9041"
	digestTop    = "sha256:28720365c5e7476a011e4f43ac003ee5f16247a263b9d623aa85ed311d73bf39"
	digestBase   = "sha256:cae662172fd450bb0cd710a769079c05bfc5d8e35efa6576edc7d0377afdd4a2"
)

func read(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// newImage is an Image as a client sends it: bytes, and nothing derived.
func newImage(name, manifest, config, mediaType string) *imagev1.Image {
	return &imagev1.Image{
		ObjectMeta:                   metav1.ObjectMeta{Name: name},
		DockerImageReference:         "registry.example.com/acme/web@" + name,
		DockerImageManifest:          manifest,
		DockerImageConfig:            config,
		DockerImageManifestMediaType: mediaType,
	}
}

const sha512DockerSchema2 = "sha512:5c6db06ca8eb5299a256274fcfe35bffb3b5a352d24a000cc97af9e7905001b8d02f92c70af5b4d30ec7b5117da591764f4c977b1145db8eaa75654a16c51b0c"

package manifest

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/openshift/api/image/docker10"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/plainjson/readergen"
)

//go:generate go test -run ^TestReadersAreGenerated$ . -write-readers

// The generated readers match the present types.
func TestReadersAreGenerated(t *testing.T) {
	readergen.Check(t, "zz_generated.readers.go", readergen.Package{
		Name: "manifest", Path: "github.com/tidewaiter/tidewaiter/internal/image/manifest",
		Imports: map[string]string{"github.com/openshift/api/image/docker10": "docker10"},
		ByHand: map[reflect.Type]string{
			reflect.TypeFor[time.Time](): "readTime", reflect.TypeFor[metav1.Time](): "readLocalTime",
			reflect.TypeFor[docker10.DockerConfig](): "readDockerConfig", reflect.TypeFor[struct{}](): "readNothing",
			reflect.TypeFor[json.RawMessage](): "readAny",
		},
		Readers: []readergen.Reader{
			// A manifest with fields of schema 1, or with unknown ones, goes to the general reader.
			{Func: "readWire", Of: wireManifest{}, Except: []string{"fsLayers", "history", "signatures"}},
			{Func: "readDescriptor", Of: Descriptor{}},
			{Func: "readPlatform", Of: Platform{}},
			{Func: "readWhole", Of: Config{}, Skip: true},
			{Func: "readRootFS", Of: RootFS{}, Skip: true},
			{Func: "readHistory", Of: History{}, Skip: true},
			{Func: "readRunConfig", Of: RunConfig{}, Skip: true},
			{Func: "readDockerImage", Of: docker10.DockerImage{}, Skip: true},
		},
	})
}

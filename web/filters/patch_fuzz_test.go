package filters

import (
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// The code that merges patches knows every directive that passes here.
func FuzzDirectives(f *testing.F) {
	for _, seed := range []string{
		`{"$patch":"bogus"}`, `{"metadata":{"$patch":"replace","name":"x"}}`, `{"spec":{"containers":[{"$patch":"delete","name":"c"}]}}`,
		`{"$setElementOrder/containers":1}`, `{"spec":{"$retainKeys":["a"]}}`, `{"\u0024patch":1}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["f"]}}`, `[]`, `{`,
	} {
		f.Add([]byte(seed))
	}
	original := []byte(`{"metadata":{"name":"x","finalizers":["f"],"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	f.Fuzz(func(t *testing.T, patch []byte) {
		var object map[string]any
		if json.Unmarshal(patch, &object) != nil || object == nil {
			return
		}
		if err := checkDirectives(patch); err != nil {
			return
		}
		if _, err := strategicpatch.StrategicMergePatch(original, patch, corev1.Pod{}); err != nil && strings.Contains(err.Error(), "unknown patch type") {
			t.Fatalf("%s passes and is %v", patch, err)
		}
	})
}

package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
)

// knownKeys are the field names of all manifest formats.
var knownKeys = []string{
	"schemaVersion", "mediaType", "artifactType", "config", "layers", "manifests", "subject", "annotations",
	"fsLayers", "history", "signatures", "blobSum", "v1Compatibility",
	"digest", "size", "urls", "data", "platform",
	"architecture", "os", "os.version", "os.features", "variant",
}

// checkKeys refuses keys that differ from a known one only by case. Go's encoding/json, and so most
// container tools, read them as the known key; strict readers ignore them. Keys of annotations
// belong to users and may be any text.
func checkKeys(raw []byte) error {
	type frame struct {
		object      bool // else array
		annotations bool
		wantKey     bool
	}
	var stack []frame
	lastKey := ""
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	for dec.More() || len(stack) > 0 {
		tok, err := dec.Token()
		if err != nil {
			return fmt.Errorf("manifest: %w JSON: %v", ErrInvalid, err)
		}
		top := len(stack) - 1
		if top >= 0 && stack[top].object && stack[top].wantKey {
			if key, ok := tok.(string); ok {
				if !stack[top].annotations {
					if known := caseVariant(key); known != "" {
						return fmt.Errorf("manifest is %w: key %q differs from %q only by case", ErrAmbiguous, key, known)
					}
				}
				lastKey = key
				stack[top].wantKey = false
				continue
			}
		}
		switch tok {
		case json.Delim('{'):
			stack = append(stack, frame{object: true, wantKey: true, annotations: lastKey == "annotations"})
			lastKey = ""
			continue
		case json.Delim('['):
			stack = append(stack, frame{})
			lastKey = ""
			continue
		case json.Delim('}'), json.Delim(']'):
			stack = stack[:top]
		}
		// A value ended: its parent object, if any, expects a key next.
		if top = len(stack) - 1; top >= 0 && stack[top].object {
			stack[top].wantKey = true
		}
	}
	return nil
}

// caseVariant returns the known key that key equals but for case, or "".
func caseVariant(key string) string {
	variant := ""
	for _, known := range knownKeys {
		if key == known {
			return ""
		}
		if strings.EqualFold(key, known) {
			variant = known
		}
	}
	return variant
}

package payload

import (
	"bytes"
	"encoding/json"
	"math"
	"regexp"
	"time"
)

// The values of critical.type.
const (
	TypeCosign = "cosign container image signature"
	TypeAtomic = "atomic container signature"
)

// SimpleSigning is a parsed simple signing document. The format is containers/image's
// docs/containers-signature.5.md; cosign uses the same with its own critical.type.
type SimpleSigning struct {
	// Type is critical.type: TypeCosign or TypeAtomic.
	Type string
	// Digest is critical.image.docker-manifest-digest, as "algorithm:hex".
	Digest string
	// Reference is critical.identity.docker-reference, as it was signed. It may be empty, or not a
	// reference at all.
	Reference string
	// Optional holds the values under optional: strings as they are, everything else as JSON.
	Optional map[string]string
	// Timestamp is optional.timestamp. It is the zero time if there is none, or one outside the
	// years 1 to 9999.
	Timestamp time.Time
}

// digestPattern is the digest grammar of the OCI image specification, descriptor.md, with
// lower-case hex.
var digestPattern = regexp.MustCompile(`^[a-z0-9]+(?:[+._-][a-z0-9]+)*:[0-9a-f]{32,}$`)

// ParseSimpleSigning reads a simple signing document. Its critical.type must be wantType, so that a
// signature made for one scheme cannot be replayed in the other. It accepts what containers/image
// accepts: optional must be there, a creator is a string, a timestamp a whole number.
func ParseSimpleSigning(data []byte, wantType string) (*SimpleSigning, error) {
	s := &SimpleSigning{Optional: map[string]string{}}
	var critical, optional, image, identity json.RawMessage
	keep := func(into *json.RawMessage) func(json.RawMessage) error {
		return func(raw json.RawMessage) error { *into = raw; return nil }
	}
	if err := Object(data, Fields{"critical": keep(&critical), "optional": keep(&optional)}, nil); err != nil {
		return nil, err
	}
	if critical == nil {
		return nil, malformed("critical is missing")
	}
	err := Object(critical, Fields{"type": String(&s.Type), "image": keep(&image), "identity": keep(&identity)}, nil)
	if err != nil {
		return nil, inField("critical", err)
	}
	if s.Type != wantType {
		return nil, malformed("critical.type is %q, expected %q", s.Type, wantType)
	}
	if image == nil || identity == nil {
		return nil, malformed("critical.image and critical.identity are both required")
	}
	if err := Object(image, Fields{"docker-manifest-digest": String(&s.Digest)}, nil); err != nil {
		return nil, inField("critical.image", err)
	}
	if !digestPattern.MatchString(s.Digest) {
		return nil, malformed("critical.image.docker-manifest-digest %q is not a digest", s.Digest)
	}
	hasReference := false
	err = Object(identity, Fields{"docker-reference": func(raw json.RawMessage) error {
		hasReference = true
		return String(&s.Reference)(raw)
	}}, nil)
	if err != nil {
		return nil, inField("critical.identity", err)
	}
	if !hasReference {
		return nil, malformed("critical.identity.docker-reference is missing")
	}
	if optional == nil {
		return nil, malformed("optional is missing")
	}
	// cosign writes null when it has nothing to say.
	if string(optional) != "null" || wantType != TypeCosign {
		if err := Object(optional, nil, s.addOptional); err != nil {
			return nil, inField("optional", err)
		}
	}
	return s, nil
}

func (s *SimpleSigning) addOptional(key string, value json.RawMessage) error {
	text := string(value)
	switch {
	case value[0] == '"':
		if err := json.Unmarshal(value, &text); err != nil {
			return malformed("%w", err)
		}
	case bytes.ContainsAny(value, "eE") || len(value) > 300:
		// there may be a number that no float64 holds; containers/image refuses those, too
		var anything any
		if err := json.Unmarshal(value, &anything); err != nil {
			return malformed("%w", err)
		}
	}
	s.Optional[key] = text
	isNull := string(value) == "null"
	switch {
	case key == "creator" && !isNull && value[0] != '"':
		return malformed("not a string")
	case key == "timestamp" && !isNull:
		var seconds float64
		if err := json.Unmarshal(value, &seconds); err != nil {
			return malformed("%w", err)
		}
		if seconds != math.Trunc(seconds) || seconds < math.MinInt64 || seconds >= math.MaxInt64 {
			return malformed("%s is not a whole number of seconds", value)
		}
		if t := time.Unix(int64(seconds), 0).UTC(); t.Year() >= 1 && t.Year() <= 9999 {
			// RFC 3339 has no others
			s.Timestamp = t
		}
	}
	return nil
}

// MarshalSimpleSigning writes the document a signer signs, in cosign's spelling.
func MarshalSimpleSigning(typ, digest, reference string, optional map[string]any) ([]byte, error) {
	type image struct {
		Digest string `json:"docker-manifest-digest"`
	}
	type identity struct {
		Reference string `json:"docker-reference"`
	}
	type critical struct {
		Identity identity `json:"identity"`
		Image    image    `json:"image"`
		Type     string   `json:"type"`
	}
	return json.Marshal(struct {
		Critical critical       `json:"critical"`
		Optional map[string]any `json:"optional"`
	}{critical{identity{reference}, image{digest}, typ}, optional})
}

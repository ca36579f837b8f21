package payload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
)

// MediaTypeInToto is the DSSE payload type of an in-toto statement.
const MediaTypeInToto = "application/vnd.in-toto+json"

// PredicateCosignSign is the predicate type of a statement that is an image signature. A statement
// with any other predicate type is an attestation about the image (provenance, SBOM, test result),
// and does not say that anybody approves of the image.
const PredicateCosignSign = "https://sigstore.dev/cosign/sign/v1"

// Bounds on a statement. sigstore-go has the same against endless subjects (CVE-2024-45395).
const (
	maxSubjects       = 1024
	maxSubjectDigests = 32
)

// Statement is a parsed in-toto statement.
type Statement struct {
	PredicateType string
	// Predicate is JSON of any kind, as it was signed; nil if the statement has none.
	Predicate json.RawMessage
	// Subjects are the digests of each subject: algorithm → hex.
	Subjects []map[string]string
	// Sum is "sha256:" and the hex SHA-256 of the statement as it was signed: whoever has the same
	// has read the same statement.
	Sum string

	annotations []json.RawMessage // of each subject, nil if it has none
}

// ParseStatement reads an in-toto statement, version 0.1 or 1. It refuses a predicate that has a
// key twice, as readers take the one or the other.
func ParseStatement(data []byte) (*Statement, error) {
	sum := sha256.Sum256(data)
	s := &Statement{Sum: "sha256:" + hex.EncodeToString(sum[:])}
	var typ string
	ignore := func(string, json.RawMessage) error { return nil }
	err := Object(data, Fields{
		"_type":         String(&typ),
		"predicateType": String(&s.PredicateType),
		"predicate":     func(raw json.RawMessage) error { s.Predicate = raw; return Unambiguous(raw, false) },
		"subject": Array(maxSubjects, func(raw json.RawMessage) error {
			var digests map[string]string
			var annotations json.RawMessage
			if err := Object(raw, Fields{"digest": stringMap(&digests), "annotations": func(raw json.RawMessage) error { annotations = raw; return nil }}, ignore); err != nil {
				return err
			}
			if len(digests) > maxSubjectDigests {
				return malformed("%d digests, at most %d allowed", len(digests), maxSubjectDigests)
			}
			s.Subjects, s.annotations = append(s.Subjects, digests), append(s.annotations, annotations)
			return nil
		}),
	}, ignore)
	if err != nil {
		return nil, err
	}
	if typ != "https://in-toto.io/Statement/v1" && typ != "https://in-toto.io/Statement/v0.1" {
		return nil, malformed("statement type %q is not in-toto v0.1 or v1", typ)
	}
	return s, nil
}

// Covers reports whether a subject of the statement is the image digest ("algorithm:hex").
func (s *Statement) Covers(digest string) bool {
	algorithm, hex, ok := strings.Cut(digest, ":")
	return ok && hex != "" && slices.ContainsFunc(s.Subjects, func(digests map[string]string) bool { return digests[algorithm] == hex })
}

// Annotations are the annotations of the first subject with the image digest, as `cosign sign -a`
// writes them: strings as they are, anything else as JSON. Annotations that are not an object, or
// name one twice, are ignored.
func (s *Statement) Annotations(digest string) map[string]string {
	algorithm, hex, _ := strings.Cut(digest, ":")
	i := slices.IndexFunc(s.Subjects, func(digests map[string]string) bool { return hex != "" && digests[algorithm] == hex })
	if i < 0 || s.annotations[i] == nil {
		return nil
	}
	all := map[string]string{}
	err := Object(s.annotations[i], nil, func(key string, value json.RawMessage) error {
		text := string(value)
		if value[0] == '"' {
			if err := json.Unmarshal(value, &text); err != nil {
				return malformed("%w", err)
			}
		}
		all[key] = text
		return nil
	})
	if err != nil {
		return nil
	}
	return all
}

// Digest returns the first sha256 digest among the subjects, as "sha256:hex", or "".
func (s *Statement) Digest() string {
	for _, digests := range s.Subjects {
		if hex := digests["sha256"]; hex != "" {
			return "sha256:" + hex
		}
	}
	return ""
}

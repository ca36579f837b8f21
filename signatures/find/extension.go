package find

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// ownTypes are the types under which Images hold signatures that were found elsewhere in
// registries.
var ownTypes = []string{signatures.TypeSimpleSigning, signatures.TypeBundle, signatures.TypeNotation, verdicts.TypeAttestation}

// extension reads from OpenShift's signature extension (image-registry/.../signaturedispatcher.go),
// if the registry has announced it.
func (s *search) extension(ctx context.Context) error {
	if !s.client.hasExtension {
		return nil
	}
	body, status, _, err := s.client.get(ctx, "/extensions/v2/"+s.client.repo+"/signatures/"+s.digest, "application/json", MaxManifest, http.StatusNotFound)
	if s.lost(err, "signature extension") || status == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	var list struct {
		Signatures []struct {
			SchemaVersion int    `json:"schemaVersion"`
			Name          string `json:"name"`
			Type          string `json:"type"`
			Content       string `json:"content"`
		} `json:"signatures"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		s.notRead("signature extension: %v", err)
		return nil
	}
	for _, e := range list.Signatures {
		if slices.Contains(ownTypes, e.Type) {
			continue // OpenShift's registry returns signatures that its Images already have
		}
		if !s.countCandidate() {
			return nil
		}
		// OpenShift's controllers and podman use two names for the same type.
		if e.SchemaVersion != 2 || e.Type != signatures.TypeAtomic && e.Type != signatures.TypeAtomicAlias {
			s.notUsable("signature extension: %q has the unknown type %q and version %d", clip(e.Name), clip(e.Type), e.SchemaVersion)
			continue
		}
		content, err := base64.StdEncoding.DecodeString(e.Content)
		if err != nil {
			s.notUsable("signature extension: %q is not base64", clip(e.Name))
			continue
		}
		s.add(signatures.TypeAtomic, content)
	}
	return nil
}

package find

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// attest lists an attestation that is in blob. If it is signed, readAttestations may read it, so
// that it can be judged.
func (s *search) attest(a Attestation, blob descriptor, signed bool) {
	switch {
	case len(s.attestations) < MaxAttestations:
		a.Type, a.MediaType = clip(a.Type), clip(a.MediaType)
		l := attestationLayer{listed: len(s.attestations), document: -1, descriptor: blob}
		if packages.IsDocument(a.Type) || packages.IsDocument(a.MediaType) {
			l.document = len(s.documents)
			s.documents = append(s.documents, annotation.Document{Type: a.Type, Manifest: a.Digest, Blob: blob.Digest, Size: blob.Size, Signed: signed})
		}
		if signed {
			s.unreadLayers = append(s.unreadLayers, l)
		}
		s.attestations = append(s.attestations, a)
	case len(s.attestations) == MaxAttestations && !s.unlisted:
		s.unlisted = true
		s.warn("more than %d attestations; the rest is not listed", MaxAttestations)
	}
}

// readAttestations reads attestations, the small ones first. It runs after all signatures were
// read, so that no attestation uses up a signature's share. Which ones it reads does not depend on
// the registry's order.
func (s *search) readAttestations(ctx context.Context) error {
	slices.SortStableFunc(s.unreadLayers, func(a, b attestationLayer) int {
		return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Digest, b.Digest))
	})
	for i, l := range s.unreadLayers {
		switch {
		case l.Size > MaxAttestation:
			s.leaveOut(l, "%d bytes, at most %d are read", l.Size, MaxAttestation)
			continue
		case i >= MaxRead:
			s.leaveOut(l, "one of more than %d", MaxRead)
			continue
		}
		body, err := s.blob(ctx, l.descriptor)
		if s.leftOut(err, "attestation "+l.Digest) {
			s.leaveOut(l, "%v", err)
			continue
		}
		if err != nil {
			return err
		}
		if l.MediaType == mediaTypeEnvelope {
			if body, err = (&payload.Blob{MediaType: l.MediaType, Payload: body, Annotations: l.Annotations}).Marshal(); err != nil {
				return err
			}
		}
		s.add(signatures.TypeAttestation, body)
		if l.document >= 0 {
			_, s.documents[l.document].Signature, _ = strings.Cut(signatures.Name(s.digest, body), "@")
		}
	}
	return nil
}

func (s *search) leaveOut(l attestationLayer, format string, args ...any) {
	s.attestations[l.listed].LeftOut = clip(fmt.Sprintf(format, args...))
}

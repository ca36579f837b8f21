package find

import (
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	imagemanifest "github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
)

// Bounds on one search.
const (
	// bytes of a manifest, an index or a page of referrers
	MaxManifest = imagemanifest.MaxManifestSize
	// bytes of a signature, payload, bundle or envelope
	MaxSignature    = verdicts.MaxContent
	MaxLooked       = 64        // signatures and referrers read
	maxFound        = 16 << 20  // bytes of signatures returned
	MaxAttestations = 64        // attestations listed
	MaxAttestation  = 512 << 10 // bytes of an attestation that is read
	MaxRead         = 16        // attestations read
	maxPages        = 16        // pages of referrers
	maxWarnings     = 32
	maxWarningBytes = 256
)

// Attestation is a typed link to an artifact that is attached to an image and is no signature of
// it.
type Attestation struct {
	// Type is its in-toto predicate type (https://slsa.dev/provenance/v1, https://spdx.dev/Document,
	// …) or, if there is none, the artifact's media type.
	Type string `json:"type"`
	// Digest is the digest of the manifest that contains it, in the image's repository.
	Digest string `json:"digest"`
	// Layer is the digest of the blob, if the manifest contains several attestations.
	Layer string `json:"layer,omitempty"`
	// MediaType is the blob's media type, if known.
	MediaType string `json:"mediaType,omitempty"`
	// Size is the blob's size in bytes, if known.
	Size int64 `json:"size,omitempty"`
	// LeftOut says why it was only listed, although it might be judged.
	LeftOut string `json:"leftOut,omitempty"`
}

// search is the state of one Find.
type search struct {
	client    *client
	digest    string
	memory    *memory
	abilities *abilities
	tags      *tagList
	since     time.Time
	counted   bool // by tags
	pushed    bool // listed, of Find
	// demanded and attested are true if policies demand signatures, and attestations.
	demanded, attested bool
	withoutSigstore    bool // sigstore signatures in the registry are not read

	found        []imagev1.ImageSignature
	attestations []Attestation
	documents    []annotation.Document
	unlisted     bool // MaxAttestations was reached
	unreadLayers []attestationLayer
	warnings     []string
	seen         map[string]bool   // content digests of found
	blobs        map[string][]byte // by digest; cosign's signatures often share a payload
	looked       int
	dropped      bool     // there were more than MaxLooked
	bytes        int      // of found
	passing      error    // why the referrers cannot be read, if that may be temporary
	unread       string   // why the search is incomplete
	unusable     string   // possible signatures that cannot be used
	isCut        bool     // something was skipped
	manifests    []string // digests of the manifests that contain found
}

// firstTime returns 1 on its first call, then 0.
func (s *search) firstTime() int {
	if s.counted {
		return 0
	}
	s.counted = true
	return 1
}

// attestationLayer is a listed attestation that may be read after the rest of the search.
type attestationLayer struct {
	listed   int // index in search.attestations
	document int // index in search.documents, or -1
	descriptor
}

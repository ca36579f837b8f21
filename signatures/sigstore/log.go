package sigstore

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// logOf describes a transparency log of which only the key is known. The key counts as good forever: only a trusted root
// can limit the time.
func logOf(public *ecdsa.PublicKey) (map[string]*root.TransparencyLog, error) {
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(der)
	return map[string]*root.TransparencyLog{hex.EncodeToString(id[:]): {
		ID:                  id[:],
		ValidityPeriodStart: time.Unix(0, 0), // sigstore-go refuses a log without one
		HashFunc:            crypto.SHA256,
		SignatureHashFunc:   crypto.SHA256,
		PublicKey:           public,
	}}, nil
}

// verifiedEntry describes the entry that sigstore-go has verified: the first of a known log. sigstore-go skips entries
// of unknown logs, and any other wrong entry fails the whole signature.
func verifiedEntry(s *Signature, logs map[string]*root.TransparencyLog) *evidence.LogEntry {
	for _, e := range s.logs {
		id := hex.EncodeToString(e.GetLogId().GetKeyId())
		if _, ok := logs[id]; !ok {
			continue
		}
		// Only a promise signs the time and the index in the log. Without a promise they are mere numbers beside the
		// entry, and what is proved is the index in the tree of the proof.
		if len(e.GetInclusionPromise().GetSignedEntryTimestamp()) > 0 {
			return &evidence.LogEntry{ID: id, Index: e.GetLogIndex(), Time: time.Unix(e.GetIntegratedTime(), 0).UTC()}
		}
		return &evidence.LogEntry{ID: id, Index: e.GetInclusionProof().GetLogIndex()}
	}
	return nil
}

package sigstore

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"regexp"
	"strings"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/tlog"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// logOf describes a transparency log by its key alone. The key counts as valid
// forever, because only a trusted root can limit its time.
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

// verifiedEntry describes the entry that sigstore-go has verified: the first entry of a known log
// whose promise, if any, is valid. sigstore-go skips entries of unknown logs and entries with an
// invalid promise. Any other wrong entry fails the whole signature.
func verifiedEntry(s *Signature, logs map[string]*root.TransparencyLog) *evidence.LogEntry {
	for _, e := range s.logs {
		id := hex.EncodeToString(e.GetLogId().GetKeyId())
		if _, ok := logs[id]; !ok {
			continue
		}
		// Only a promise signs the time, and the index in the log.
		if len(e.GetInclusionPromise().GetSignedEntryTimestamp()) > 0 {
			entry, err := tlog.ParseTransparencyLogEntry(e)
			if err != nil || tlog.VerifySET(entry, logs) != nil {
				continue
			}
			return &evidence.LogEntry{ID: id, Index: e.GetLogIndex(), Time: time.Unix(e.GetIntegratedTime(), 0).UTC()}
		}
		// Without a promise the index is the one for which inclusion was proved. In a log of version 2
		// that is the entry's index. In a log of version 1, recognized by its checkpoint, it is the index
		// in the tree of the proof: nothing proves the index in the log.
		index := e.GetLogIndex()
		if origin, _, _ := strings.Cut(e.GetInclusionProof().GetCheckpoint().GetEnvelope(), "\n"); treeID.MatchString(origin) {
			index = e.GetInclusionProof().GetLogIndex()
		}
		return &evidence.LogEntry{ID: id, Index: index}
	}
	return nil
}

// treeID ends the first line of a checkpoint of a log of version 1. sigstore-go distinguishes the
// versions by it (verify/tlog.go, hasRekorV1STH).
var treeID = regexp.MustCompile(`^.* - \d+$`)

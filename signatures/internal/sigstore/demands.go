package sigstore

import (
	"errors"
	"strings"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/tidewaiter/tidewaiter/signatures/evidence"
)

// demands are the parts that a signature must have.
type demands struct {
	log            bool                  // an entry in a transparency log
	certificateLog bool                  // a promise of a certificate transparency log (SCT)
	time           verify.VerifierOption // who must vouch for the time; nil for no demand
}

// demandsOf returns the demands of a trusted root: a log entry if it has transparency logs, an SCT
// if it has certificate transparency logs, and always a time that one of its logs or timestamp
// authorities vouches for.
func demandsOf(material root.TrustedMaterial) (demands, error) {
	d := demands{log: len(material.RekorLogs()) > 0, certificateLog: len(material.CTLogs()) > 0}
	switch {
	case d.log:
		// for logs of either version: in version 1 the promise has the time, in version 2 the entry comes
		// with a timestamp
		d.time = verify.WithObserverTimestamps(1)
	case len(material.TimestampingAuthorities()) > 0:
		d.time = verify.WithSignedTimestamps(1)
	default:
		return d, errors.New("names neither a transparency log nor a timestamp authority, so nothing proves when a signature was made")
	}
	return d, nil
}

// missing returns the Failure for a demanded part that a signature lacks, nil if it has all parts.
func (d demands) missing(s *Signature) *evidence.Failure {
	switch {
	case d.log && s.logErr != nil:
		return evidence.Fail(evidence.TransparencyLogEntryInvalid, "%w", s.logErr)
	case d.log && len(s.logs) == 0 && s.old == nil:
		return evidence.Fail(evidence.TransparencyLogEntryMissing, "carries no transparency log entry")
	}
	return nil
}

// untimed returns the Failure for a signature without a verified time. err is the library's reason.
func untimed(s *Signature, err error) *evidence.Failure {
	if s.stampErr != nil {
		err = s.stampErr
	}
	reason := err.Error()
	if checked, isNil := strings.CutSuffix(reason, "%!w(<nil>)"); isNil { // there was nothing to check
		reason, _, _ = strings.Cut(checked, "; error: ")
	}
	return evidence.Fail(evidence.TimestampInvalid, "%s", reason).AsAuthentic(true)
}

// options are the demands in sigstore-go's terms.
func (d demands) options() []verify.VerifierOption {
	options := []verify.VerifierOption{d.time}
	if d.time == nil {
		options[0] = verify.WithNoObserverTimestamps()
	}
	if d.log {
		options = append(options, verify.WithTransparencyLog(1))
	}
	if d.certificateLog {
		options = append(options, verify.WithSignedCertificateTimestamps(1))
	}
	return options
}

func parseTrustedRoot(trustedRoot []byte) (material *root.TrustedRoot, err error) {
	err = guarded(func() error {
		material, err = root.NewTrustedRootFromJSON(trustedRoot)
		return err
	})
	return material, err
}

// earliest returns the first verified time of the signature, zero if there is none.
func earliest(times []verify.TimestampVerificationResult) (first time.Time) {
	for _, t := range times {
		if first.IsZero() || t.Timestamp.Before(first) {
			first = t.Timestamp.UTC()
		}
	}
	return first
}

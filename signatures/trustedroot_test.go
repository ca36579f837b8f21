package signatures_test

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// A policy has a key and a trusted root: the signature must be by the key, and be in the logs that
// the root demands.
func TestVerifyKeyAndTrustedRoot(t *testing.T) {
	d, elsewhere := signaturestest.NewDeployment(t), signaturestest.NewDeployment(t)
	key, stranger := signaturestest.NewKey(t, signaturestest.P256), signaturestest.NewKey(t, signaturestest.P256)
	logged := func(k *signaturestest.Key, in *signaturestest.Deployment) *payload.Blob {
		b := k.SimpleSigning(t, digest, repository)
		in.Log(t, b, k.Hash(), k.PEM, time.Now()) // the virtual log's key is valid at present
		return b
	}
	stamped := func(in *signaturestest.Deployment) *payload.Blob {
		b := key.SimpleSigning(t, digest, repository)
		raw, err := base64.StdEncoding.DecodeString(b.Annotations[payload.AnnotationSignature])
		if err != nil {
			t.Fatal(err)
		}
		stamp, err := in.TimestampResponse(raw)
		if err != nil {
			t.Fatal(err)
		}
		b.Annotations[payload.AnnotationTimestamp] = string(signaturestest.Marshal(t, map[string][]byte{"SignedRFC3161Timestamp": stamp}))
		return b
	}
	logs := func(p *signaturestest.TrustedRootParts) { p.CAs, p.TSAs = nil, nil }
	stamps := func(p *signaturestest.TrustedRootParts) { p.CAs, p.Logs = nil, nil }

	for _, tc := range []struct {
		name string
		root func(*signaturestest.TrustedRootParts)
		blob *payload.Blob
		want string
	}{
		{"logged", logs, logged(key, d), trusted},
		{"logged, whole root", nil, logged(key, d), trusted},
		{"not logged", logs, key.SimpleSigning(t, digest, repository), "False TransparencyLogEntryMissing / True"},
		{"stamped but not logged", nil, stamped(d), "False TransparencyLogEntryMissing / True"},
		{"logged elsewhere", logs, logged(key, elsewhere), "False TransparencyLogEntryInvalid / True"},
		{"a stranger's, logged", logs, logged(stranger, d), "False NoMatchingKey / Unknown"},
		{"stamped", stamps, stamped(d), trusted},
		{"not stamped", stamps, key.SimpleSigning(t, digest, repository), "False TimestampInvalid / True"},
		{"stamped elsewhere", stamps, stamped(elsewhere), "False TimestampInvalid / True"},
		{"logged but not stamped", stamps, logged(key, d), "False TimestampInvalid / True"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set := signaturestest.Set(t, d.TrustRootKey(t, key, tc.root), matchRepository)
			v := verify(t, signatures.TypeSimpleSigning, signaturestest.Marshal(t, tc.blob), set)
			want(t, v, tc.want)
			if tc.want == trusted && v.Created.IsZero() {
				t.Error("nobody says when it was signed")
			}
		})
	}
}

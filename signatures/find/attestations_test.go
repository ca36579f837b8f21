package find_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/find"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// A pusher has attached a thousand attestations. They cost a bounded number of requests, displace
// no signature, and are listed as left out. The small ones are read first.
func TestAttackThousandAttestations(t *testing.T) {
	t.Parallel()
	f := newFixture(t, false)
	key := signaturestest.NewKey(t, signaturestest.P256)
	var junk []any
	for i := range 1000 {
		l := f.blob(payload.MediaTypeEnvelope, fmt.Appendf(nil, `{"junk":%d,"more":%q}`, i, strings.Repeat("x", 1000)))
		l["annotations"] = map[string]string{"predicateType": "https://slsa.dev/provenance/v1"}
		junk = append(junk, l)
	}
	small := f.blob(payload.MediaTypeEnvelope, []byte("{}"))
	small["annotations"] = map[string]string{payload.AnnotationSignature: ""}
	large := f.blob(payload.MediaTypeEnvelope, make([]byte, find.MaxAttestation+1))
	layers := slices.Concat([]any{large, junk[0], small}, junk[1:])
	f.push(f.tag(".att"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": layers})
	f.push(f.tag(".sig"), map[string]any{"config": f.blob(emptyConfig, []byte("{}")), "layers": []any{f.cosignLayer(key.SimpleSigning(t, f.digest, f.repository()))}})
	r := f.find(find.Options{})
	read := strings.TrimSpace(strings.Repeat(signatures.TypeAttestation+" ", find.MaxRead))
	r.expect(t, signatures.TypeSimpleSigning+" "+read, "more than 64 attestations")
	if len(f.requests) > find.MaxRead+8 {
		t.Errorf("%d requests", len(f.requests))
	}
	listed := r.attestations(t)
	leftOut := 0
	for _, a := range listed {
		if a.LeftOut != "" {
			leftOut++
		}
	}
	if len(listed) != find.MaxAttestations || leftOut != find.MaxAttestations-find.MaxRead || !strings.Contains(listed[0].LeftOut, "at most") {
		t.Errorf("%d are listed, %d of them left out, the first because %q", len(listed), leftOut, listed[0].LeftOut)
	}
	blob, err := payload.ParseBlob(r.found[1].Content)
	if err != nil || string(blob.Payload) != "{}" {
		t.Errorf("the first that is read is %v, %v", blob, err)
	}
}

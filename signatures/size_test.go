package signatures_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// BenchmarkLargest judges signatures of nearly 1 MiB, the largest that are judged. One may cost at
// most 64 MB and 0.3 s.
func BenchmarkLargest(b *testing.B) {
	key, gpg := signaturestest.NewKey(b, signaturestest.P256), signaturestest.NewGPG(b, "Release", now.AddDate(-1, 0, 0), 0)
	document := func(typ string, bytes int) []byte {
		var values strings.Builder
		for i := 0; values.Len() < bytes; i++ {
			fmt.Fprintf(&values, `,"k%06d":{"a":[1,2,3]}`, i)
		}
		return fmt.Appendf(nil, `{"critical":{"identity":{"docker-reference":%q},"image":{"docker-manifest-digest":%q},"type":%q},"optional":{"creator":"x"%s}}`, repository, digest, typ, values.String())
	}
	for _, tc := range []struct {
		name, typ, trust string
		content          []byte
	}{
		{"SimpleSigning", signatures.TypeSimpleSigning, signaturestest.TrustKey(key, nil), signaturestest.Marshal(b, key.Blob(b, document("cosign container image signature", 700<<10)))},
		{"OpenPGP", signatures.TypeAtomic, signaturestest.TrustGPG(gpg.Public(b)), gpg.Sign(b, document("atomic container signature", 1000<<10), now.AddDate(0, -1, 0))},
		{"Bundle", signatures.TypeBundle, signaturestest.TrustKey(key, nil), signaturestest.Marshal(b, key.Bundle(b, []byte(strings.Replace(string(signaturestest.Statement(digest, cosignSign)), `"predicate":{}`, `"predicate":{"x":[`+strings.Repeat("[],", 230<<10)+`0]}`, 1))))},
	} {
		b.Run("Format="+tc.name, func(b *testing.B) {
			if len(tc.content) > verdicts.MaxContent || len(tc.content) < verdicts.MaxContent*8/10 {
				b.Fatalf("%d bytes", len(tc.content))
			}
			set := signaturestest.Set(b, tc.trust, digestOnly)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for b.Loop() {
				if v := signatures.Verify(signatures.Signature{Type: tc.typ, Content: tc.content}, image, set, now); !v.Trusted() {
					b.Fatal(v.Conditions)
				}
			}
			runtime.ReadMemStats(&after)
			each := float64(after.TotalAlloc-before.TotalAlloc) / float64(b.N)
			b.ReportMetric(each/1e6, "MB/op")
			if each > 64e6 {
				b.Errorf("%.0f MB for one signature", each/1e6)
			}
			if took := b.Elapsed() / time.Duration(b.N); took > 300*time.Millisecond {
				b.Logf("%v for one signature; is the machine busy?", took)
			}
		})
	}
}

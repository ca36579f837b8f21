package hooks_test

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer/push"
)

// BenchmarkDelivery measures the answer to a push without the spool's disk:
// authentication, decoding, checking and the access log's formatting.
func BenchmarkDelivery(b *testing.B) {
	all := fixtures(b)
	for _, test := range []struct{ typ, payload string }{
		{"distribution", "v1-push"}, {"github", "package-updated-container"}, {"gar", "insert"},
	} {
		b.Run("Type="+test.typ, func(b *testing.B) {
			f, dir := all[test.typ][test.payload], b.TempDir()
			h := newHandler(b, dir, discard{}, newReceiver(b, dir, test.typ, f.Hosts...))
			template := newRequest(b, test.typ, testSecret, f.Body)
			for k, v := range f.Header {
				template.Header.Set(k, v)
			}
			b.ReportAllocs()
			for b.Loop() {
				r := newRequest(b, "generic", testSecret, f.Body)
				r.URL, r.Header = template.URL, template.Header
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != 202 {
					b.Fatalf("status %d: %s", w.Code, w.Body)
				}
			}
		})
	}
}

type discard struct{}

func (discard) Enqueue(context.Context, []push.Event) error { return nil }

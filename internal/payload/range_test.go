package payload_test

import (
	"fmt"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/payload"
)

// Numbers are read as containers/image reads them. A number that no float64 holds is refused
// wherever it is. A timestamp may be any whole number of seconds, but RFC 3339 has only the years 1
// to 9999.
func TestNumbersOutOfRange(t *testing.T) {
	for optional, want := range map[string]string{
		`{"x":1e400}`:                       "refused",
		`{"x":[{"y":-1e999}]}`:              "refused",
		`{"x":1e300}`:                       "",
		`{"timestamp":1e18}`:                "",
		`{"timestamp":1e19}`:                "refused",
		`{"timestamp":9223372036854775807}`: "refused", // not the float64 that it is read as
		`{"timestamp":253402300799}`:        "9999-12-31T23:59:59Z",
		`{"timestamp":253402300800}`:        "",
		`{"timestamp":1.5}`:                 "refused",
	} {
		doc := fmt.Sprintf(`{"critical":{"identity":{"docker-reference":"x"},"image":{"docker-manifest-digest":"sha256:%064d"},"type":%q},"optional":%s}`, 0, payload.TypeCosign, optional)
		s, err := payload.ParseSimpleSigning([]byte(doc), payload.TypeCosign)
		got := ""
		switch {
		case err != nil:
			got = "refused"
		case !s.Timestamp.IsZero():
			got = s.Timestamp.Format("2006-01-02T15:04:05Z07:00")
		}
		if got != want {
			t.Errorf("%s: %q, want %q: %v", optional, got, want, err)
		}
	}
}

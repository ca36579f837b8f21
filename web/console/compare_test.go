package console

import (
	"encoding/json"
	"strings"
	"testing"
)

// How an image runs is compared also if it is only in the config, and what differs is unknown if
// the API does not hold a config.
func TestCompareConfigsThatAreLarge(t *testing.T) {
	read := func(object string) *image {
		var one image
		if err := json.Unmarshal([]byte(object), &one); err != nil {
			t.Fatal(err)
		}
		return &one
	}
	small := `{"metadata":{"name":"sha256:1"},"dockerImageMetadata":{"Config":{"User":"1","Labels":{"a":"b"}}}}`
	large := `{"metadata":{"name":"sha256:2"},"dockerImageMetadata":{},"dockerImageConfig":"{\"config\":{\"User\":\"2\",\"Labels\":{\"a\":\"b\"}}}"}`
	left := `{"metadata":{"name":"sha256:3","annotations":{"tidewaiter.dev/left-out":"{\"config\":{\"digest\":\"sha256:4\",\"size\":9000000,\"reason\":\"too large\"}}"}},"dockerImageMetadata":{}}`
	for other, want := range map[string]struct {
		differences int
		leftOut     bool
	}{large: {1, false}, left: {0, true}} {
		c := comparison{A: side{Image: read(small)}, B: side{Image: read(other)}, Whole: true}
		if c.fill(); len(c.Differences) != want.differences || c.LeftOut != want.leftOut {
			t.Errorf("with %s: %+v, left out: %v", other, c.Differences, c.LeftOut)
		}
		c.A.Answer, c.B.Answer = &referenceAnswer{}, &referenceAnswer{}
		var out strings.Builder
		if err := newPages(func(name string) string { return name }).byName["compare"].ExecuteTemplate(&out, "main", &page{Data: &c}); err != nil {
			t.Fatal(err)
		}
		if said := strings.Contains(out.String(), "it is unknown what else differs"); said != want.leftOut || strings.Contains(out.String(), "Nothing differs") {
			t.Errorf("with %s the page says %s", other, &out)
		}
	}
}

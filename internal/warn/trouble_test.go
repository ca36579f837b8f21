package warn_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/warn"
)

// A trouble is logged when it begins and when it ends, however often it is met.
func TestTrouble(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	trouble := warn.Trouble{Logger: slog.New(slog.NewTextHandler(&out, nil))}
	for range 2 {
		trouble.End("a", "well", "host", "a")
		trouble.Begin("a", "ill", "host", "a\n")
		trouble.Begin("a", "ill", "host", "a")
		trouble.End("a", "well", "host", "a")
	}
	if ill, well := strings.Count(out.String(), "msg=ill"), strings.Count(out.String(), "msg=well"); ill != 2 || well != 2 {
		t.Errorf("%d and %d lines:\n%s", ill, well, &out)
	}
	out.Reset()
	for i := range 2 * warn.MaxKeys {
		trouble.Begin(fmt.Sprint(i), "ill")
	}
	if n := strings.Count(out.String(), "\n"); n != warn.MaxKeys {
		t.Errorf("%d lines", n)
	}
}

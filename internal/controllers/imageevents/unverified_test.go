package imageevents

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// use is of an image that no known pod runs.
type use struct {
	answers.Use
	complete bool
}

func (u use) Pods(string, *imagev1.Image) (n int, complete bool) { return 0, u.complete }

// That an image is no longer verified is said, too, if it is unknown whether pods use it.
func TestUnverifiedWhereUseIsUnknown(t *testing.T) {
	t.Parallel()
	image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: "sha256:a"}}
	lost := signatures.Change{HeldVerdict: annotation.HeldVerdict{Place: "r/a:v1", Verdict: annotation.Verdict{Verified: "False"}}, Before: "True"}
	for _, complete := range []bool{true, false} {
		var log bytes.Buffer
		u := NewUnverified(&answers.Answerer{Use: use{complete: complete}})
		u.warnings.Logger = slog.New(slog.NewTextHandler(&log, nil))
		u.VerdictChanged(image, lost)
		if said := strings.Contains(log.String(), "it is unknown whether pods use it"); said == complete {
			t.Errorf("that no pod uses it is known: %v, and the log is %q", complete, &log)
		}
	}
}

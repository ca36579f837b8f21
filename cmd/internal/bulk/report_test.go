package bulk

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/importer/pull"
)

// TestReportNamesWhatFailed: the outputs for programs have each reference without an Image, with
// the reason.
func TestReportNamesWhatFailed(t *testing.T) {
	for _, format := range []string{"json", "yaml"} {
		var out bytes.Buffer
		r := NewReport(format, "here", &out, io.Discard, NewProgress(io.Discard))
		r.Add("r.example.com/app:v1", nil, &pull.Error{Reason: pull.NotFound, Message: "r.example.com/app:v1 is not there"})
		r.Add("r.example.com/app:v2", nil, errors.New("something else"))
		if err := r.End(nil, pull.Traffic{}, time.Second); err == nil {
			t.Error("End returns no error for failures")
		}
		var list struct {
			Items  []any
			Report struct{ References []Line }
		}
		if err := yaml.Unmarshal(out.Bytes(), &list); err != nil {
			t.Errorf("%v:\n%s", err, out.String())
		}
		got := list.Report.References
		if len(got) != 2 || got[0].Reference != "r.example.com/app:v1" || got[0].Reason != pull.NotFound || got[0].Error == "" || got[1].Outcome != "failed" || got[1].Reason != pull.Failed {
			t.Errorf("-o %s has %+v:\n%s", format, got, out.String())
		}
	}
}

package manifest

import (
	"encoding/json"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// maxRunConfig is how long annotation.RunConfig is at most, in bytes.
const maxRunConfig = 4 << 10

// runConfig is annotation.RunConfig (Docker image spec v1.2 and its extensions in the OCI
// image-spec).
type runConfig struct {
	Healthcheck *healthcheck `json:",omitempty"`
	StopSignal  string       `json:",omitempty"`
	Shell       []string     `json:",omitempty"`
	ArgsEscaped bool         `json:",omitempty"`
	StopTimeout *int64       `json:",omitempty"` // in seconds; 0 differs from nil
}

// healthcheck has times in nanoseconds.
type healthcheck struct {
	Test          []string `json:",omitempty"`
	Interval      int64    `json:",omitempty"`
	Timeout       int64    `json:",omitempty"`
	StartPeriod   int64    `json:",omitempty"`
	StartInterval int64    `json:",omitempty"`
	Retries       int64    `json:",omitempty"`
}

// beside returns the fields of c that docker10 lacks, as JSON; "" if there are none, or if it would
// be too long. It leaves out only the parts that are malformed.
func (c *RunConfig) beside() string {
	if c == nil || len(c.Healthcheck)+len(c.StopSignal)+len(c.Shell)+len(c.ArgsEscaped)+len(c.StopTimeout) == 0 {
		return ""
	}
	var out runConfig
	read := func(raw json.RawMessage, into any, forget func()) {
		if len(raw) > 0 && json.Unmarshal(raw, into) != nil {
			forget()
		}
	}
	read(c.Healthcheck, &out.Healthcheck, func() { out.Healthcheck = nil })
	read(c.StopSignal, &out.StopSignal, func() { out.StopSignal = "" })
	read(c.Shell, &out.Shell, func() { out.Shell = nil })
	read(c.ArgsEscaped, &out.ArgsEscaped, func() { out.ArgsEscaped = false })
	read(c.StopTimeout, &out.StopTimeout, func() { out.StopTimeout = nil })
	out.StopSignal, out.Shell = printable.Text(out.StopSignal), printableList(out.Shell)
	if out.Healthcheck != nil {
		out.Healthcheck.Test = printableList(out.Healthcheck.Test)
	}
	b, err := json.Marshal(out)
	if err != nil || len(b) > maxRunConfig || string(b) == "{}" {
		return ""
	}
	return string(b)
}

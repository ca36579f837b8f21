package bulk

import (
	"encoding/json"
	"time"

	imagev1 "github.com/openshift/api/image/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

// Summary is the closing report for a program: "report" in -o json and yaml, and the last line of
// -o jsonl.
type Summary struct {
	// Outcomes count references by what happened to their Images: imported, updated, unchanged, dry
	// run; or gone, a known tag that the registry neither lists nor has.
	Outcomes map[string]int `json:"outcomes"`
	// Skipped counts artifacts, which are not images.
	Skipped int `json:"skipped"`
	// Failed counts references by reason.
	Failed   map[pull.Reason]int `json:"failed"`
	NotTried int                 `json:"notTried"`
	Requests int64               `json:"requests"`
	Bytes    int64               `json:"bytes"`
	Seconds  float64             `json:"seconds"`
	// References has at most 10,000 references without an Image: failed, skipped, gone or not tried.
	// -o jsonl has a line for each instead.
	References []Line `json:"references,omitempty"`
}

func (r *report) summary(traffic pull.Traffic, took time.Duration) Summary {
	return Summary{
		Outcomes: r.outcomes, Skipped: r.skipped, Failed: r.reasons, NotTried: r.untried,
		Requests: traffic.Requests, Bytes: traffic.Bytes, Seconds: took.Seconds(), References: r.bare,
	}
}

// Line is one reference in -o jsonl, and one without an Image in a Summary. In -o jsonl, a line
// before the first one has the destination of the Images, as in -o json.
type Line struct {
	Reference string `json:"reference"`
	// Outcome is one of Summary.Outcomes, or failed, skipped, or not tried.
	Outcome string      `json:"outcome"`
	Reason  pull.Reason `json:"reason,omitempty"`
	Error   string      `json:"error,omitempty"`
	Digest  string      `json:"digest,omitempty"`
	Mirror  string      `json:"mirror,omitempty"`
	// Image is the Image of the reference, with its config and attestations. Images has an entry for
	// it and then one for each platform, with the platform's Image.
	Image    *imagev1.Image `json:"image,omitempty"`
	Images   []lineImage    `json:"images,omitempty"`
	Skipped  []lineSkipped  `json:"skipped,omitempty"`
	Warnings []string       `json:"warnings,omitempty"`
}

type lineImage struct {
	Name     string          `json:"name"`
	Platform string          `json:"platform,omitempty"`
	Action   importer.Action `json:"action"`
	// The first entry has no Image, because the line has it.
	Image *imagev1.Image `json:"image,omitempty"`
}

// lineSkipped is an entry of an index that was not imported.
type lineSkipped struct {
	Digest   string `json:"digest"`
	Platform string `json:"platform,omitempty"`
	Reason   string `json:"reason"`
}

func (r *report) printJSONLine(to *json.Encoder, reference string, result *importer.Result) error {
	l := Line{Reference: reference, Outcome: r.outcome(result), Digest: result.Digest, Mirror: result.Mirror, Warnings: result.Warnings}
	for n, i := range result.Images {
		if err := r.complete(i.Image); err != nil {
			return err
		}
		shown := lineImage{Name: i.Image.Name, Platform: i.Platform, Action: i.Action}
		if n > 0 {
			shown.Image = i.Image
		}
		l.Images = append(l.Images, shown)
	}
	for _, s := range result.Skipped {
		l.Skipped = append(l.Skipped, lineSkipped{s.Digest, s.Platform, s.Reason})
	}
	l.Image = result.Images[0].Image
	return to.Encode(l)
}

package signatures

import (
	"fmt"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// TagMoved returns the policies that forbid the move of a tag, and a text that explains why the
// image to which it leads does not meet them. It returns none if move is nil, or if the reference
// has a digest and so does not depend on its tag. That a tag must not move is a prohibition: an
// alternative that allows the move does not lift it.
func TagMoved(by []*policy.Policy, asked reference.Reference, move *tags.Move) (of []*policy.Policy, why string) {
	if move == nil || asked.Tag == "" || asked.Digest != "" {
		return nil, ""
	}
	for _, p := range by {
		if pattern := p.Admission.ImmutableTags.Match(asked.Tag); pattern != "" {
			if of = append(of, p); why == "" {
				why = fmt.Sprintf("%s must not move (policy %q: %s), and ", asked, p.ID(), pattern)
				if move.At.IsZero() {
					why += "its history, which keeps " + table.Quantity(tags.MaxItems, "move") + ", no longer says whether it moved to this image"
				} else {
					why += "led to another image until " + move.At.UTC().Format(time.RFC3339)
				}
			}
		}
	}
	return of, why
}

package imagetag

import (
	"cmp"
	"context"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/imageapi/registry/internal/short"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// tagColumns of `kubectl get imagetags`. Those of priority 1 are shown by -o wide.
var tagColumns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "The repository, with -- for each slash, and the tag."},
	{Name: "Image", Type: "string", Description: "What the tag leads to, shortened: <deleted> if the registry no longer has it, Unknown if it could not be asked yet."},
	{Name: "Since", Type: "string", Description: "Time since it was first seen to lead there."},
	{Name: "Before", Type: "string", Description: "What the tag led to before."},
	{Name: "Checked", Type: "string", Description: "How long ago the registry last confirmed this; before it, why checks have failed since, and for how long."},
	{Name: "Outdated", Type: "string", Description: "Number of pods of followed clusters that name the tag but run a different image than it leads to now; a plus means that there may be more, Unknown that there may be some."},
	{Name: "Reference", Type: "string", Priority: 1, Description: "The reference in the registry that the tag follows."},
	{Name: "By", Type: "string", Priority: 1, Description: "Who recorded it."},
	{Name: "Moved", Type: "string", Priority: 1, Description: "What the tag led to first, or what was accepted last, shortened, if it leads elsewhere now; <none> if it does not."},
	{Name: "History", Type: "integer", Priority: 1, Description: "How many images the tag is known to have led to, including deletions; at most 100."},
}

// tagTable prints ImageTags, with a warning that has what a short name in a selector was taken to
// mean.
type tagTable struct{ table.Of[*imagev1.ImageTag] }

func newTagTable(outdated Outdated, now func() time.Time) tagTable {
	return tagTable{table.Of[*imagev1.ImageTag]{Columns: tagColumns, Rows: func(tag *imagev1.ImageTag) [][]any { return [][]any{tagCells(tag, outdated, now())} }}}
}

// ConvertToTable is part of rest.TableConvertor.
func (t tagTable) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	if meta.IsListType(object) { // not for each event of a watch
		short.Warn(ctx, selectors.TagReference, selectors.TagRepository)
	}
	return t.Of.ConvertToTable(ctx, object, options)
}

func tagCells(tag *imagev1.ImageTag, outdated Outdated, now time.Time) []any {
	image, since, before, checked, followed, by, history, old := table.Unknown, table.Unknown, table.None, "never", table.None, table.None, 0, table.None
	if now, known := tags.Now(tag); known {
		items := tag.Status.Items
		image, since, history = shortImage(now), metatable.ConvertToHumanReadableDateType(items[0].Created), len(items)
		if len(items) > 1 {
			before = shortImage(items[1].Image)
		}
	}
	if at := tags.Checked(tag, now); at != nil && tags.IsAhead(at.Time, now) {
		checked = "ok, Unknown when"
	} else if at != nil {
		checked = "ok, " + metatable.ConvertToHumanReadableDateType(*at) + " ago"
	}
	if c := tags.Failure(tag); c != nil {
		checked = c.Reason + " for " + metatable.ConvertToHumanReadableDateType(c.LastTransitionTime) + ", before: " + checked
	}
	if ref, ok := tags.Reference(tag); ok {
		followed = ref.String()
		if outdated != nil {
			old = table.Count(outdated(ref))
		}
	}
	if writers := tags.Writers(tag); len(writers) > 0 {
		by = writers[0]
	}
	moved := table.None
	if m := tags.Overwritten(tag); m != nil {
		moved = shortImage(m.From)
	}
	return []any{tag.Name, image, since, before, checked, old, followed, by, moved, int64(history)}
}

// shortImage is the image that a tag led to, shortened; a tag without a digest was
// deleted.
func shortImage(digest string) string { return cmp.Or(reference.ShortDigest(digest), "<deleted>") }

package imagetag

import (
	"cmp"
	"encoding/json"

	imagev1 "github.com/openshift/api/image/v1"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/table"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// tagColumns of `kubectl get imagetags`. Those of priority 1 are shown by -o wide.
var tagColumns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "The repository, with -- for each slash, and the tag."},
	{Name: "Image", Type: "string", Description: "What the tag leads to, shortened: <deleted> if the registry no longer has it, Unknown if it could not be asked yet."},
	{Name: "Since", Type: "string", Description: "Time since it was first seen to lead there."},
	{Name: "Before", Type: "string", Description: "What the tag led to before."},
	{Name: "Checked", Type: "string", Description: "How long ago the registry last confirmed this; before it, why checks have failed since, and for how long."},
	{Name: "Outdated", Type: "string", Description: "Number of pods of followed clusters that name the tag but run a different image than it leads to now; a plus means that there may be more."},
	{Name: "Reference", Type: "string", Priority: 1, Description: "The reference in the registry that the tag follows."},
	{Name: "By", Type: "string", Priority: 1, Description: "Who recorded it."},
	{Name: "History", Type: "integer", Priority: 1, Description: "How many images the tag is known to have led to, including deletions; at most 100."},
}

// tagTable prints ImageTags.
func tagTable(outdated Outdated) table.Of[*imagev1.ImageTag] {
	return table.Of[*imagev1.ImageTag]{Columns: tagColumns, Rows: func(tag *imagev1.ImageTag) [][]any { return [][]any{tagCells(tag, outdated)} }}
}

func tagCells(tag *imagev1.ImageTag, outdated Outdated) []any {
	image, since, before, checked, followed, by, history, old := table.Unknown, table.Unknown, table.None, "never", table.None, table.None, 0, table.None
	if now, known := tags.Now(tag); known {
		items := tag.Status.Items
		image, since, history = shortImage(now), metatable.ConvertToHumanReadableDateType(items[0].Created), len(items)
		if len(items) > 1 {
			before = shortImage(items[1].Image)
		}
	}
	if at := tags.Checked(tag); at != nil {
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
	var writers []string
	if json.Unmarshal([]byte(tag.Annotations[tags.By]), &writers) == nil && len(writers) > 0 {
		by = writers[0]
	}
	return []any{tag.Name, image, since, before, checked, old, followed, by, int64(history)}
}

// shortImage is the image that a tag led to, shortened; a tag without a digest was
// deleted.
func shortImage(digest string) string { return cmp.Or(reference.ShortDigest(digest), "<deleted>") }

package imageapi

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// tagColumns of `kubectl get imagetags`. Those of priority 1 are shown by -o wide.
var tagColumns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "The repository, with -- for each slash, and the tag."},
	{Name: "Image", Type: "string", Description: "What the tag leads to, shortened: <deleted> when the registry no longer has it, <unknown> when nobody could ask yet."},
	{Name: "Since", Type: "string", Description: "Time since it was seen to lead there."},
	{Name: "Before", Type: "string", Description: "What the tag led to before."},
	{Name: "Checked", Type: "string", Description: "ok, or why the last look at the tag failed, and since when looks have failed."},
	{Name: "Reference", Type: "string", Priority: 1, Description: "The reference in the registry that the tag follows."},
	{Name: "By", Type: "string", Priority: 1, Description: "Who recorded it."},
	{Name: "History", Type: "integer", Priority: 1, Description: "How many images the tag is known to have led to, deletions counted; at most 100."},
}

// tagTable implements rest.TableConvertor for ImageTag and ImageTagList.
type tagTable struct{}

// ConvertToTable prints an ImageTag or an ImageTagList.
func (tagTable) ConvertToTable(_ context.Context, object runtime.Object, tableOptions runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if opt, ok := tableOptions.(*metav1.TableOptions); !ok || !opt.NoHeaders {
		table.ColumnDefinitions = tagColumns
	}
	if c, ok := object.(runtime.CacheableObject); ok {
		object = c.GetObject()
	}
	addRow := func(obj runtime.Object) error {
		tag, ok := obj.(*imagev1.ImageTag)
		if !ok {
			return fmt.Errorf("%T is no ImageTag", obj)
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: tagCells(tag), Object: runtime.RawExtension{Object: tag}})
		return nil
	}
	if list, ok := object.(*imagev1.ImageTagList); ok {
		table.ListMeta = list.ListMeta
		return table, meta.EachListItem(object, addRow)
	}
	if tag, ok := object.(*imagev1.ImageTag); ok {
		table.ResourceVersion = tag.ResourceVersion
	}
	return table, addRow(object)
}

func tagCells(tag *imagev1.ImageTag) []any {
	image, since, before, checked, reference, by, history := unknown, unknown, none, "ok", none, none, 0
	if now, known := tags.Now(tag); known {
		items := tag.Status.Items
		image, since, history = shortDigest(now), metatable.ConvertToHumanReadableDateType(items[0].Created), len(items)
		if len(items) > 1 {
			before = shortDigest(items[1].Image)
		}
	}
	if c := tags.Failure(tag); c != nil {
		checked = c.Reason + " for " + metatable.ConvertToHumanReadableDateType(c.LastTransitionTime)
	}
	if ref, ok := tags.Reference(tag); ok {
		reference = ref.String()
	}
	var writers []string
	if json.Unmarshal([]byte(tag.Annotations[tags.By]), &writers) == nil && len(writers) > 0 {
		by = writers[0]
	}
	text := func(s string) string { return printable.Line(s, 0) } // clients may write anything
	return []any{tag.Name, text(image), since, text(before), text(checked), text(reference), text(by), int64(history)}
}

// shortDigest is as much of a digest as people compare.
func shortDigest(digest string) string {
	if digest == "" {
		return "<deleted>"
	}
	algorithm, hex, _ := strings.Cut(digest, ":")
	return algorithm + ":" + hex[:min(12, len(hex))]
}

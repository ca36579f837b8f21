package imageapi

import (
	"context"
	"fmt"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/imageapi/printable"
)

// streamColumns of `kubectl get imagestreams` are OpenShift's.
var streamColumns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "The stream."},
	{Name: "Image Repository", Type: "string", Description: "The repository that the stream follows."},
	{Name: "Tags", Type: "string", Description: "The tags, those that moved last first."},
	{Name: "Updated", Type: "string", Description: "Time since a tag moved."},
}

// streamTable implements rest.TableConvertor for ImageStream and ImageStreamList.
type streamTable struct{}

// ConvertToTable prints an ImageStream or an ImageStreamList.
func (streamTable) ConvertToTable(_ context.Context, object runtime.Object, options runtime.Object) (*metav1.Table, error) {
	return rows(streamColumns, object, options, func(obj runtime.Object) ([]any, error) {
		stream, ok := obj.(*imagev1.ImageStream)
		if !ok {
			return nil, fmt.Errorf("%T is no ImageStream", obj)
		}
		return streamCells(stream), nil
	})
}

// rows is a table of an object, or of each item of a list.
func rows(columns []metav1.TableColumnDefinition, object, options runtime.Object, cells func(runtime.Object) ([]any, error)) (*metav1.Table, error) {
	table := &metav1.Table{}
	if opt, ok := options.(*metav1.TableOptions); !ok || !opt.NoHeaders {
		table.ColumnDefinitions = columns
	}
	addRow := func(obj runtime.Object) error {
		c, err := cells(obj)
		table.Rows = append(table.Rows, metav1.TableRow{Cells: c, Object: runtime.RawExtension{Object: obj}})
		return err
	}
	if meta.IsListType(object) {
		list, err := meta.ListAccessor(object)
		if err != nil {
			return nil, err
		}
		table.ResourceVersion, table.Continue, table.RemainingItemCount = list.GetResourceVersion(), list.GetContinue(), list.GetRemainingItemCount()
		return table, meta.EachListItem(object, addRow)
	}
	if m, err := meta.Accessor(object); err == nil {
		table.ResourceVersion = m.GetResourceVersion()
	}
	return table, addRow(object)
}

func streamCells(stream *imagev1.ImageStream) []any {
	histories := slices.DeleteFunc(slices.Clone(stream.Status.Tags), func(t imagev1.NamedTagEventList) bool { return len(t.Items) == 0 })
	slices.SortStableFunc(histories, func(a, b imagev1.NamedTagEventList) int {
		return b.Items[0].Created.Compare(a.Items[0].Created.Time)
	})
	var names []string
	for _, h := range histories {
		names = append(names, h.Tag)
	}
	updated := ""
	if len(histories) > 0 {
		updated = ago(histories[0].Items[0].Created)
	}
	repository := stream.Spec.DockerImageRepository
	if repository == "" {
		repository = stream.Status.DockerImageRepository
	}
	text := func(s string) string { return printable.Line(s, 0) } // clients may write anything
	return []any{stream.Name, text(repository), text(fewOf(names, tagsWidth)), updated}
}

// tagsWidth is how many characters of tags a table shows, unless one is longer.
const tagsWidth = 40

// fewOf joins as many names as fit, and says how many more there are.
func fewOf(all []string, width int) string {
	n, used := 0, 0
	for n < len(all) && (n == 0 || used+len(all[n]) <= width) {
		used += len(all[n]) + 1
		n++
	}
	if n < len(all) {
		return fmt.Sprintf("%s + %d more...", strings.Join(all[:n], ","), len(all)-n)
	}
	return strings.Join(all, ",")
}

func ago(at metav1.Time) string {
	if at.IsZero() {
		return unknown
	}
	return metatable.ConvertToHumanReadableDateType(at) + " ago"
}

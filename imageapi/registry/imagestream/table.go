package imagestream

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/table"
)

// streamColumns of `kubectl get imagestreams` are OpenShift's.
var streamColumns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "The stream."},
	{Name: "Image Repository", Type: "string", Description: "The repository that the stream follows."},
	{Name: "Tags", Type: "string", Description: "The tags, most recently moved first."},
	{Name: "Updated", Type: "string", Description: "Time since a tag moved."},
}

// streamTable prints ImageStreams.
var streamTable = table.Of[*imagev1.ImageStream]{Columns: streamColumns, Rows: func(stream *imagev1.ImageStream) [][]any { return [][]any{streamCells(stream)} }}

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
		updated = Ago(histories[0].Items[0].Created)
	}
	repository := cmp.Or(stream.Spec.DockerImageRepository, stream.Status.DockerImageRepository)
	return []any{stream.Name, repository, fewOf(names, tagsWidth), updated}
}

// tagsWidth is how many characters of tags a table shows. One longer tag is shown whole.
const tagsWidth = 40

// fewOf joins as many names as fit, and adds the number of further ones.
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

func Ago(at metav1.Time) string {
	if at.IsZero() {
		return table.Unknown
	}
	return metatable.ConvertToHumanReadableDateType(at) + " ago"
}

package imagepackages

import (
	"cmp"
	"slices"
	"strings"

	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

var listTable = table.Of[*packages.ImagePackages]{
	Columns: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "The digest of the image."},
		{Name: "Packages", Type: "string", Description: "Number of packages in all documents together; with a plus, or Unknown, where not all are known."},
		{Name: "Documents", Type: "string", Description: "Formats of the documents, signed and unsigned."},
		{Name: "Problem", Type: "string", Description: "Why packages of a document are not known."},
		{Name: "Age", Type: "string", Description: "Time since the object was created."},
	},
	Rows: func(list *packages.ImagePackages) [][]any {
		var documents, problems []string
		for _, s := range list.Sources {
			document := cmp.Or(s.Format, table.Unknown)
			if !s.Signed {
				document += " (unsigned)"
			}
			documents = append(documents, document)
			if s.Problem != "" {
				problems = append(problems, s.Problem)
			}
		}
		slices.Sort(documents)
		cell := func(all []string) string {
			if len(all) == 0 {
				return table.None
			}
			return strings.Join(all, ", ")
		}
		return [][]any{{list.Name, table.Count(int(list.Count()), list.Known()), cell(slices.Compact(documents)), cell(slices.Compact(problems)), metatable.ConvertToHumanReadableDateType(list.CreationTimestamp)}}
	},
}

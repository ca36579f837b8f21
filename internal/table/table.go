// Package table prints objects as kubectl's tables.
package table

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// Of implements rest.TableConvertor for objects of type T and for lists of them.
type Of[T runtime.Object] struct {
	// Columns are the table's columns; those with a priority above 0 are shown by -o wide only.
	Columns []metav1.TableColumnDefinition
	// Rows returns the rows of an object, each with a cell for each column. A text need not be
	// printable: anybody may have written it, so it is made one printable line.
	Rows func(T) [][]any
}

// ConvertToTable prints an object or a list, also one that comes as a runtime.CacheableObject. An
// object that is not a T is an error.
func (t Of[T]) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		table.ColumnDefinitions = t.Columns
	}
	if c, ok := object.(runtime.CacheableObject); ok {
		object = c.GetObject()
	}
	add := func(o runtime.Object) error {
		item, ok := o.(T)
		if !ok {
			return fmt.Errorf("%T cannot be shown in a table of %T", o, item)
		}
		for _, cells := range t.Rows(item) {
			for i, cell := range cells {
				if text, ok := cell.(string); ok {
					cells[i] = printable.Line(text, 0)
				}
			}
			table.Rows = append(table.Rows, metav1.TableRow{Cells: cells, Object: runtime.RawExtension{Object: o}})
		}
		return nil
	}
	if meta.IsListType(object) {
		list, err := meta.ListAccessor(object)
		if err != nil {
			return nil, err
		}
		table.ResourceVersion, table.Continue, table.RemainingItemCount = list.GetResourceVersion(), list.GetContinue(), list.GetRemainingItemCount()
		return table, meta.EachListItem(object, add)
	}
	if m, err := meta.CommonAccessor(object); err == nil {
		table.ResourceVersion = m.GetResourceVersion()
	}
	return table, add(object)
}

// Size prints bytes in decimal units with three significant digits, as registries and docker do;
// "<none>" for 0, which no image has.
func Size(n int64) string {
	if n <= 0 {
		return "<none>"
	}
	if n < 1000 {
		return fmt.Sprintf("%dB", n)
	}
	size, unit := float64(n), 0
	for size >= 999.5 && unit < len(sizeUnits)-1 {
		size /= 1000
		unit++
	}
	return fmt.Sprintf("%.3g%s", size, sizeUnits[unit])
}

var sizeUnits = []string{"B", "kB", "MB", "GB", "TB", "PB", "EB"}

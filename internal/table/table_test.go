package table_test

import (
	"io"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/internal/table"
)

var pods = table.Of[*corev1.Pod]{
	Columns: []metav1.TableColumnDefinition{{Name: "Name", Type: "string"}, {Name: "Containers", Type: "integer"}},
	Rows:    func(p *corev1.Pod) [][]any { return [][]any{{p.Name, int64(len(p.Spec.Containers))}} },
}

// cached is an object in the form in which watches pass it on.
type cached struct{ runtime.Object }

// CacheEncode is part of runtime.CacheableObject.
func (cached) CacheEncode(runtime.Identifier, func(runtime.Object, io.Writer) error, io.Writer) error {
	return nil
}

// GetObject is part of runtime.CacheableObject.
func (c cached) GetObject() runtime.Object { return c.Object }

func TestObjectsAndListsAreShown(t *testing.T) {
	a, b := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "7"}}, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	left := int64(3)
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "next", RemainingItemCount: &left}, Items: []corev1.Pod{a, b}}
	for name, tc := range map[string]struct {
		object  runtime.Object
		version string
		rows    []string
	}{
		"object":           {&a, "7", []string{"a"}},
		"cacheable object": {cached{&a}, "7", []string{"a"}},
		"list":             {list, "9", []string{"a", "b"}},
		"empty list":       {&corev1.PodList{}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := pods.ConvertToTable(t.Context(), tc.object, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got.ResourceVersion != tc.version || len(got.ColumnDefinitions) != 2 || len(got.Rows) != len(tc.rows) {
				t.Fatalf("%+v", got)
			}
			for i, row := range got.Rows {
				if pod, ok := row.Object.Object.(*corev1.Pod); !ok || pod.Name != tc.rows[i] || row.Cells[0] != tc.rows[i] || row.Cells[1] != int64(0) {
					t.Errorf("row %d: %+v", i, row)
				}
			}
		})
	}
	got, err := pods.ConvertToTable(t.Context(), list, &metav1.TableOptions{NoHeaders: true})
	if err != nil || got.ColumnDefinitions != nil || got.Continue != "next" || got.RemainingItemCount == nil || *got.RemainingItemCount != left {
		t.Errorf("%+v, %v", got, err)
	}
}

// A name with a bell and a right-to-left override does not reach a terminal.
func TestTextIsMadePrintable(t *testing.T) {
	got, err := pods.ConvertToTable(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a\a\u202e\nb"}}, nil)
	if err != nil || got.Rows[0].Cells[0] != "a\ufffd\ufffd b" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestOtherKindsAreRefused(t *testing.T) {
	for _, object := range []runtime.Object{&corev1.Service{}, &corev1.ServiceList{Items: []corev1.Service{{}}}, &metav1.Status{}} {
		if got, err := pods.ConvertToTable(t.Context(), object, nil); err == nil {
			t.Errorf("%T: %+v", object, got)
		}
	}
}

package pages

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Whatever is damaged, wherever it stands, everything else is read once.
func TestReadPassesOverDamage(t *testing.T) {
	t.Parallel()
	const objects = 2*size + 100
	for _, bad := range [][]int{{}, {0}, {objects - 1}, {0, 1, 2}, {size - 1, size, size + 1}, {3, 700, objects - 2}} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			var got []int
			var named []string
			err := Read(t.Context(), func(_ context.Context, limit int64, token string) (string, error) {
				start, _ := strconv.Atoi(token)
				end := min(start+int(limit), objects)
				for i := start; i < end; i++ {
					if slices.Contains(bad, i) {
						return "", &apierrors.StatusError{ErrStatus: metav1.Status{
							Reason: metav1.StatusReasonStoreReadError, Message: strconv.Itoa(i), ListMeta: metav1.ListMeta{Continue: strconv.Itoa(i + 1)},
						}}
					}
				}
				for i := start; i < end; i++ {
					got = append(got, i)
				}
				if end == objects {
					return "", nil
				}
				return strconv.Itoa(end), nil
			}, func(err error) { named = append(named, err.Error()) })
			if err != nil {
				t.Fatal(err)
			}
			want := make([]int, 0, objects)
			var wantNamed []string
			for i := range objects {
				if slices.Contains(bad, i) {
					wantNamed = append(wantNamed, strconv.Itoa(i))
					continue
				}
				want = append(want, i)
			}
			if !slices.Equal(got, want) || !slices.Equal(named, wantNamed) {
				t.Errorf("%d objects were read and %v named, want %d and %v", len(got), named, len(want), wantNamed)
			}
		})
	}
}

func TestReadFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	err := Read(t.Context(), func(context.Context, int64, string) (string, error) { return "", broken }, func(err error) { t.Error(err) })
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
}

package pages

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/pages/pagestest"
)

// Whatever is damaged, wherever it stands, everything else is read once.
func TestListPassesOverDamage(t *testing.T) {
	t.Parallel()
	const objects, size = 1100, 500
	for _, bad := range [][]int{{}, {0}, {objects - 1}, {0, 1, 2}, {size - 1, size, size + 1}, {3, 700, objects - 2}} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			var got []int
			var named []string
			err := EachReadable(t.Context(), metav1.ListOptions{}, numbers(objects, bad...), func(page *page) error {
				got = append(got, page.items...)
				return nil
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

// page is a page of a list of numbers.
type page struct {
	metav1.ListMeta
	items []int
}

// numbers is a list of n numbers from 0 on, of which some are damaged.
func numbers(n int, bad ...int) func(context.Context, metav1.ListOptions) (*page, error) {
	return func(_ context.Context, options metav1.ListOptions) (*page, error) {
		start, _ := strconv.Atoi(options.Continue)
		page, end := &page{}, min(start+int(options.Limit), n)
		for i := start; i < end; i++ {
			if slices.Contains(bad, i) {
				return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
					Reason: metav1.StatusReasonStoreReadError, Message: strconv.Itoa(i), ListMeta: metav1.ListMeta{Continue: strconv.Itoa(i + 1)},
				}}
			}
			page.items = append(page.items, i)
		}
		if end < n {
			page.Continue = strconv.Itoa(end)
		}
		return page, nil
	}
}

// A list that takes longer than the server keeps what it began with goes on where it was.
func TestListGoesOnAfterItHasExpired(t *testing.T) {
	t.Parallel()
	var got []int
	var named int
	err := EachReadable(t.Context(), metav1.ListOptions{}, pagestest.Expiring(numbers(100, 7, 8, 99)), func(page *page) error {
		got = append(got, page.items...)
		return nil
	}, func(error) { named++ })
	if err != nil || len(got) != 97 || named != 3 || !slices.IsSorted(got) {
		t.Errorf("%d numbers were read and %d named, %v: %v", len(got), named, err, got)
	}
}

// A list that does not go on ends, whatever the server answers.
func TestListWithoutProgressEnds(t *testing.T) {
	t.Parallel()
	expired := func(token string) error {
		err := apierrors.NewResourceExpired("too old")
		err.ErrStatus.Continue = token
		return err
	}
	n := 0
	for name, list := range map[string]func(context.Context, metav1.ListOptions) (*page, error){
		"the same token": func(context.Context, metav1.ListOptions) (*page, error) {
			return &page{ListMeta: metav1.ListMeta{Continue: "same"}}, nil
		},
		"expired without a token": func(context.Context, metav1.ListOptions) (*page, error) { return nil, expired("") },
		"expired with the token":  func(context.Context, metav1.ListOptions) (*page, error) { return nil, expired("same") },
		"expired again": func(context.Context, metav1.ListOptions) (*page, error) {
			n++
			return nil, expired(strconv.Itoa(n))
		},
		"damaged": func(context.Context, metav1.ListOptions) (*page, error) {
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonStoreReadError, ListMeta: metav1.ListMeta{Continue: "same"}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			counted := func(ctx context.Context, options metav1.ListOptions) (*page, error) {
				if asked++; asked > 10 {
					t.Fatal("the list is read for ever")
				}
				return list(ctx, options)
			}
			if err := Each(t.Context(), metav1.ListOptions{Limit: 2}, counted, func(*page) error { return nil }); err == nil {
				t.Error("such a list was read")
			}
			asked = 0
			if err := EachReadable(t.Context(), metav1.ListOptions{Limit: 2}, counted, func(*page) error { return nil }, func(error) {}); err == nil {
				t.Error("such a list was read past what is damaged")
			}
		})
	}
}

// An error of the work with a page ends the list, also if it looks like the list's own.
func TestErrorsOfTheWorkAreItsOwn(t *testing.T) {
	t.Parallel()
	theirs := apierrors.NewResourceExpired("another list")
	theirs.ErrStatus.Continue = "5"
	visited := 0
	err := EachReadable(t.Context(), metav1.ListOptions{Limit: 10}, numbers(100), func(*page) error { visited++; return theirs }, func(err error) { t.Error(err) })
	if err != error(theirs) || visited != 1 {
		t.Errorf("error %v after %d pages", err, visited)
	}
}

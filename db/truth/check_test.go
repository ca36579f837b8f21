package truth_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/truth"
)

// TestCheck: Check counts the keys of all pages, and names values that cannot be read and keys that
// share a revision, up to its limit.
func TestCheck(t *testing.T) {
	t.Parallel()
	store := dbtest.NewTruth()
	const n = 450
	for i := range n {
		if _, err := store.Put(t.Context(), fmt.Sprintf("/k/%03d", i), 0, []byte("v"), 0); err != nil {
			t.Fatal(err)
		}
	}
	if keys, err := truth.Check(t.Context(), store); err != nil || keys != n {
		t.Fatalf("%d keys, %v", keys, err)
	}
	store.PutUnreadable("/k/101", []byte{1})
	store.PutTogether("v", "/t/a", "/t/b")
	keys, err := truth.Check(t.Context(), store)
	var faults *truth.FaultsError
	if !errors.As(err, &faults) || keys != n+2 || faults.All != 2 {
		t.Fatalf("%d keys, %v", keys, err)
	}
	for _, want := range []string{"the value of /k/101 cannot be read: no header", "/t/b has revision"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	for i := range 30 {
		store.PutUnreadable(fmt.Sprintf("/u/%02d", i), []byte{1})
	}
	if _, err = truth.Check(t.Context(), store); !errors.As(err, &faults) || faults.All != 32 || len(faults.Faults) != 20 || !strings.Contains(err.Error(), "and 12 more") {
		t.Errorf("many: %v", err)
	}
	store.Stop()
	if _, err = truth.Check(t.Context(), store); err == nil || errors.As(err, &faults) {
		t.Errorf("a store that does not answer: %v", err)
	}
}

package coreapi_test

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// TestServiceOnFullDisk: a service whose address cannot be stored is not invalid. Its
// creation is refused with 503 and the reason, so that clients try again.
func TestServiceOnFullDisk(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t, func(o *db.Options) { o.MaxPageCount = 400; o.Logger = slog.New(slog.DiscardHandler) })
	s := startOn(t, d, coreapi.Options{ServiceCIDRs: []string{"10.7.0.0/28"}})
	create := func(name string) error {
		return s.CoreV1().RESTClient().Post().MaxRetries(0).Namespace("default").Resource("services").Body(service(name, nil)).Do(t.Context()).Error()
	}
	if err := create("before"); err != nil {
		t.Fatal(err)
	}
	for size := 100_000; size > 0; size /= 2 { // to the last byte
		value := strings.Repeat("x", size)
		for i := 0; ; i++ {
			_, err := d.Put(t.Context(), fmt.Sprintf("/ballast/%d-%d", size, i), 0, []byte(value), db.PutOptions{})
			var full *datafile.UnavailableError
			if errors.As(err, &full) {
				break
			}
			if err != nil || i > 10_000 {
				t.Fatal(err)
			}
		}
	}
	if err := create("refused"); !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "full") {
		t.Errorf("creating a service: %v, want 503 that says why", err)
	}
}

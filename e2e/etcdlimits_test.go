package e2e

import (
	crand "crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// TestLimitsOfEtcd: an object that etcd does not take is 413. While etcd is full, writes are 503
// with the reason, deletions and reads go on, and writes do when it has room again.
func TestLimitsOfEtcd(t *testing.T) {
	t.Parallel()
	e := harness.StartEtcd(t, 1, "--quota-backend-bytes", "8388608", "--max-request-bytes", "150000", "--unsafe-no-fsync")
	s := harness.StartServer(t, "--etcd-servers", e.Servers)
	client, err := kubernetes.NewForConfig(s.Config(t))
	must(t, err)
	leases := client.CoordinationV1().Leases("default")
	create := func(name string, bytes int) error {
		lease := counter(name, 0)
		random := make([]byte, bytes) // which cannot be compressed
		crand.Read(random)
		lease.Annotations = map[string]string{"a": base64.StdEncoding.EncodeToString(random)}
		// Without retries, which would wait for the room.
		return client.CoordinationV1().RESTClient().Post().MaxRetries(0).Namespace("default").Resource("leases").Body(lease).Do(t.Context()).Error()
	}
	if err := create("large", 160_000); !apierrors.IsRequestEntityTooLargeError(err) || !strings.Contains(err.Error(), "max-request-bytes") {
		t.Errorf("an object that is too large: %v", err)
	}
	var full error
	n := 0
	for ; n < 200 && full == nil; n++ {
		full = create(fmt.Sprintf("l-%d", n), 75_000)
	}
	if !apierrors.IsServiceUnavailable(full) || !strings.Contains(full.Error(), "etcd has no space left") {
		t.Fatalf("after %d objects: %v", n, full)
	}
	for i := range n - 1 {
		name := fmt.Sprintf("l-%d", i)
		if _, err := leases.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("reading while etcd is full: %v", err)
		}
		must(t, leases.Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	// What an administrator does with etcdctl: compaction, defrag, alarm disarm.
	member := e.Compact(t)
	e.Ask(t, "/v3/maintenance/defragment", `{}`)
	e.Ask(t, "/v3/maintenance/alarm", `{"action":"DEACTIVATE","alarm":"NOSPACE","memberID":"`+member+`"}`)
	harness.Eventually(t, func() error {
		return create("again", 1000)
	})
}

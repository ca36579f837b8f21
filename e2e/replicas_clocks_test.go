package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// TestReplicasHaveWrongClocks: of three servers, one is ten minutes early, and one ten minutes
// late. Each leads when the others are gone, and imports what is pushed; nothing waits for a clock.
// Clocks that are set while servers run depose no leader. A registry's pause is kept by all.
func TestReplicasHaveWrongClocks(t *testing.T) {
	t.Parallel()
	const wrong = 10 * time.Minute
	from := registry.Start(t, registry.Distribution)
	pushed := images.Numbered(t, 6)
	r := startReplicasOn(t, harness.StartEtcd(t, 1), 3, "--config", hookedConfig(t, "", from.Host))
	var clocks []*harness.Clock
	for i, by := range []time.Duration{-wrong, 0, wrong} {
		clock := harness.NewClock(t)
		clock.Set(t, by)
		clocks = append(clocks, clock)
		r.Env[i] = clock.Env(t, harness.Binary(t))
		r.Servers[i].Kill(t)
		r.Restart(t, i)
	}
	r.AwaitShared(t, 3)
	for i, by := range []time.Duration{-wrong, 0, wrong} { // they do have these clocks
		lease := counter(fmt.Sprintf("clock-%d", i), 0)
		made, err := r.clients[i].CoordinationV1().Leases("default").Create(t.Context(), lease, metav1.CreateOptions{})
		must(t, err)
		if off := time.Until(made.CreationTimestamp.Time) - by; off < -5*time.Minute || off > 5*time.Minute {
			t.Fatalf("server %d creates at %s, want a clock that is off by %s", i, made.CreationTimestamp, by)
		}
		_, err = r.clients[(i+1)%3].CoordinationV1().Leases("default").Get(t.Context(), lease.Name, metav1.GetOptions{})
		must(t, err)
	}

	// A token is worth nothing before it was issued, by the clock of who is asked.
	for _, c := range []struct {
		by, at int
		good   bool
	}{{0, 2, true}, {1, 1, true}, {2, 2, true}, {2, 0, false}} {
		config := r.Servers[c.at].Anonymous(t)
		config.BearerToken = strings.TrimSpace(r.Servers[c.by].Kubectl(t, "create", "token", "default"))
		client, err := kubernetes.NewForConfig(config)
		must(t, err)
		_, err = client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if (err == nil) != c.good || err != nil && !apierrors.IsUnauthorized(err) {
			t.Errorf("a token of server %d at server %d: %v", c.by, c.at, err)
		}
	}

	n := 0
	imports := func(at int) {
		t.Helper()
		ref := from.Push(t, fmt.Sprintf("team/app:%d", n), pushed[n])
		if status := r.told(t, at, ref); status != http.StatusAccepted {
			t.Fatalf("the webhook's answer is %d", status)
		}
		h := &hooked{Server: r.Servers[at]}
		h.awaitStored(t, pushed[n])
		h.awaitEmptySpool(t)
		n++
	}
	for i := range r.Servers {
		for other := range r.Servers {
			if other != i {
				r.Servers[other].Kill(t)
			}
		}
		if leader := r.Leader(t); leader != i {
			t.Fatalf("server %d leads, and only server %d runs", leader, i)
		}
		imports(i)
		for other := range r.Servers {
			if other != i {
				r.Restart(t, other)
			}
		}
		r.AwaitShared(t, 3)
		imports((i + 1) % 3)
	}

	leader := r.Leader(t)
	for range 3 {
		for i, by := range []time.Duration{wrong, -wrong, 0} {
			clocks[(leader+i)%3].Set(t, by)
		}
		time.Sleep(12 * time.Second) // longer than the lease of a leader
		for i := range clocks {
			clocks[i].Set(t, 0)
		}
	}
	for i, s := range r.Servers {
		if logs := s.Logs(); strings.Contains(logs, harness.EndsToLead) || i != leader && strings.Contains(logs, harness.BeginsToLead) {
			t.Errorf("server %d was the leader, and clocks were set: server %d says\n%s", leader, i, logs)
		}
	}
	for i, by := range []time.Duration{-wrong, 0, wrong} {
		clocks[i].Set(t, by)
	}
	r.keepAPause(t)
}

package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/e2e/compare"
	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

var upgradeFrom = flag.String("upgrade-from", "", "commit or tag that TestReplicasAreUpgraded begins with; without one it is this tree, whose servers are restarted one after the other")

// TestReplicasAreUpgraded: servers are replaced by those of another release one after the other.
// All along, what was written at one of them is read at another, whatever its release, what any is
// told of is imported, and no answered write is lost.
func TestReplicasAreUpgraded(t *testing.T) {
	t.Parallel()
	before := harness.Binary(t)
	if *upgradeFrom != "" {
		before = filepath.Join(t.TempDir(), "tidewaiter")
		must(t, compare.Build(filepath.Dir(harness.ModuleDir(t)), *upgradeFrom, before))
	}
	e, from, pushed := harness.StartEtcd(t, 3), registry.Start(t, registry.Distribution), images.Numbered(t, 9)
	r := &replicas{etcd: e, Replicas: harness.StartReplicasOf(t, before, 3, append(e.Flags(), "--config", hookedConfig(t, "", from.Host))...)}
	r.connect(t)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	const workers = 4
	made := make([][]string, workers)
	var failed atomic.Int64
	var writing sync.WaitGroup
	for w := range workers {
		writing.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("w%d-%d", w, n)
				at := rand.IntN(3)
				if _, err := r.clients[at].CoordinationV1().Leases("default").Create(ctx, counter(name, 0), metav1.CreateOptions{}); err != nil {
					failed.Add(1)
					continue
				}
				made[w] = append(made[w], name)
				other := (at + 1 + rand.IntN(2)) % 3
				if _, err := r.clients[other].CoordinationV1().Leases("default").Get(ctx, name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
					t.Errorf("server %d has no %s, which server %d has created", other, name, at)
				}
			}
		})
	}
	for i := range r.Servers {
		if code := r.Servers[i].Terminate(t); code != 0 {
			t.Errorf("server %d has ended with %d", i, code)
		}
		r.Restart(t, i)
		// The new server and those of before have each other's images, with what is computed of
		// them.
		for at := range r.Servers {
			name, other := fmt.Sprintf("step-%d-%d", i, at), r.Servers[(at+1)%3]
			r.Servers[at].KubectlStdin(t, plainImage(name), "create", "-f", "-")
			if row := other.Kubectl(t, "get", "image", name); !strings.Contains(row, "team/"+name) {
				t.Errorf("server %d has made %s, and another shows %s", at, name, row)
			}
			image := pushed[3*i+at]
			if status := r.told(t, at, from.Push(t, "team/app:"+name, image)); status != http.StatusAccepted {
				t.Errorf("server %d answers a webhook with %d", at, status)
			}
			(&hooked{Server: other}).awaitStored(t, image)
		}
	}
	for _, s := range r.Servers {
		(&hooked{Server: s}).awaitEmptySpool(t)
	}
	stop()
	writing.Wait()
	r.Leader(t)
	total := 0
	for i, c := range r.clients {
		list, err := c.CoordinationV1().Leases("default").List(t.Context(), metav1.ListOptions{})
		must(t, err)
		has := map[string]bool{}
		for _, l := range list.Items {
			has[l.Name] = true
		}
		total = 0
		for _, names := range made {
			total += len(names)
			for _, name := range names {
				if !has[name] {
					t.Errorf("server %d has lost %s", i, name)
				}
			}
		}
	}
	t.Logf("%d writes were answered while three servers were replaced, %d were not", total, failed.Load())
	if total == 0 {
		t.Error("nothing was written")
	}
}

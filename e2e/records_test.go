package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// ranPod is a pod of a cluster, and when it ran for certain: it began between made[0] and made[1],
// and ended between gone[0] and gone[1], which are zero while it runs.
type ranPod struct {
	name       string
	made, gone [2]time.Time
}

// late is how late a server may hear of a change, and by how much more a record may differ.
const late = 12 * time.Second

// runsPods lets pods of a cluster come and go until ctx is done, and returns all that ran.
func runsPods(ctx context.Context, t *testing.T, client kubernetes.Interface) (all []*ranPod) {
	pods := client.CoreV1().Pods("payments")
	done := context.WithoutCancel(ctx)
	for n := 0; ctx.Err() == nil; n++ {
		if len(all) > 3 && rand.IntN(2) == 0 {
			p := all[rand.IntN(len(all))]
			if p.gone[0].IsZero() {
				p.gone[0] = time.Now()
				if err := pods.Delete(done, p.name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
					t.Error(err)
				}
				p.gone[1] = time.Now()
			}
		} else {
			p := &ranPod{name: fmt.Sprint("app-", n)}
			all = append(all, p)
			image := "registry.example.com/app:1"
			pod, err := pods.Create(done, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}}}, metav1.CreateOptions{})
			if err == nil {
				p.made[0] = time.Now()
				pod.Status.Phase = corev1.PodRunning
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
					Name: "main", Image: image, ImageID: fmt.Sprintf("registry.example.com/app@sha256:%064x", n), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
				}}
				_, err = pods.UpdateStatus(done, pod, metav1.UpdateOptions{})
				p.made[1] = time.Now()
			}
			if err != nil {
				t.Error(err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rand.IntN(2000)) * time.Millisecond):
		}
	}
	return all
}

// gaps are the times in which a server says that a cluster was not seen.
func gaps(t *testing.T, s *harness.Server, cluster string) (all []struct{ From, Until metav1.Time }, since time.Time) {
	t.Helper()
	var got struct {
		Status struct {
			Records struct {
				Since  metav1.Time
				Unseen []struct{ From, Until metav1.Time }
			}
		}
	}
	must(t, json.Unmarshal([]byte(s.Kubectl(t, "get", "cluster", cluster, "-o", "json")), &got))
	return got.Status.Records.Unseen, got.Status.Records.Since.Time
}

// ranAt are the names of the pods that a server says ran in a cluster at a time, and what else it
// says.
func ranAt(t *testing.T, s *harness.Server, cluster string, at time.Time) (names map[string]bool, warned string) {
	t.Helper()
	config := s.Config(t)
	config.WarningHandler = rest.NewWarningWriter((*warnings)(&warned), rest.WarningWriterOptions{})
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	raw, err := client.RESTClient().Get().AbsPath("/apis/tidewaiter.dev/v1/imageruns").Param("fieldSelector", fmt.Sprintf("cluster=%s,at=%s", cluster, at.UTC().Format(time.RFC3339))).Do(t.Context()).Raw()
	must(t, err)
	var list struct {
		Items []struct{ Spec struct{ Workload string } }
	}
	must(t, json.Unmarshal(raw, &list))
	names = map[string]bool{}
	for _, item := range list.Items {
		name := strings.TrimPrefix(item.Spec.Workload, "Pod/")
		if names[name] {
			t.Errorf("%s ran twice at %s", name, at)
		}
		names[name] = true
	}
	return names, warned
}

// warnings collects what is written.
type warnings string

func (w *warnings) Write(p []byte) (int, error) {
	*w += warnings(p)
	return len(p), nil
}

// TestRecordsOfReplicas: three servers record what runs in a cluster while the one that leads is
// killed, ends, hangs and goes on, and while etcd is put back to a snapshot. At 500 random moments
// each says what ran then, or that it was not seen.
func TestRecordsOfReplicas(t *testing.T) {
	t.Parallel()
	cluster := harness.StartServer(t)
	config := filepath.Join(t.TempDir(), "tidewaiter.yaml")
	must(t, os.WriteFile(config, fmt.Appendf(nil, "clusters:\n- {name: prod, kubeconfig: %q, importRunning: false}\n", cluster.Kubeconfig), 0o600))
	r := startReplicasOn(t, harness.StartEtcd(t, 1), 3, "--config", config)
	client, err := kubernetes.NewForConfig(cluster.Config(t))
	must(t, err)
	recorded := func(s *harness.Server) {
		t.Helper()
		harness.Eventually(t, func() error {
			if unseen, since := gaps(t, s, "prod"); since.IsZero() || len(unseen) > 0 && unseen[len(unseen)-1].Until.IsZero() {
				return fmt.Errorf("since %s, with the gaps %v", since, unseen)
			}
			return nil
		})
	}
	recorded(r.Servers[r.Leader(t)])

	ctx, stop := context.WithCancel(t.Context())
	var all []*ranPod
	var running sync.WaitGroup
	running.Go(func() { all = runsPods(ctx, t, client) })
	defer running.Wait()
	defer stop()
	pass := func(d time.Duration) { time.Sleep(d) } // pods come and go meanwhile
	begun := time.Now()
	for n := range 2 {
		pass(15 * time.Second)
		leader := r.Leader(t)
		r.Servers[leader].Kill(t)
		recorded(r.Servers[r.Leader(t)])
		r.Restart(t, leader)

		pass(15 * time.Second)
		leader = r.Leader(t)
		r.Servers[leader].Signal(t, syscall.SIGSTOP)
		pass(20 * time.Second)
		r.Servers[leader].Signal(t, syscall.SIGCONT)
		recorded(r.Servers[(leader+1)%3])

		pass(15 * time.Second)
		leader = r.Leader(t)
		if code := r.Servers[leader].Terminate(t); code != 0 {
			t.Errorf("the server that leads ended with %d", code)
		}
		recorded(r.Servers[r.Leader(t)])
		r.Restart(t, leader)
		if n == 0 {
			snapshot := r.etcd.Snapshot(t)
			pass(40 * time.Second)
			r.etcd.Restore(t, snapshot, "--bump-revision", "1000000000", "--mark-compacted")
			harness.Eventually(t, func() error {
				if got := r.Servers[0].TryKubectl(t, "get", "clusters"); got.Code != 0 {
					return fmt.Errorf("%s", got.Stderr)
				}
				return nil
			})
		}
	}
	pass(15 * time.Second)
	stop()
	running.Wait()
	pass(late)
	for _, s := range r.Servers {
		recorded(s)
	}

	ended, moments := time.Now().Add(-late), [3]int{}
	unseen, since := gaps(t, r.Servers[0], "prod")
	for n := range 500 {
		at := begun.Add(time.Duration(rand.Int64N(int64(ended.Sub(begun))))).Truncate(time.Second)
		names, warned := ranAt(t, r.Servers[n%3], "prod", at)
		said := slices.ContainsFunc(unseen, func(g struct{ From, Until metav1.Time }) bool {
			return !at.Before(g.From.Time) && !at.After(g.Until.Time)
		})
		if said != strings.Contains(warned, "was not seen") || at.Before(since) != strings.Contains(warned, "not whole before") {
			t.Errorf("at %s server %d says %q, and the gaps are %v, since %s", at, n%3, warned, unseen, since)
		}
		if said || at.Before(since) {
			moments[0]++
			continue
		}
		moments[1]++
		for _, p := range all {
			ran := at.After(p.made[1].Add(late)) && (p.gone[0].IsZero() || at.Before(p.gone[0].Add(-time.Second)))
			not := at.Before(p.made[0].Add(-time.Second)) || !p.gone[1].IsZero() && at.After(p.gone[1].Add(late))
			if ran && !names[p.name] || not && names[p.name] {
				t.Errorf("at %s server %d says that %s ran: %t; it began at %s and ended at %s", at, n%3, p.name, names[p.name], p.made[1], p.gone[1])
			} else if ran || not {
				moments[2]++
			}
		}
	}
	t.Logf("%d pods; of 500 moments %d were seen and %d were not: %d answers about pods are right", len(all), moments[1], moments[0], moments[2])
	if moments[1] < 50 || moments[0] == 0 {
		t.Error("this shows little")
	}
}

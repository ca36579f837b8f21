package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
)

// BenchmarkLeases/Leases=N has N leases renewed every ten seconds, as nodes
// renew theirs, and reports what that costs the server beyond what it costs
// when nobody asks anything of it, in thousandths of a core. It runs for a few
// minutes: -bench BenchmarkLeases -benchtime 1x.
func BenchmarkLeases(b *testing.B) {
	const interval, span = 10 * time.Second, time.Minute
	for _, leases := range []int{1000} {
		b.Run(fmt.Sprintf("Leases=%d", leases), func(b *testing.B) {
			for b.Loop() {
				s := harness.StartServer(b)
				client := kubernetes.NewForConfigOrDie(s.Config(b)).CoordinationV1().Leases("nodes")
				<-time.After(interval) // what starting leaves to do is not measured
				idle := serverTime(b, s, span)

				stop := make(chan struct{})
				var renewing sync.WaitGroup
				for i := range leases {
					holder := fmt.Sprintf("node-%d", i)
					now, seconds := metav1.NowMicro(), int32(40)
					lease, err := client.Create(b.Context(), &coordinationv1.Lease{
						ObjectMeta: metav1.ObjectMeta{Name: holder},
						Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now},
					}, metav1.CreateOptions{})
					if err != nil {
						b.Fatal(err)
					}
					renewing.Go(func() {
						// not all at once
						<-time.After(interval * time.Duration(i) / time.Duration(leases))
						for tick := time.NewTicker(interval); ; {
							select {
							case <-stop:
								tick.Stop()
								return
							case <-tick.C:
							}
							now := metav1.NowMicro()
							lease.Spec.RenewTime = &now
							if lease, err = client.Update(b.Context(), lease, metav1.UpdateOptions{}); err != nil {
								b.Errorf("renewing %s: %v", holder, err)
								return
							}
						}
					})
				}
				<-time.After(2 * interval)
				busy := serverTime(b, s, span)
				close(stop)
				renewing.Wait()
				b.ReportMetric(1000*idle.Seconds()/span.Seconds(), "idle-millicores")
				b.ReportMetric(1000*(busy-idle).Seconds()/span.Seconds(), "millicores")
			}
		})
	}
}

// serverTime is the processor time that a server uses in the next span.
func serverTime(b *testing.B, s *harness.Server, span time.Duration) time.Duration {
	b.Helper()
	before := s.Process().ProcessorTime(b)
	<-time.After(span)
	return s.Process().ProcessorTime(b) - before
}

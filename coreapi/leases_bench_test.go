package coreapi_test

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/apimachinery/lease"
	"k8s.io/utils/clock"

	"tidewaiter/coreapi"
)

// BenchmarkRenewal is one renewal of a Lease by client-go, through TLS.
func BenchmarkRenewal(b *testing.B) {
	for _, leases := range []int{1000} {
		b.Run(fmt.Sprintf("Op=Renew/Leases=%d", leases), func(b *testing.B) {
			s := start(b, coreapi.Options{})
			client := s.CoordinationV1().Leases("nodes")
			held := heldLeases(b, s, leases)
			b.ResetTimer()
			for i := 0; b.Loop(); i++ {
				l := held[i%leases]
				now := metav1.NowMicro()
				l.Spec.RenewTime = &now
				updated, err := client.Update(b.Context(), l, metav1.UpdateOptions{})
				if err != nil {
					b.Fatal(err)
				}
				held[i%leases] = updated
			}
		})
	}
}

// BenchmarkLeaseLoad/Leases=N runs Kubernetes' own lease controller N times,
// each renewing every ten seconds, for a minute, and reports the processor time
// of server and clients together, in thousandths of a core. Subtract N=0.
func BenchmarkLeaseLoad(b *testing.B) {
	if testing.Short() {
		b.Skip("runs for a minute a size; leave out -short")
	}
	for _, leases := range []int{0, 1000} {
		b.Run(fmt.Sprintf("Leases=%d", leases), func(b *testing.B) {
			for b.Loop() {
				s := start(b, coreapi.Options{})
				heldLeases(b, s, leases)
				ctx, stop := context.WithCancel(b.Context())
				var group sync.WaitGroup
				begin := time.NewTicker(10 * time.Second / time.Duration(max(leases, 1)))
				for i := range leases { // spread over the ten seconds, as nodes are
					<-begin.C
					name := fmt.Sprintf("lease-%d", i)
					holder := lease.NewController(clock.RealClock{}, kubernetes.Interface(s.Clientset), name, 40, nil, 10*time.Second, name, "nodes", nil)
					group.Go(func() { holder.Run(ctx) })
				}
				begin.Stop()
				const span = time.Minute
				before := processorTime(b)
				<-time.After(span) // what is measured is this time, not a condition
				spent := processorTime(b) - before
				stop()
				group.Wait()
				s.stop()
				b.ReportMetric(1000*spent.Seconds()/span.Seconds(), "millicores")
			}
		})
	}
}

// processorTime is what this process has used so far.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

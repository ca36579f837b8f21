package coreapi_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi"
)

// BenchmarkRenewal is one renewal of a Lease by client-go, through TLS. What many
// of them cost a server is measured by BenchmarkLeases in e2e.
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

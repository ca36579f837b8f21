package spool_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/push"
)

// BenchmarkSpool measures what a push costs from its delivery until it is done, while many others
// are under way.
func BenchmarkSpool(b *testing.B) {
	for _, leased := range []int{0, 100, 5000} {
		b.Run(fmt.Sprintf("Leased=%d", leased), func(b *testing.B) {
			s, err := spool.Open(dbtest.Open(b), spool.Options{})
			if err != nil {
				b.Fatal(err)
			}
			n := 0
			event := func(host string) push.Event {
				n++
				return push.Event{Source: push.OfWebhook("r"), ID: fmt.Sprint(n), Action: push.Pushed, Host: host, Repository: "app", Tag: fmt.Sprint(n)}
			}
			for range leased / 100 {
				var events []push.Event
				for range 100 {
					events = append(events, event("late.example.com"))
				}
				if err := s.Enqueue(b.Context(), events); err != nil {
					b.Fatal(err)
				}
			}
			if leased > 0 {
				if _, err := s.ClaimNow(leased, time.Hour); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				if err := s.Enqueue(b.Context(), []push.Event{event("r.example.com")}); err != nil {
					b.Fatal(err)
				}
				claimed, err := s.ClaimNow(1, time.Minute)
				if err != nil || len(claimed) != 1 {
					b.Fatal(claimed, err)
				}
				if err := s.Done(b.Context(), claimed[0]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package spool_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/importer/push"
	"github.com/tidewaiter/tidewaiter/importer/spool"
)

// A lane full of jobs, all due before, does not come first with all of them.
func TestLanesTakeTurns(t *testing.T) {
	s := open(t, spool.Options{})
	for i := range 1000 {
		s.enqueue(request(fmt.Sprintf("dead.example.com/app:%d", i), "", "x"))
	}
	s.clock.Step(time.Second)
	s.enqueue(request("good.example.com/app:1", "", "x"), request("good.example.com/app:2", "", "x"))
	want := map[string]int{"dead.example.com": 5, "good.example.com": 2}
	got := map[string]int{}
	jobs, err := s.Claim(context.Background(), 7, time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		got[j.Host()]++
	}
	for lane, n := range want {
		if got[lane] != n {
			t.Errorf("lanes %v, want %v", got, want)
			break
		}
	}
	if jobs[0].Key != "dead.example.com/app:0" {
		t.Errorf("the first is %s, want the one due for longest", jobs[0].Key)
	}
}

// What there is no room for is neither claimed nor waited for, and does not keep the
// others from being waited for.
func TestClaimHeedsRoom(t *testing.T) {
	s := open(t, spool.Options{})
	s.enqueue(request("full.example.com/app:1", "", "x"), request("full.example.com/app:2", "", "x"), request("other.example.com/app:1", "", "x"))
	rooms := map[string]int{"full.example.com": 1, "other.example.com": 8}
	var again time.Time
	var mu sync.Mutex
	room := func(lane string) (int, time.Time) {
		mu.Lock()
		defer mu.Unlock()
		return rooms[lane], again
	}
	jobs, err := s.Claim(context.Background(), 8, time.Hour, room)
	if err != nil || len(jobs) != 2 {
		t.Fatal(jobs, err)
	}
	rooms["full.example.com"], again = 0, s.clock.Now().Add(time.Minute)
	claimed := make(chan []*push.Job)
	claim := func() {
		jobs, _ := s.Claim(context.Background(), 8, time.Hour, room)
		claimed <- jobs
	}
	go claim()
	s.awaitWaiting()
	s.enqueue(request("other.example.com/app:2", "", "x"))
	if jobs := <-claimed; len(jobs) != 1 || jobs[0].Key != "other.example.com/app:2" {
		t.Errorf("claimed %v", jobs)
	}
	// There is room again when room said so, without a signal. Timers of the claim before are still
	// there.
	s.clock.Step(time.Second)
	go claim()
	s.awaitWaiting()
	mu.Lock()
	rooms["full.example.com"] = 1
	mu.Unlock()
	for stepped := time.Duration(0); ; stepped += time.Second {
		// less than the lease of what is held
		select {
		case jobs := <-claimed:
			if len(jobs) != 1 || jobs[0].Key != "full.example.com/app:2" {
				t.Errorf("claimed %v", jobs)
			}
			return
		case <-time.After(time.Millisecond):
		}
		if stepped < 50*time.Minute {
			s.clock.Step(time.Second)
		}
	}
}

// A job that waits for its key did not keep others from being looked at in time.
func TestJobThatWaitsForItsKeyHoldsUpNobody(t *testing.T) {
	s := open(t, spool.Options{})
	s.enqueue(request("a.example.com/app:1", "", "x"))
	held := s.claimOne()
	s.enqueue(request("a.example.com/app:1", "", "y"), request("b.example.com/app:1", "", "x"))
	later, err := s.Claim(context.Background(), 1, time.Hour, nil)
	if err != nil || later[0].Key != "b.example.com/app:1" {
		t.Fatal(later, err)
	}
	if err := s.Renew(context.Background(), held, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := s.Fail(context.Background(), later[0], push.Failure{Error: "later", After: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	claimed := make(chan []*push.Job)
	go func() {
		jobs, _ := s.Claim(context.Background(), 1, time.Hour, nil)
		claimed <- jobs
	}()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		select {
		case jobs := <-claimed:
			if len(jobs) != 1 || jobs[0].Key != "b.example.com/app:1" {
				t.Errorf("claimed %v", jobs)
			}
			return
		case <-time.After(time.Millisecond):
		}
		if s.clock.Waiters() > 1 { // maintenance and Claim; who does not wait looks at the clock
			s.clock.Step(time.Second)
		}
	}
	t.Error("the job of another key is not claimed")
}

// awaitWaiting returns once somebody waits for the clock, beside maintenance.
func (s *testSpool) awaitWaiting() {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); s.clock.Waiters() < 2; {
		if time.Now().After(deadline) {
			s.t.Fatal("nobody waits")
		}
		time.Sleep(time.Millisecond)
	}
}

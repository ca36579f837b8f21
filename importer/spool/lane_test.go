package spool_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/push"
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

// A receiver with jobs about many registries, all due before, does not go first with all of them,
// however few are claimed at a time.
func TestReceiversTakeTurns(t *testing.T) {
	s := open(t, spool.Options{})
	for i := range 100 {
		s.enqueue(from("pods", fmt.Sprintf("hangs-%d.example.com/app", i), "", "x"))
	}
	s.clock.Step(time.Second)
	for i := range 3 {
		s.enqueue(from("hook", fmt.Sprintf("good-%d.example.com/app", i), "", "x"))
	}
	of := map[string]int{}
	for range 6 {
		for _, j := range s.claim(1) {
			of[j.Source.Name]++
		}
	}
	if of["pods"] != 3 || of["hook"] != 3 {
		t.Errorf("claimed one at a time: %v", of)
	}
	s.enqueue(from("hook", "good-3.example.com/app", "", "x"), from("hook", "good-4.example.com/app", "", "x"))
	clear(of)
	for _, j := range s.claim(4) {
		of[j.Source.Name]++
	}
	if of["pods"] != 2 || of["hook"] != 2 {
		t.Errorf("claimed together: %v", of)
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
	if err := s.Fail(context.Background(), later[0], job.Failure{Error: "later", After: 5 * time.Second}); err != nil {
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

// A receiver with many jobs about a registry does not go first with all of them where another
// receiver has a job about the same registry.
func TestReceiversTakeTurnsAtOneRegistry(t *testing.T) {
	s := open(t, spool.Options{})
	for i := range 50 {
		s.enqueue(from("pods", fmt.Sprintf("registry.example.com/many:%d", i), "", "x"))
	}
	s.clock.Step(time.Second)
	s.enqueue(from("hook", "registry.example.com/team/app:1", "", "x"), from("hook", "registry.example.com/many:49", "", "x"))
	for n := range 4 {
		if of := s.claim(1)[0].Source.Name; of != []string{"pods", "hook"}[n%2] {
			t.Errorf("claim %d: %s", n, of)
		}
	}
	// Together they have no more than the registry has room for, and each key once.
	s.enqueue(from("hook", "registry.example.com/many:2", "", "x"), from("hook", "registry.example.com/team/app:2", "", "x"))
	var got []string
	room := func(string) (int, time.Time) { return 3, time.Time{} }
	jobs, err := s.Claim(context.Background(), 8, time.Minute, room)
	if err != nil {
		t.Fatal(err)
	}
	for _, j := range jobs {
		got = append(got, j.Source.Name+" "+shortKey(j))
	}
	if fmt.Sprint(got) != "[pods many:2 hook team/app:2 pods many:3]" {
		t.Errorf("claimed together: %v", got)
	}
}

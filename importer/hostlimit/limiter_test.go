package hostlimit_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer/hostlimit"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

var (
	errDead    = fmt.Errorf("importing: %w", &pull.Error{Reason: pull.Unreachable})
	errMissing = &pull.Error{Reason: pull.NotFound}
)

func room(t *testing.T, l *hostlimit.Limiter, host string, want int) {
	t.Helper()
	if n, _ := l.Available(host); n != want {
		t.Errorf("room for %d jobs of %s, want %d", n, host, want)
	}
}

func TestHostIsTriedBeforeItIsTrusted(t *testing.T) {
	l := hostlimit.New(16, 8, clocktesting.NewFakeClock(time.Now()))
	room(t, l, "a", 1)
	l.Start("a")
	room(t, l, "a", 0)
	room(t, l, "b", 1)
	l.Done("a", errMissing) // an answer, too
	room(t, l, "a", 8)
	for range 8 {
		l.Start("a")
	}
	room(t, l, "a", 0)
	l.Done("a", nil)
	room(t, l, "a", 1)
}

// A job that waits for something else than its host gives its slot to another one, up to a bound.
func TestSlotsAreLeft(t *testing.T) {
	l := hostlimit.New(16, 8, clocktesting.NewFakeClock(time.Now()))
	l.Start("a")
	l.Done("a", nil)
	for range 8 {
		l.Start("a")
	}
	room(t, l, "a", 0)
	if !l.Leave("a") {
		t.Error("a slot cannot be left")
	}
	room(t, l, "a", 1)
	l.Start("a")
	room(t, l, "a", 0)
	l.Done("a", nil)
	room(t, l, "a", 1) // one has ended, and one has still left its slot
	l.Return("a")
	room(t, l, "a", 0)
	l.Done("a", nil)
	room(t, l, "a", 1)

	l = hostlimit.New(16, 8, clocktesting.NewFakeClock(time.Now()))
	n := 0
	for l.Start("a"); l.Leave("a"); l.Start("a") {
		if n++; n == 1000 {
			t.Fatal("slots are left without a bound")
		}
	}
	l.Return("a")
	if !l.Leave("a") || l.Leave("a") {
		t.Errorf("of %d that have left their slots, one has its slot again, and not one more may leave", n)
	}
}

func TestHostIsPausedAndProbed(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	l := hostlimit.New(16, 8, clock)
	fail := func(err error, want time.Duration) {
		t.Helper()
		l.Start("a")
		until := l.Done("a", err)
		if got := until.Sub(clock.Now()); got != want {
			t.Fatalf("paused for %s, want %s", got, want)
		}
		if n, again := l.Available("a"); n != 0 || !again.Equal(until) {
			t.Fatalf("room for %d until %s", n, again)
		}
		clock.SetTime(until)
		room(t, l, "a", 1)
	}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		fail(errDead, want*time.Second)
	}
	fail(&pull.Error{Reason: pull.RateLimited, RetryAfter: time.Hour}, time.Hour)
	l.Start("a")
	if until := l.Done("a", nil); !until.IsZero() {
		t.Error("it is paused although it answers")
	}
	room(t, l, "a", 8)
	fail(&pull.Error{Reason: pull.Unavailable, RetryAfter: 7 * time.Second}, 7*time.Second)
	// A refusal that names no time is a failure like any other.
	fail(&pull.Error{Reason: pull.RateLimited, Refused: true}, 2*time.Second)
	fail(&pull.Error{Reason: pull.Unavailable, Refused: true}, 4*time.Second)

	// What is not about the registry pauses nothing.
	l.Start("b")
	if until := l.Done("b", errors.New("the API server is away")); !until.IsZero() {
		t.Error("it is paused for somebody else's fault")
	}
	l.Start("b")
	l.Done("b", &pull.Error{Reason: pull.Canceled})
	room(t, l, "b", 1)
}

// Eight jobs of a host that dies are one failure, and one that still ends well does not
// end what the host asked for.
func TestJobsThatFailTogetherAreOneFailure(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	l := hostlimit.New(16, 8, clock)
	l.Start("a")
	l.Done("a", nil)
	for range 8 {
		l.Start("a")
	}
	for range 7 {
		l.Done("a", errDead)
	}
	if until := l.Done("a", errDead); until.Sub(clock.Now()) != time.Second {
		t.Errorf("paused for %s", until.Sub(clock.Now()))
	}
}

// However many hosts hang, one that answers finds a slot, and so does a new one beside
// as many as there are slots for first jobs. No claim gets more than there are.
func TestHostsThatHangLeaveSlots(t *testing.T) {
	l := hostlimit.New(16, 8, clocktesting.NewFakeClock(time.Now()))
	for _, good := range []string{"good", "was-good-1", "was-good-2", "was-good-3"} {
		l.Start(good)
		l.Done(good, nil)
	}
	claim := func(host string) {
		for {
			n, _ := l.Available(host)
			if n = min(n, l.Free()); n == 0 {
				return
			}
			for range n {
				l.Start(host)
			}
		}
	}
	for i := range 3 {
		claim(fmt.Sprint("was-good-", i+1)) // and hang from now on
	}
	room(t, l, "good", 1)
	for i := range 100 {
		claim(fmt.Sprint("hangs-", i))
	}
	room(t, l, "good", 1)
	room(t, l, "new", 1)
	for i := range 1000 {
		claim(fmt.Sprint("hangs-", i))
	}
	room(t, l, "new", 0)
	if n := l.Running(); n != 128+16 {
		t.Errorf("%d jobs run", n)
	}
	if n := l.Free(); n != 0 {
		t.Errorf("%d are free", n)
	}
}

func TestHostsAreForgotten(t *testing.T) {
	l := hostlimit.New(16, 8, clocktesting.NewFakeClock(time.Now()))
	for i := range 5000 {
		l.Start(fmt.Sprint(i))
		l.Done(fmt.Sprint(i), errDead)
	}
	if n := l.Known(); n > 1025 {
		t.Errorf("%d hosts are remembered", n)
	}
}

func TestPausedHostsAreCounted(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	l := hostlimit.New(16, 8, clock)
	for _, host := range []string{"a", "b", "c"} {
		l.Start(host)
	}
	l.Done("a", errDead)
	l.Done("b", errDead)
	l.Done("c", nil)
	if hosts := l.BackingOff(); !slices.Equal(hosts, []string{"a", "b"}) {
		t.Errorf("%v are paused, want a and b", hosts)
	}
	clock.Step(time.Minute)
	if hosts := l.BackingOff(); len(hosts) != 0 {
		t.Errorf("%v are paused a minute later", hosts)
	}
}

// A sign that a host is back ends a back-off from it, and not the pause that it asked for.
func TestSignsThatAHostIsBack(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	l := hostlimit.New(16, 8, clock)
	fail := func(err error) {
		l.Start("a")
		l.Done("a", err)
	}
	for range 10 {
		fail(errDead)
		clock.SetTime(l.Until("a"))
	}
	fail(errDead)
	room(t, l, "a", 0)
	l.Sign("a", clock.Now().Add(-time.Second)) // it answered before it failed
	l.Sign("b", clock.Now())
	room(t, l, "a", 0)
	clock.Step(time.Second)
	l.Sign("a", clock.Now())
	room(t, l, "a", 1)
	fail(errDead)
	clock.Step(time.Second)
	l.Sign("a", clock.Now()) // too soon after the sign before
	if left := l.Until("a").Sub(clock.Now()); left < 4*time.Minute {
		t.Errorf("signs without end have it probed each time: %s are left", left)
	}
	l.End("a")
	room(t, l, "a", 1)

	fail(&pull.Error{Reason: pull.RateLimited, RetryAfter: time.Hour})
	clock.Step(time.Minute)
	l.Sign("a", clock.Now())
	room(t, l, "a", 0)
	l.End("")
	room(t, l, "a", 1)
}

// A job that is done while a host is backed off from shows that it answers.
func TestASuccessEndsABackoff(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	l := hostlimit.New(16, 8, clock)
	l.Start("a")
	l.Done("a", nil)
	l.Start("a")
	l.Start("a")
	l.Done("a", errDead)
	room(t, l, "a", 0)
	if until := l.Done("a", nil); !until.IsZero() {
		t.Errorf("it is paused until %s", until)
	}
	room(t, l, "a", 8)
	for range 2 {
		l.Start("a")
	}
	l.Done("a", &pull.Error{Reason: pull.RateLimited, RetryAfter: time.Hour})
	if until := l.Done("a", nil); until.Sub(clock.Now()) != time.Hour {
		t.Errorf("it asked for an hour, and is paused until %s", until)
	}
}

// A job that hangs since before a host was back does not keep the next one from it, and its end
// delays nothing.
func TestAJobThatHangsDelaysNothingOnceItsHostIsBack(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	l := hostlimit.New(16, 8, clock)
	hung := &pull.Error{Reason: pull.Timeout}
	begin := func() (began time.Time) {
		l.Start("a")
		began = clock.Now()
		clock.Step(time.Second)
		return began
	}
	first := begin()
	if r := l.DoneSince("a", first, hung); r.HungBefore || r.PausedUntil.IsZero() {
		t.Errorf("the first that hangs: %+v", r)
	}
	clock.Step(time.Second)
	second := begin()
	room(t, l, "a", 0)
	if !l.Sign("a", clock.Now()) {
		t.Error("what waits is not tried at a sign")
	}
	room(t, l, "a", 1)
	clock.Step(time.Second)
	third := begin()
	room(t, l, "a", 0)
	clock.Step(10 * time.Second)
	if l.Sign("a", clock.Now()) {
		t.Error("what waits is tried at each sign")
	}
	room(t, l, "a", 0) // two hang, and no more
	if r := l.DoneSince("a", second, hung); !r.HungBefore || !r.PausedUntil.IsZero() {
		t.Errorf("one that began before the sign: %+v", r)
	}
	room(t, l, "a", 1)
	clock.Step(time.Second)
	if r := l.DoneSince("a", begin(), nil); !r.IsBack {
		t.Errorf("one that the host answers: %+v", r)
	}
	if r := l.DoneSince("a", third, hung); !r.HungBefore || !r.PausedUntil.IsZero() {
		t.Errorf("one that hangs still: %+v", r)
	}
	room(t, l, "a", 8)

	// One that begins afterwards is a failure, as is any other end.
	if r := l.DoneSince("a", begin(), hung); r.HungBefore || r.PausedUntil.IsZero() {
		t.Errorf("one that hangs anew: %+v", r)
	}
	clock.SetTime(l.Until("a"))
	if r := l.DoneSince("a", begin(), nil); r.IsBack {
		t.Error("what waits is tried each time that the host is back")
	}
	before := begin()
	l.End("a")
	if r := l.DoneSince("a", before, errDead); r.HungBefore || r.PausedUntil.IsZero() {
		t.Errorf("one that finds the host away: %+v", r)
	}
	clock.SetTime(l.Until("a"))
	before = begin()
	room(t, l, "a", 0)
	l.End("a") // somebody asks for it
	room(t, l, "a", 1)
	if r := l.DoneSince("a", before, hung); !r.HungBefore {
		t.Errorf("one that began before somebody asked: %+v", r)
	}
	if l.Running() != 0 {
		t.Errorf("%d jobs run", l.Running())
	}
}

// What a registry asked for is not forgotten because somebody names many hosts that fail.
func TestPauseIsRememberedBesideManyHosts(t *testing.T) {
	forgotten := 0
	for range 20 {
		clock := clocktesting.NewFakeClock(time.Now())
		l := hostlimit.New(16, 8, clock)
		l.Start("registry-1.docker.io")
		l.Done("registry-1.docker.io", &pull.Error{Reason: pull.RateLimited, RetryAfter: time.Hour})
		for i := range 1025 {
			host := fmt.Sprintf("h%d.invalid", i)
			l.Start(host)
			l.Done(host, &pull.Error{Reason: pull.Unreachable})
		}
		if n, _ := l.Available("registry-1.docker.io"); n > 0 {
			forgotten++
		}
	}
	if forgotten > 0 {
		t.Errorf("in %d of 20 runs the pause of an hour was forgotten", forgotten)
	}
}

package runs

import (
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/admit"
)

// A stretch has how its image was admitted shortly before. What nobody asked about says so, and
// what began before the server did is unknown.
func TestAdmission(t *testing.T) {
	w, c := oneCluster(t)
	w.start()
	pass := func(d time.Duration) { w.clock.SetTime(w.now().Add(d)) }
	image, version := "registry.example.com/app0:v1", 0
	check := func(want string) {
		t.Helper()
		w.flush(true)
		for _, r := range w.at(w.now()) {
			if r.Status.Admission != want {
				t.Errorf("version %d: %s, want %s", version, r.Status.Admission, want)
			}
			return
		}
		t.Errorf("version %d does not run", version)
	}
	run := func(want string) {
		t.Helper()
		version++
		w.runs(c, podID{"ns", "app"}, 0, version)
		check(want)
	}
	run("NeverAsked")
	for _, test := range []struct {
		as      admit.Action
		unknown bool
		want    string
	}{{admit.Allow, false, "Allowed"}, {admit.Warn, false, "Warned"}, {admit.Audit, false, "Audited"}, {admit.Warn, true, "UnknownAllowed"}} {
		pass(time.Hour)
		w.recorder.Admitted("c", "ns", image, test.as, test.unknown, "why")
		pass(time.Minute)
		run(test.want)
	}
	pass(2 * time.Hour)
	run("NeverAsked")
	// What began while the cluster was away is not admitted by an answer that came later.
	c.away = true
	w.recorder.Away(c.name, w.now())
	pass(time.Minute)
	version++
	w.runs(c, podID{"ns", "app"}, 0, version)
	pass(30 * time.Minute)
	w.recorder.Admitted("c", "ns", image, admit.Allow, false, "")
	c.away = false
	w.current(c)
	check("Unknown")
	w.recorder.Admitted("other", "ns", image, admit.Allow, false, "")
	w.recorder.SeveralServers = true
	pass(2 * time.Hour)
	run("Unknown")
	w.dead, version = true, version+1
	pass(time.Minute)
	w.runs(c, podID{"ns", "app"}, 0, version)
	pass(time.Minute)
	w.start()
	check("Unknown")
}

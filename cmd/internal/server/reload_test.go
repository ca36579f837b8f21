package server

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tidewaiter/tidewaiter/cmd/internal/config"
	"github.com/tidewaiter/tidewaiter/cmd/internal/server/servertest"
)

// Receivers are those of the changed file at once. A mistake anywhere in the file changes nothing, and what else changed is
// known to wait for a restart.
func TestReloadReceivers(t *testing.T) {
	const two = "receivers:\n- {name: a, type: generic, hosts: [r.example.com], secretFile: secret}\n- {name: b, type: generic, hosts: [r.example.com], secretFile: secret}\n"
	const one = "receivers:\n- {name: b, type: generic, hosts: [other.example.com], secretFile: secret}\n"
	path := servertest.WriteConfig(t, two)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("secret", "a-secret-that-nobody-guesses")
	started, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	handler, err := newReceivers(started, unusedSpool{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	names := func() (names []string) {
		for _, r := range handler.Receivers() {
			names = append(names, r.Name+" "+r.Hosts[0])
		}
		return names
	}
	before := []string{"a r.example.com", "b r.example.com"}
	current := started
	for _, step := range []struct {
		text      string
		fails     bool
		receivers []string
		waits     []string // for a restart
	}{
		{"# a remark\n" + two, false, before, nil},
		{two + "receivers: []\n", true, before, nil},
		{"receivers:\n- {name: a, type: generic, hosts: [r.example.com], secretFile: none}\n", true, before, nil},
		{"receivers:\n- {name: a, type: docker, hosts: [r.example.com], secretFile: secret}\n", true, before, nil},
		{two + "sweep: {every: 1h}\n", false, before, []string{"sweep"}},
		{one + "sweep: {every: 1h}\nstreams: {auto: false}\n", false, []string{"b other.example.com"}, []string{"sweep", "streams"}},
		{two, false, before, nil},
		{"hooks: {listen: \"127.0.0.1:0\"}\n", true, before, nil}, // with it no server would start
		{"", false, nil, nil},
	} {
		write("config.yaml", step.text)
		next, err := reloadReceivers(current, handler)
		if (err != nil) != step.fails {
			t.Errorf("%q: %v", step.text, err)
		}
		if err == nil {
			current = next
		}
		if got := names(); !slices.Equal(got, step.receivers) {
			t.Errorf("%q: the receivers are %q, want %q", step.text, got, step.receivers)
		}
		if got := config.Changed(started, current, "receivers"); !slices.Equal(got, step.waits) {
			t.Errorf("%q: %q wait for a restart, want %q", step.text, got, step.waits)
		}
	}
}

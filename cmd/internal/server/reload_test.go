package server

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/cmd/internal/config"
	"github.com/tidewaiter/tidewaiter/cmd/internal/server/servertest"
)

// Receivers are those of the changed file at once. A mistake anywhere in the file changes nothing, and what else changed is
// known to wait for a restart.
func TestReloadReceivers(t *testing.T) {
	const two = "receivers:\n- {name: a, type: generic, hosts: [r.example.com], secretFile: secret}\n- {name: b, type: generic, hosts: [r.example.com], secretFile: secret}\n"
	const one = "receivers:\n- {name: b, type: generic, hosts: [other.example.com], secretFile: secret}\n"
	const told = "notify:\n- name: ci\n  url: https://ci.example.com\n  secretFile: signing\n"
	path := servertest.WriteConfig(t, two)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("secret", "a-secret-that-nobody-guesses")
	write("signing", "whsec_"+strings.Repeat("YWJj", 11))
	started, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	handler, err := newReceivers(started, unusedSpool{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	notifier, err := started.Notifier("", nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &pushes{handler: handler, notifier: notifier}
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
		{two + told, false, before, nil},
		{two + told + "  insecure: true\n  format: xml\n", true, before, nil},
		{"receivers:\n- {name: a, type: generic, hosts: [r.example.com], secretFile: none}\n", true, before, nil},
		{"", false, nil, nil},
	} {
		write("config.yaml", step.text)
		next, err := p.reloadReceivers(current)
		if (err != nil) != step.fails {
			t.Errorf("%q: %v", step.text, err)
		}
		if err == nil {
			current = next
		}
		if got := len(p.notifier.Receivers()); got != len(current.Notify) {
			t.Errorf("%q: %d are told", step.text, got)
		}
		if got := names(); !slices.Equal(got, step.receivers) {
			t.Errorf("%q: the receivers are %q, want %q", step.text, got, step.receivers)
		}
		if got := config.Changed(started, current, reloaded...); !slices.Equal(got, step.waits) {
			t.Errorf("%q: %q wait for a restart, want %q", step.text, got, step.waits)
		}
	}
}

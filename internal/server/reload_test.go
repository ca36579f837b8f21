package server

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// takenOver is a reloadable that keeps what it is given.
type takenOver struct {
	swept queue.SweepOptions
	kept  config.Records
}

func (o *takenOver) ReplaceSweep(swept queue.SweepOptions) error { o.swept = swept; return nil }

func (o *takenOver) keepRecords(kept config.Records) { o.kept = kept }

// What is marked so in the configuration is that of the changed file at once. A mistake anywhere in
// the file changes nothing, and what else changed is known to wait for a restart.
func TestReload(t *testing.T) {
	const two = "receivers:\n- {name: a, type: generic, hosts: [r.example.com], secretFile: secret}\n- {name: b, type: generic, hosts: [r.example.com], secretFile: secret}\n"
	const one = "receivers:\n- {name: b, type: generic, hosts: [other.example.com], secretFile: secret}\n"
	const told = "notify:\n- name: ci\n  url: https://ci.example.com\n  secretFile: signing\n"
	const mirror = "imageTagMirrors:\n- {source: quay.io, mirrors: [mirror.example.com/quay]}\n"
	path := servertest.WriteConfig(t, two)
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(filepath.Dir(path), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("secret", "a-secret-that-nobody-guesses")
	write("signing", "whsec_"+strings.Repeat("YWJj", 11))
	if err := os.Mkdir(filepath.Join(filepath.Dir(path), "registries.d"), 0o700); err != nil {
		t.Fatal(err)
	}
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
	others := &takenOver{}
	p := &pushes{handler: handler, notifier: notifier}
	p.newImporter = func(c *config.Config) (*importer.Importer, error) {
		return NewPushImporter(c, nil, Options{Isolated: true}, nil)
	}
	im, err := p.newImporter(started)
	if err != nil {
		t.Fatal(err)
	}
	p.importer.Store(im)
	p.config.Store(started)
	tag, err := reference.Parse("r.example.com/team/app:v1")
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
	current, taken := started, map[string]bool{}
	for _, step := range []struct {
		text      string
		fails     bool
		receivers []string
		importer  bool     // is another one
		waits     []string // for a restart
	}{
		{"# a remark\n" + two, false, before, false, nil},
		{two + "receivers: []\n", true, before, false, nil},
		{"receivers:\n- {name: a, type: generic, hosts: [r.example.com], secretFile: none}\n", true, before, false, nil},
		{"receivers:\n- {name: a, type: docker, hosts: [r.example.com], secretFile: secret}\n", true, before, false, nil},
		{two + "sweep: {every: 1h}\n", false, before, false, nil},
		{two + "sweep: {every: 1s}\n", true, before, false, nil},
		{one + "sweep: {every: 2h}\nstreams: {auto: false}\n", false, []string{"b other.example.com"}, false, []string{"streams"}},
		{two, false, before, false, nil},
		// with it no server would start
		{"hooks: {listen: \"127.0.0.1:0\"}\n", true, before, false, nil},
		{two + told, false, before, false, nil},
		{two + told + "  insecure: true\n  format: xml\n", true, before, false, nil},
		{"receivers:\n- {name: a, type: generic, hosts: [r.example.com], secretFile: none}\n", true, before, false, nil},
		{"", true, before, false, nil},
		{" \n", true, before, false, nil},
		{two, true, before, false, nil}, // cut: told is missing
		{"{}\n", false, nil, false, nil},
		{"records: {keep: 30d, most: 5}\n", false, nil, false, nil},
		{"records: {keep: soon}\n", true, nil, false, nil},
		{"registries: [{prefix: r.example.com, insecure: true}]\n", false, nil, true, nil},
		{"registries: [{prefix: \"\"}]\n" + two, true, nil, false, nil},
		{"registries: [{prefix: r.example.com, immutableTags: [\"v*\"]}]\n", false, nil, true, nil},
		{"registries: [{prefix: r.example.com, immutableTags: [\"v[0-9]\"]}]\n" + two, true, nil, false, nil},
		{mirror, false, nil, true, nil},
		{mirror + "    mirrorSourcePolicy: Never\n", true, nil, false, nil},
		{"imageDigest" + strings.TrimPrefix(mirror, "imageTag"), false, nil, true, nil},
		{"allowedNetworks: [10.1.0.0/16]\n", false, nil, true, nil},
		{"allowedNetworks: [10.1.0.0/160]\n" + two, true, nil, false, nil},
		{"authFile: auth.json\n", false, nil, true, nil},
		{"registriesDir: registries.d\n", false, nil, true, nil},
		{"registriesDir: registries.d\nkubelet: {address: \"{nodeName}\"}\n", false, nil, false, []string{"kubelet"}},
	} {
		write("config.yaml", step.text)
		im := p.importer.Load()
		var poll trusted.Poll
		if _, settled, err := p.look(&poll, current, true, others); settled || err != nil {
			t.Errorf("%q: the first look counts: %v", step.text, err)
		}
		poll.InForce = trusted.Contents{current.Path(): current.Content()}
		next, settled, err := p.look(&poll, current, true, others)
		if !settled {
			t.Errorf("%q: the second look does not count", step.text)
		}
		if (err != nil) != step.fails {
			t.Errorf("%q: %v", step.text, err)
		}
		if err == nil {
			for part, keys := range config.Changed(current, next) {
				for _, key := range keys {
					taken[key] = taken[key] || part != ""
				}
			}
			current = next
		}
		if got := p.importer.Load() != im; got != step.importer {
			t.Errorf("%q: another importer: %t", step.text, got)
		}
		if others.swept.Every != current.Sweep.Every {
			t.Errorf("%q: it is swept every %v", step.text, others.swept.Every)
		}
		if got := p.config.Load().Immutable(tag); (got != "") != strings.Contains(string(current.Content()), "immutableTags") {
			t.Errorf("%q: the tag must not move by %q", step.text, got)
		}
		if others.kept != current.Records {
			t.Errorf("%q: records are kept for %+v", step.text, others.kept)
		}
		if got := len(p.notifier.Receivers()); got != len(current.Notify) {
			t.Errorf("%q: %d are told", step.text, got)
		}
		if got := names(); !slices.Equal(got, step.receivers) {
			t.Errorf("%q: the receivers are %q, want %q", step.text, got, step.receivers)
		}
		if got := config.Changed(started, current)[""]; !slices.Equal(got, step.waits) {
			t.Errorf("%q: %q wait for a restart, want %q", step.text, got, step.waits)
		}
	}
	for f := range reflect.TypeFor[config.Config]().Fields() {
		if key := f.Tag.Get("yaml"); (f.Tag.Get("reload") != "") != taken[key] {
			t.Errorf("%s is documented as reloaded: %t, and no step shows it", key, !taken[key])
		}
	}
}

package push_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

func TestEventsComeBack(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	good := []push.Event{
		{Action: "push", Host: "r.example.com", Repository: "team/app", Tag: "1.0", Digest: digest, Actor: "robot$ci"},
		{Action: "delete", Host: "127.0.0.1:5000", Repository: "app"},
		{Action: "push", Host: "docker.io", Repository: "library/busybox", Tag: "latest", Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
		{Action: "push", Host: "r.example.com", Repository: "team/app", Digest: "sha512:" + strings.Repeat("ab", 64)},
	}
	for _, h := range good {
		got, err := push.Decode(h.Encode())
		if err != nil || got != h {
			t.Errorf("%+v came back as %+v, %v", h, got, err)
		}
	}
	for name, s := range map[string]string{
		"not JSON":        `x`,
		"no action":       `{"host":"r.example.com","repository":"a","tag":"1"}`,
		"push of nothing": `{"action":"push","host":"r.example.com","repository":"a"}`,
		"no host":         `{"action":"push","repository":"a/b","tag":"1"}`,
		"a path's part":   `{"action":"push","host":"team","repository":"app","tag":"1"}`,
		"bad tag":         `{"action":"push","host":"r.example.com","repository":"a","tag":"a/b"}`,
		"bad digest":      `{"action":"push","host":"r.example.com","repository":"a","digest":"sha256:ab"}`,
		"a notification":  `{"action":"tell","host":"notify:ci","repository":"a","payload":"{}"}`,
		"climbing":        `{"action":"push","host":"r.example.com","repository":"../a","tag":"1"}`,
	} {
		if h, err := push.Decode([]byte(s)); err == nil {
			t.Errorf("%s: %s was read as %+v", name, s, h)
		}
	}
}

// A spool may hold jobs of a time when Docker Hub was index.docker.io.
func TestStoredEventsAreMigrated(t *testing.T) {
	got, err := push.Decode([]byte(`{"action":"push","host":"index.docker.io","repository":"library/busybox","tag":"1"}`))
	if err != nil || got.Key() != "docker.io/library/busybox:1" {
		t.Errorf("%+v is %s, %v", got, got.Key(), err)
	}
}

// Who pushed is a line of text that is fit to be read, however it was stored.
func TestAttackStoredActor(t *testing.T) {
	got, err := push.Decode([]byte(`{"action":"push","host":"r.example.com","repository":"a","tag":"1","actor":"\u001b[31m\n` + strings.Repeat("a", 1000) + `"}`))
	if err != nil || len(got.Actor) > push.MaxActor || !strings.HasPrefix(got.Actor, "\ufffd[31m aaa") {
		t.Errorf("%q, %v", got.Actor, err)
	}
}

// A trace that is none does not keep a job from being done.
func TestStoredTraceIsOne(t *testing.T) {
	got, err := push.Decode([]byte(`{"action":"push","host":"r.example.com","repository":"a","tag":"1","trace":"00-x\n"}`))
	if err != nil || got.Trace != "" {
		t.Errorf("%+v, %v", got, err)
	}
}

// FuzzDecode says that what is read is written back the same, and names what
// an import takes.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"action":"push","host":"r.example.com","repository":"team/app","tag":"1.0","digest":"sha256:` + strings.Repeat("ab", 32) + `"}`))
	f.Add([]byte(`{"action":"push","host":"r.example.com","repository":"a","tag":"1","actor":"\u202e ann` + strings.Repeat("a", 200) + `"}`))
	f.Add([]byte(`{"action":"push","host":"r.example.com","repository":"a","tag":"1","trace":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`))
	f.Add([]byte(`{"action":"delete","host":"index.docker.io","repository":"library/busybox"}`))
	f.Add([]byte(`{"action":"push","host":"r.example.com:5000","repository":"..","tag":":"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := push.Decode(b)
		if err != nil {
			return
		}
		var again push.Event
		if err := json.Unmarshal(h.Encode(), &again); err != nil || again != h {
			t.Fatalf("%+v is written as %s", h, h.Encode())
		}
		if _, err := reference.Parse(h.Key()); err != nil {
			t.Errorf("key %q: %v", h.Key(), err)
		}
	})
}

// FuzzSource: the text of a Source is that Source again, and the Source of a text has that text,
// whatever has stored it.
func FuzzSource(f *testing.F) {
	for _, text := range []string{"hub", "cluster/prod", "notify/ci", "image/streams", "image/registry", "image/asked", "image/later", "cluster/", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s := push.ParseSource(text)
		if s.String() != text || push.ParseSource(s.String()) != s {
			t.Errorf("%q is %+v, whose text is %q", text, s, s)
		}
	})
}

// Each kind has a text of its own, which queues of all releases have stored.
func TestSourceOfAText(t *testing.T) {
	for text, want := range map[string]push.Source{
		"hub": {Kind: push.Webhook, Name: "hub"}, "cluster/prod": {Kind: push.Cluster, Name: "prod"},
		"image/streams": {Kind: push.Streams}, "image/registry": {Kind: push.Registry}, "image/asked": {Kind: push.People},
	} {
		var j push.Job
		if err := json.Unmarshal([]byte(`{"receiver":"`+text+`"}`), &j); err != nil || j.Source != want {
			t.Errorf("%s is %+v, %v; want %+v", text, j.Source, err, want)
		}
	}
}

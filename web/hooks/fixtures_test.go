package hooks_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/web/hooks"
)

// The log says that a payload has another type, and the receiver's name, even if one of its events
// cannot be read.
func TestPayloadOfAnotherTypeIsNamed(t *testing.T) {
	named := 0
	for name, f := range fixtures(t)["distribution"] {
		if len(f.Jobs) == 0 {
			continue
		}
		named++
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			dir := t.TempDir()
			h, err := hooks.New(hooks.Options{
				Receivers: []hooks.Receiver{newReceiver(t, dir, "harbor", f.Hosts...)},
				Dir:       dir,
				Spool:     &memorySpool{},
				Logger:    slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn})),
			})
			if err != nil {
				t.Fatal(err)
			}
			if _, got := serve(t, h, newRequest(t, "harbor", testSecret, f.Body)); got.Message != "not understood by a receiver of type harbor" {
				t.Errorf("it is answered %+v", got)
			}
			if _, got := serve(t, h, newRequest(t, "harbor", testSecret, []byte(`{"events":[]}`))); got.Message != "nothing of interest to a receiver of type harbor" {
				t.Errorf("a test of another type is answered %+v", got)
			}
			for _, want := range []string{"receiver=harbor", "this is a payload of type distribution, but the receiver has type harbor"} {
				if !strings.Contains(log.String(), want) {
					t.Errorf("the log has %q, want %q in it", log.String(), want)
				}
			}
		})
	}
	if named == 0 {
		t.Error("no payload of distribution")
	}
}

// TestPayloads delivers every vendor's documented payloads, including misleading ones, and compares
// the events in the spool.
func TestPayloads(t *testing.T) {
	for typ, byName := range fixtures(t) {
		pushes := 0
		for name, f := range byName {
			t.Run(typ+"/"+name, func(t *testing.T) {
				dir, spool := t.TempDir(), &memorySpool{}
				r := newReceiver(t, dir, typ, f.Hosts...)
				r.Repositories = f.Repositories
				h := newHandler(t, dir, spool, r)

				req := newRequest(t, typ, testSecret, f.Body)
				for k, v := range f.Header {
					req.Header.Set(k, v)
				}
				status, got := serve(t, h, req)

				want := make([]push.Event, 0, len(f.Jobs))
				for _, j := range f.Jobs {
					e := j.Event
					// BODY stands for an ID derived from the body.
					sum := sha256.Sum256(f.Body)
					e.Source, e.MediaType = push.OfWebhook(typ), j.MediaType
					e.ID = strings.Replace(j.ID, "BODY", hex.EncodeToString(sum[:16]), 1)
					want = append(want, e)
				}
				if diff := cmp.Diff(want, spool.take(), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				wantStatus := http.StatusAccepted
				if len(want) == 0 {
					wantStatus = http.StatusOK
				}
				if status != wantStatus || got.Queued != len(want) {
					t.Errorf("status %d, queued %d; want %d, %d", status, got.Queued, wantStatus, len(want))
				}
				if (got.Why != "") != (len(f.Refused) > 0) || !strings.Contains(got.Why, f.Why) {
					t.Errorf("refused %v, and the answer says why: %q", got.Refused, got.Why)
				}
				if diff := cmp.Diff(f.Refused, got.Refused, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("refused (-want +got):\n%s", diff)
				}
			})
			if len(f.Jobs) > 0 {
				pushes++
			}
		}
		if pushes == 0 {
			t.Errorf("no payload of type %s reaches the spool", typ)
		}
	}
}

// The answer and the access log have the reason for every refused event.
func TestRefusedSaysWhy(t *testing.T) {
	event := func(repository, host, rest string) string {
		return `{"events":[{"action":"push","target":{"repository":"` + repository + `"` + rest + `},"request":{"host":"` + host + `"}}]}`
	}
	for want, body := range map[string]string{
		"neither a push nor a deletion":                      `{"events":[{"action":"pull","target":{"repository":"team/app","tag":"v1"},"request":{"host":"r.example.com"}}]}`,
		"the registry backend:5000,":                         event("team/app", "backend:5000", `,"tag":"v1"`),
		"which of the receiver's hosts":                      event("team/app", "", `,"tag":"v1"`),
		"the repository other/app,":                          event("other/app", "r.example.com", `,"tag":"v1"`),
		"without a tag or a digest":                          event("team/app", "r.example.com", ""),
		"media type application/x-layer,":                    event("team/app", "r.example.com", `,"mediaType":"application/x-layer"`),
		"not a payload of type distribution":                 `{"events":7}`,
		"a payload of type generic, but the receiver":        `{"references":["r.example.com/team/app:v1"]}`,
		"the registry \ufffd[31m " + strings.Repeat("x", 50): event("team/app", `\u001b[31m\n`+strings.Repeat("x", 5000), `,"tag":"v1"`),
	} {
		t.Run(want[:20], func(t *testing.T) {
			var log bytes.Buffer
			dir := t.TempDir()
			r := newReceiver(t, dir, "distribution", "r.example.com", "s.example.com")
			r.Repositories = []string{"team/**"}
			h, err := hooks.New(hooks.Options{Receivers: []hooks.Receiver{r}, Dir: dir, Spool: &memorySpool{}, Logger: slog.New(slog.NewJSONHandler(&log, nil))})
			if err != nil {
				t.Fatal(err)
			}
			status, got := serve(t, h, newRequest(t, "distribution", testSecret, []byte(body)))
			if status != http.StatusOK || !strings.Contains(got.Why, want) || len(got.Why) > 300 {
				t.Errorf("status %d, why %q; want %q in it", status, got.Why, want)
			}
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			var access struct{ Why string }
			if err := json.Unmarshal([]byte(lines[len(lines)-1]), &access); err != nil || access.Why != got.Why {
				t.Errorf("the access log has why %q (%v), the answer %q", access.Why, err, got.Why)
			}
		})
	}
}

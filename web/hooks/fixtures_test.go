package hooks_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tidewaiter/tidewaiter/importer/push"
	"github.com/tidewaiter/tidewaiter/web/hooks"
)

// A payload of another type is called that in the log, with the receiver's name, also if one of
// its events cannot be read.
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
			serve(t, h, newRequest(t, "harbor", testSecret, f.Body))
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

// TestPayloads delivers every vendor's documented payloads, the traps among
// them, and compares what reaches the spool.
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
					// BODY stands for an ID made of the body.
					sum := sha256.Sum256(f.Body)
					e.Receiver, e.MediaType = typ, j.MediaType
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

package hooks_test

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/push"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/web/hooks"
)

// FuzzDelivery sends authenticated bodies and headers of every type. For any input, the answer is
// one of the contract's and never a 5xx, and every event in the spool has an allowed host and a
// valid reference.
func FuzzDelivery(f *testing.F) {
	dir, spool := f.TempDir(), &memorySpool{}
	types := hooks.Types()
	allowed := []string{"r.example.com", "docker.io", "ghcr.io", "quay.io", "harbor.dev", "gcr.io", "123456789012.dkr-ecr.eu-central-1.on.aws", "123456789012.dkr.ecr-fips.us-east-1.amazonaws.com"}
	var receivers []hooks.Receiver
	for _, typ := range types {
		hosts := allowed
		if typ == "zot" {
			hosts = allowed[:1]
		}
		receivers = append(receivers, newReceiver(f, dir, typ, hosts...))
	}
	h := newHandler(f, dir, spool, receivers...)
	seeds := 0
	for typ, byName := range fixtures(f) {
		for _, fx := range byName {
			key, value := "X-GitHub-Event", "package"
			for k, v := range fx.Header {
				if k == "Ce-Type" || k == "X-GitHub-Event" || k == "X-Gitea-Event" {
					key, value = k, v
				}
			}
			f.Add(uint8(slices.Index(types, typ)), key, value, []byte(fx.Body))
			seeds++
		}
	}
	if seeds == 0 {
		f.Fatal("no seeds")
	}
	f.Fuzz(func(t *testing.T, typ uint8, key, value string, body []byte) {
		r := newRequest(t, types[int(typ)%len(types)], testSecret, body)
		if key != "Authorization" && r.Header.Get(key) == "" {
			r.Header.Set(key, value)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		jobs := spool.take()
		switch w.Code {
		case 202:
			if len(jobs) == 0 {
				t.Error("202 with nothing in the spool")
			}
		case 200, 400, 413:
			if len(jobs) > 0 {
				t.Errorf("%d with %d jobs in the spool", w.Code, len(jobs))
			}
			if w.Code == 200 && !strings.Contains(w.Body.String(), `"why":"`) {
				t.Errorf("200 without a reason: %s", w.Body)
			}
		default:
			t.Errorf("status %d: %s", w.Code, w.Body)
		}
		for _, j := range jobs {
			if !slices.Contains(allowed, j.Host) {
				t.Errorf("job for host %q", j.Host)
			}
			if strings.Contains(j.Repository, "..") || strings.ToLower(j.Repository) != j.Repository {
				t.Errorf("job for repository %q", j.Repository)
			}
			if j.Action == push.Pushed && j.Tag == "" && j.Digest == "" {
				t.Errorf("push of nothing: %+v", j)
			}
			if j.Tag != "" || j.Digest != "" {
				ref, err := reference.Parse(j.Key())
				if err != nil {
					t.Fatalf("job %+v: %v", j, err)
				}
				if ref.Host != j.Host || ref.Repository != j.Repository {
					t.Errorf("job %+v is of %s", j, ref)
				}
			}
		}
	})
}

// FuzzAuthentication sends anything without the secret: no header, token or body gets an event into
// the spool.
func FuzzAuthentication(f *testing.F) {
	dir, spool := f.TempDir(), &memorySpool{}
	types := hooks.Types()
	var receivers []hooks.Receiver
	for _, typ := range types {
		receivers = append(receivers, newReceiver(f, dir, typ, "r.example.com"))
	}
	h := newHandler(f, dir, spool, receivers...)
	f.Add(uint8(0), "Authorization", "Bearer x", []byte(`{}`))
	f.Add(uint8(1), "Authorization", "Basic Og==", []byte(`{}`))
	f.Add(uint8(4), "Authorization", "Bearer eyJhbGciOiJub25lIn0.e30.", []byte(`{}`))
	f.Add(uint8(6), "X-Gitea-Signature", "", []byte(``))
	f.Add(uint8(7), "X-Hub-Signature-256", "sha256=", []byte(`{}`))
	f.Fuzz(func(t *testing.T, typ uint8, key, value string, body []byte) {
		r := newRequest(t, types[int(typ)%len(types)], "", body)
		r.Header = map[string][]string{}
		r.Header.Set(key, value)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		// With an empty token, the path is a different one, which does not exist.
		if w.Code != 401 && w.Code != 404 || len(spool.take()) > 0 {
			t.Errorf("status %d for a stranger", w.Code)
		}
	})
}

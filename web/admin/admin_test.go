package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/web/admin"
)

// memorySpool is a spool of IDs; negative ones are dead.
type memorySpool struct{ ids []int64 }

func (s *memorySpool) List(_ context.Context, state job.State, after int64, limit int) (jobs []*job.Shown, err error) {
	for _, id := range s.ids {
		if id > after && len(jobs) < limit && state != job.Leased {
			jobs = append(jobs, &job.Shown{ID: id, State: job.Waiting})
		}
	}
	return jobs, nil
}

func (s *memorySpool) Retry(_ context.Context, id int64) error {
	if !slices.Contains(s.ids, id) {
		return job.ErrNoSuchJob
	}
	return nil
}

func (s *memorySpool) Drop(ctx context.Context, id int64) error {
	err := s.Retry(ctx, id)
	s.ids = slices.DeleteFunc(s.ids, func(have int64) bool { return have == id })
	return err
}

func (s *memorySpool) RetryDead(context.Context) (int64, error) {
	return 0, errors.New("the disk is full")
}
func (s *memorySpool) DropDead(context.Context) (int64, error) { return 7, nil }

func ask(h http.Handler, method, target string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w.Code, w.Body.String()
}

func TestSpool(t *testing.T) {
	h := admin.Spool(&memorySpool{ids: []int64{3, 5, 8}})
	for _, tt := range []struct {
		method, query string
		code          int
		want          string
	}{
		{"GET", "", 200, `"id":3,`},
		{"GET", "?id=5&state=waiting", 200, `{"jobs":[{"id":8,`},
		{"GET", "?state=leased", 200, `{"changed":0}`},
		{"GET", "?state=lost", 400, `there is no state "lost"`},
		{"GET", "?id=five", 400, `"five" is not a job ID`},
		{"POST", "?do=retry&id=5", 200, `"changed":1`},
		{"POST", "?do=retry&id=6", 404, "no such job"},
		{"POST", "?do=retry", 503, "the disk is full"},
		{"POST", "?do=drop&id=5", 200, `"changed":1`},
		{"POST", "?do=drop&id=5", 404, "no such job"},
		{"POST", "?do=drop", 200, `"changed":7`},
		{"POST", "?do=eat", 400, "must be retry or drop"},
		{"DELETE", "?id=3", 400, "method DELETE"},
	} {
		if code, body := ask(h, tt.method, admin.SpoolPath+tt.query); code != tt.code || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s: %d %q, want %d and %q", tt.method, tt.query, code, body, tt.code, tt.want)
		}
	}
}

type sweeps struct{ n int64 }

func (s *sweeps) Progress() map[string]int64 { return map[string]int64{"sweep": s.n, "examined": 12} }
func (s *sweeps) Trigger() int64             { s.n++; return s.n }

func TestVerification(t *testing.T) {
	h := admin.Verification(&sweeps{n: 2})
	if code, body := ask(h, "POST", admin.VerificationPath); code != 200 || body != "{\"sweep\":3}\n" {
		t.Errorf("POST: %d %q", code, body)
	}
	if code, body := ask(h, "GET", admin.VerificationPath); code != 200 || body != "{\"examined\":12,\"sweep\":3}\n" {
		t.Errorf("GET: %d %q", code, body)
	}
	if code, _ := ask(h, "PUT", admin.VerificationPath); code != http.StatusMethodNotAllowed {
		t.Errorf("PUT: %d", code)
	}
}

func TestUser(t *testing.T) {
	h := admin.User()
	if code, _ := ask(h, "GET", admin.UserPath); code != http.StatusUnauthorized {
		t.Errorf("nobody: %d", code)
	}
	if code, _ := ask(h, "POST", admin.UserPath); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", admin.UserPath, nil)
	h.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "wharfinger", Groups: []string{"harbour"}})))
	var u struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Groups           []string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &u); err != nil {
		t.Fatal(err)
	}
	if u.Kind != "User" || u.APIVersion != "user.openshift.io/v1" || u.Metadata.Name != "wharfinger" || !slices.Equal(u.Groups, []string{"harbour"}) {
		t.Errorf("%s", w.Body)
	}
}

func TestGet(t *testing.T) {
	h := admin.Get(func(query url.Values) (map[string]int, error) {
		if query.Has("odd") {
			return nil, errors.New("odd is even")
		}
		return map[string]int{"images": 3}, nil
	})
	if code, body := ask(h, "GET", admin.SummaryPath); code != 200 || body != "{\"images\":3}\n" {
		t.Errorf("GET: %d %q", code, body)
	}
	if code, body := ask(h, "GET", admin.SummaryPath+"?odd"); code != http.StatusBadRequest || body != "odd is even\n" {
		t.Errorf("a wrong query: %d %q", code, body)
	}
	if code, _ := ask(h, "POST", admin.SummaryPath); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
}

func TestImports(t *testing.T) {
	h := admin.Imports(func(_ context.Context, reference, by string) (string, error) {
		switch reference {
		case "bad":
			return "", apierrors.NewBadRequest("it is bad")
		case "full":
			return "", errors.New("the disk is full")
		}
		return reference + " by " + by, nil
	})
	for _, tt := range []struct {
		method, query string
		code          int
		want          string
	}{
		{"POST", "?reference=r.io/a:1", 202, `{"reference":"r.io/a:1 by "}`}, {"POST", "?reference=bad", 400, `"message":"it is bad","reason":"BadRequest"`}, {"POST", "?reference=full", 503, "the disk is full"}, {"GET", "", 405, "POST asks"},
	} {
		if code, body := ask(h, tt.method, admin.ImportsPath+tt.query); code != tt.code || !strings.Contains(body, tt.want) {
			t.Errorf("%s %s: %d %q, want %d and %q", tt.method, tt.query, code, body, tt.code, tt.want)
		}
	}
}

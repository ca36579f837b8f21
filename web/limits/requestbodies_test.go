package limits

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func bodyOptions(bound BodyBound) BodyOptions {
	return BodyOptions{
		Bound:      func(*request.RequestInfo) BodyBound { return bound },
		Serializer: serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion(),
		Refused:    NewRefused(nil),
	}
}

// sent sends a body as a user, and returns the answer.
func sent(ctx context.Context, h http.Handler, name, remote string, body io.Reader) *httptest.ResponseRecorder {
	ctx = request.WithUser(request.WithRequestInfo(ctx, &request.RequestInfo{Verb: "create"}), &user.DefaultInfo{Name: name})
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", body)
	r.RemoteAddr = remote
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestAttackBodiesThatAreHeavy: a body whose decoding costs much is refused or waits for its turn.
// It delays no light body.
func TestAttackBodiesThatAreHeavy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		heavy := `[` + strings.Repeat("{},", 99) + `{}]`
		decoded := 0
		h := WithBodyLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			if string(text) == heavy {
				decoded++
				<-release
			}
		}), bodyOptions(BodyBound{Bytes: 1 << 20, Values: 1000, Value: lightBody / 100})).(*bodyLimits)
		h.o.Turns.class.max = 1
		answers := make(chan int, 3)
		for _, name := range []string{"mallory", "mallory", "eve"} {
			go func() { answers <- sent(t.Context(), h, name, "192.0.2.1:1", strings.NewReader(heavy)).Code }()
		}
		synctest.Wait()
		if decoded != 1 {
			t.Errorf("%d heavy bodies are decoded at a time, want 1", decoded)
		}
		if w := sent(t.Context(), h, "honest", "192.0.2.2:1", strings.NewReader(`{"a":"b"}`)); w.Code != http.StatusOK {
			t.Errorf("a light body: %d", w.Code)
		}
		if w := sent(t.Context(), h, "mallory", "192.0.2.1:1", strings.NewReader(`[`+strings.Repeat("{},", 600)+`{}]`)); w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), "at most 1000 fields") {
			t.Errorf("a body of too many values: %d, %s", w.Code, w.Body)
		}
		if w := sent(t.Context(), h, "mallory", "192.0.2.1:1", strings.NewReader(strings.Repeat(" ", 1<<20+1))); w.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("a body of too many bytes: %d", w.Code)
		}
		go func() { answers <- sent(t.Context(), h, "the server", "pipe", strings.NewReader(heavy)).Code }()
		synctest.Wait()
		if decoded != 2 {
			t.Error("the server's own request waits for a turn: a request with the turn may wait for it")
		}
		// After some time, two of those that wait get 429.
		for range 2 {
			if code := <-answers; code != http.StatusTooManyRequests {
				t.Errorf("a waiting body: %d", code)
			}
		}
		close(release)
		for range 2 {
			if code := <-answers; code != http.StatusOK {
				t.Errorf("a decoded body: %d", code)
			}
		}
		if n, bytes := h.held.Held(); n != 0 || bytes != 0 {
			t.Errorf("%d bodies of %d bytes are held", n, bytes)
		}
	})
}

// TestAttackBodiesThatFillTheRoom: a user whose unfinished or waiting bodies fill the room loses
// them to other users.
func TestAttackBodiesThatFillTheRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := WithBodyLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), bodyOptions(BodyBound{Bytes: 1 << 20, Values: 1000})).(*bodyLimits)
		h.held.maxBytes = 2 << 20
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		var slow []*io.PipeWriter
		answers := make(chan int, 8)
		for range 8 {
			r, w := io.Pipe()
			slow = append(slow, w)
			go func() { answers <- sent(ctx, h, "mallory", "192.0.2.1:1", r).Code }()
			go func() { _, _ = w.Write([]byte(strings.Repeat(" ", 200<<10))) }()
		}
		time.Sleep(8 * 2 * stalled) // each in turn stalls and gives up its place
		if w := sent(t.Context(), h, "honest", "192.0.2.2:1", strings.NewReader(`"`+strings.Repeat("a", 900<<10)+`"`)); w.Code != http.StatusOK {
			t.Errorf("an honest body: %d, %s", w.Code, w.Body)
		}
		for _, w := range slow {
			w.Close()
		}
		lost := 0
		for range slow {
			if <-answers == http.StatusTooManyRequests {
				lost++
			}
		}
		if lost < 4 || lost == len(slow) {
			t.Errorf("%d of %d slow bodies lost their place", lost, len(slow))
		}
	})
}

package limits

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counting counts how much of a body was read.
type counting struct {
	io.Reader
	read atomic.Int64
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// TestAttackHeavyBodiesOfOneUserRest: a user's heavy bodies are read one at a time, with a rest
// after each. Light bodies and those of other users do not wait.
func TestAttackHeavyBodiesOfOneUserRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const took = 200 * time.Millisecond
		body := strings.Repeat(" ", 1<<20)
		start := time.Now()
		status := http.StatusOK
		h := WithBodyLimits(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer w.WriteHeader(status)
			if n, _ := io.Copy(io.Discard, r.Body); n > lightRead {
				time.Sleep(took)
			}
		}), bodyOptions(BodyBound{Bytes: 1 << 20, Values: 1000})).(*bodyLimits)
		h.o.Turns.class.max = 2 // so that another user need not wait for this one's decoding
		var bodies [2]counting
		answers := make(chan string, len(bodies))
		for i := range bodies {
			bodies[i].Reader = strings.NewReader(body)
			go func() { answers <- fmt.Sprint(i, sent(t.Context(), h, "mallory", "192.0.2.1:1", &bodies[i]).Code) }()
			synctest.Wait()
		}
		if read := bodies[1].read.Load(); read > lightRead {
			t.Errorf("%d bytes are read of a body that waits for another", read)
		}
		if n, bytes := h.held.Held(); n != 2 || bytes > len(body)+1+lightRead {
			t.Errorf("%d bodies hold %d bytes", n, bytes)
		}
		for name, text := range map[string]string{"mallory": "[]", "honest": body} {
			before := time.Now()
			if w := sent(t.Context(), h, name, "192.0.2.2:1", strings.NewReader(text)); w.Code != http.StatusOK || time.Since(before) > took {
				t.Errorf("%s waited %s: %d", name, time.Since(before), w.Code)
			}
		}
		for range bodies {
			if answer := <-answers; !strings.HasSuffix(answer, "200") {
				t.Error("one of the bodies:", answer)
			}
		}
		if all, least := time.Since(start), 2*took+rest*took; all < least || all > least+took {
			t.Errorf("two bodies of one user took %s, want %s and a little", all, least)
		}
		time.Sleep(longestRest) // until the last rest has ended
		// The rest is longer after a refused body.
		status = http.StatusUnprocessableEntity
		for range 2 {
			start = time.Now()
			if w := sent(t.Context(), h, "mallory", "192.0.2.1:1", strings.NewReader(body)); w.Code != status {
				t.Error("a body that is refused:", w.Code)
			}
		}
		if all := time.Since(start); all < longestRest {
			t.Errorf("after a body that was refused its user rested %s, want %s", all-took, longestRest)
		}
		time.Sleep(longestRest + time.Second)
		h.places.mu.Lock() // the timer that ended the last rest held it
		defer h.places.mu.Unlock()
		if len(h.places.shares)+len(h.places.users)+h.places.running != 0 {
			t.Errorf("the places are not free: %d shares, %d users, %d running", len(h.places.shares), len(h.places.users), h.places.running)
		}
	})
}

// TestAttackRefusedBodiesOfOneUserRest: a user whose bodies exceed their bound gets slow answers,
// because each costs the server a connection. Other users do not wait.
func TestAttackRefusedBodiesOfOneUserRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := WithBodyLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), bodyOptions(BodyBound{Bytes: 1 << 10, Values: 100})).(*bodyLimits)
		const bodies = 40
		start := time.Now()
		answers := make(chan int, bodies)
		for i := range bodies {
			body := strings.Repeat(" ", 1<<10+1)
			if i%2 == 0 {
				body = "[" + strings.Repeat("0,", 101) + "0]"
			}
			go func() { answers <- sent(t.Context(), h, "mallory", "192.0.2.1:1", strings.NewReader(body)).Code }()
		}
		synctest.Wait()
		if w := sent(t.Context(), h, "honest", "192.0.2.2:1", strings.NewReader("[]")); w.Code != http.StatusOK || time.Since(start) > 0 {
			t.Errorf("another user waited %s: %d", time.Since(start), w.Code)
		}
		if _, bytes := h.held.Held(); bytes > 0 {
			t.Errorf("bodies whose answers wait hold %d bytes", bytes)
		}
		for range bodies {
			if code := <-answers; code != http.StatusRequestEntityTooLarge {
				t.Error("a body over its bound:", code)
			}
		}
		if all, want := time.Since(start), (bodies-1)*restOfRefused*ofRefusal; all < want {
			t.Errorf("%d bodies of one user were refused in %s, want %s", bodies, all, want)
		}
		time.Sleep(longestRest)
	})
}

// TestSenderThatStallsGivesUpItsPlace: a sender that stalls gives up its user's place, and gets it
// back when it continues.
func TestSenderThatStallsGivesUpItsPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := WithBodyLimits(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), bodyOptions(BodyBound{Bytes: 1 << 20, Values: 1000})).(*bodyLimits)
		body := strings.Repeat(" ", 1<<20)
		r, w := io.Pipe()
		answer := make(chan int)
		go func() { answer <- sent(t.Context(), h, "carol", "192.0.2.1:1", r).Code }()
		_, _ = io.WriteString(w, body[:lightRead+1])
		before := time.Now()
		if w := sent(t.Context(), h, "carol", "192.0.2.1:1", strings.NewReader(body)); w.Code != http.StatusOK || time.Since(before) > 2*stalled {
			t.Errorf("a body that waits for a stalled one: %d after %s", w.Code, time.Since(before))
		}
		_, _ = io.WriteString(w, body[lightRead+1:])
		w.Close()
		if code := <-answer; code != http.StatusOK {
			t.Errorf("the body that arrived at last: %d", code)
		}
	})
}

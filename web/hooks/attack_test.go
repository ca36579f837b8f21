package hooks_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/web/hooks"
)

// patience is how long a test waits for a result that must come.
const patience = 8 * time.Minute

// eventually calls ok repeatedly until it returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in %s: %s", patience, what)
		}
	}
}

// attacked is a server with receivers for each kind of proof, and with a deadline for
// bodies that never comes.
func attacked(t *testing.T, h2 bool) (*httptest.Server, *hooks.Handler, *memorySpool) {
	dir, spool := t.TempDir(), &memorySpool{}
	h := newHandler(t, dir, spool, newReceiver(t, dir, "github", "ghcr.io"), newReceiver(t, dir, "generic", "r.example.com"))
	h.SetBodyTimeout(time.Hour)
	s := httptest.NewUnstartedServer(h)
	if h2 {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s, h, spool
}

// deliver sends an honest delivery of a type and returns the status.
func deliver(t *testing.T, s *httptest.Server, client *http.Client, typ string, body []byte) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/hooks/"+typ, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = newRequest(t, typ, testSecret, body).Header
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

// newClient makes a client of s that shares no connection with another.
func newClient(t *testing.T, s *httptest.Server) *http.Client {
	transport := s.Client().Transport.(*http.Transport).Clone()
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// unsent is the head of a delivery whose body is announced and does not come.
func unsent(typ, header string, size int) string {
	return fmt.Sprintf("POST /hooks/%s HTTP/1.1\r\nHost: x\r\n%s\r\nContent-Length: %d\r\n\r\n", typ, header, size)
}

const forged = "X-Hub-Signature-256: sha256=00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

// Senders announce bodies and do not send them. In an earlier release, 64 of them delayed every
// receiver until their timeout, and with 128, half of the honest deliveries were refused.
func TestIdleSendersHoldUpNobody(t *testing.T) {
	t.Parallel()
	s, h, spool := attacked(t, false)
	ping := fixtures(t)["github"]["package-updated-container"].Body
	const idle = 200
	var conns []net.Conn
	for range idle {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, unsent("github", forged, 1000)); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	eventually(t, "the idle senders are being waited for", func() bool { n, _ := h.Held("github"); return n == idle })
	for range 20 {
		if got := deliver(t, s, s.Client(), "github", ping); got != 200 {
			t.Errorf("honest delivery to the receiver under attack: status %d, want 200", got)
		}
		if got := deliver(t, s, s.Client(), "generic", pushOf("r.example.com/app:1")); got != 202 {
			t.Errorf("honest delivery to another receiver: status %d, want 202", got)
		}
	}
	if got := len(spool.take()); got != 20 {
		t.Errorf("%d jobs, want 20", got)
	}
	if n, _ := h.Held("github"); n != idle {
		t.Errorf("%d idle senders are left; the honest deliveries needed no place of theirs", n)
	}
	for _, conn := range conns {
		conn.Close()
	}
	eventually(t, "the places of senders that left are free", func() bool { n, bytes := h.Held("github"); return n == 0 && bytes == 0 })
}

// There are more senders than places. Each sends a part of a large body and stops. Memory stays
// bounded, and a sender that sends its complete body is served.
func TestStalledSendersAreBoundedAndHoldUpNobody(t *testing.T) {
	t.Parallel()
	s, h, _ := attacked(t, true)
	ping := fixtures(t)["github"]["package-updated-container"].Body
	// Each client has one connection, warm, and fewer streams than the server allows on one. A client
	// with more streams would share them out among connections. It may make a request wait for a
	// stream of a full connection while another has room, and these streams do not end.
	const streams = 200
	stall := func(n, size int) {
		var client *http.Client
		for i := range n {
			if i%streams == 0 {
				client = newClient(t, s)
				if got := deliver(t, s, client, "github", ping); got != 200 {
					t.Fatalf("honest delivery over a new connection: status %d, want 200", got)
				}
			}
			part, rest := io.Pipe()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/hooks/github", io.MultiReader(bytes.NewReader(make([]byte, size)), part))
			if err != nil {
				t.Fatal(err)
			}
			name, value, _ := strings.Cut(forged, ": ")
			r.Header.Set(name, value)
			go func(client *http.Client) {
				defer rest.Close()
				if resp, err := client.Do(r); err == nil {
					resp.Body.Close()
				}
			}(client)
		}
	}
	check := func(when string) {
		t.Helper()
		for range 5 {
			if got := deliver(t, s, s.Client(), "github", ping); got != 200 {
				t.Errorf("%s: honest delivery: status %d, want 200", when, got)
			}
		}
		if n, size := h.Held("github"); n > hooks.MaxBodies || size > hooks.MaxHeldBytes {
			t.Errorf("%s: %d bodies of %d bytes are held", when, n, size)
		}
	}
	stall(hooks.MaxBodies+100, 1)
	eventually(t, "every place is taken", func() bool { n, _ := h.Held("github"); return n == hooks.MaxBodies })
	check("every place taken")
	stall(100, 600<<10)
	eventually(t, "every byte is taken", func() bool { _, size := h.Held("github"); return size > hooks.MaxHeldBytes-(1<<20)-2 })
	check("every byte taken")
}

// A body that does not arrive in time ends the delivery.
func TestBodyThatDoesNotArrive(t *testing.T) {
	t.Parallel()
	s, h, _ := attacked(t, false)
	h.SetBodyTimeout(10 * time.Millisecond)
	for name, test := range map[string]struct {
		head string
		want int
	}{
		"from one who knows the secret":   {unsent("generic", "Authorization: Bearer "+testSecret, 10), 408},
		"from one who may be anybody":     {unsent("github", forged, 10), 401},
		"from one who has not the secret": {unsent("generic", "Authorization: Bearer x", 10), 401},
		"to nobody":                       {unsent("nobody", forged, 10), 401},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, test.head); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != test.want {
				t.Errorf("status %d, want %d", resp.StatusCode, test.want)
			}
		})
	}
}

// A caller who does not know a receiver's secret gets the same answer whether the
// receiver exists or not.
func TestReceiversCannotBeFoundOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h := newHandler(t, dir, &memorySpool{}, oneOfEach(t, dir)...)
	name, value, _ := strings.Cut(forged, ": ")
	answer := func(path string, header http.Header, body []byte) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/hooks/"+path, bytes.NewReader(body))
		r.Header = header
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for attempt, header := range map[string]http.Header{
		"nothing": {}, "a wrong secret": {"Authorization": {"Bearer almost-" + testSecret}}, "a wrong password": {"Authorization": {"Basic Og=="}},
		"a forged signature": {name: {value}}, "a forged token": {"Authorization": {"Bearer eyJhbGciOiJub25lIn0.e30."}},
	} {
		for _, end := range []string{"", "/almost-" + testSecret} {
			for size, body := range map[string][]byte{"small": []byte(`{}`), "no JSON": []byte(`x`), "large": make([]byte, 2<<20)} {
				want := answer("nobody"+end, header, body)
				for _, typ := range hooks.Types() {
					got := answer(typ+end, header, body)
					if got.Code != want.Code || got.Body.String() != want.Body.String() || !reflect.DeepEqual(got.Header(), want.Header()) {
						t.Errorf("%s%s with %s and a %s body: %d %v %s; where nobody is: %d %v %s", typ, end, attempt, size,
							got.Code, got.Header(), got.Body, want.Code, want.Header(), want.Body)
					}
				}
			}
		}
	}
}

// Nor does the time of the answer reveal receivers. A request with a signature in any vendor's
// header is answered after its body has arrived, other requests before.
func TestReceiversCannotBeFoundOutByWaiting(t *testing.T) {
	t.Parallel()
	for _, header := range []string{"X-Hub-Signature-256", "X-Gitea-Signature", "X-JFrog-Event-Auth", "X-Nothing"} {
		t.Run(header, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			h := newHandler(t, dir, &memorySpool{}, oneOfEach(t, dir)...)
			h.SetBodyTimeout(time.Hour)
			s := httptest.NewServer(h)
			t.Cleanup(s.Close)
			_, signature, _ := strings.Cut(forged, ": ")
			for _, name := range append(hooks.Types(), "nobody") {
				conn, err := net.Dial("tcp", s.Listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
					t.Fatal(err)
				}
				if _, err := io.WriteString(conn, unsent(name, header+": "+signature, 2)); err != nil {
					t.Fatal(err)
				}
				if header != "X-Nothing" {
					eventually(t, name+" waits for the body", func() bool { n, _ := h.Held(name); return n == 1 })
					if _, err := io.WriteString(conn, "{}"); err != nil {
						t.Fatal(err)
					}
				}
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				resp.Body.Close()
				if resp.StatusCode != 401 {
					t.Errorf("%s: status %d", name, resp.StatusCode)
				}
				eventually(t, name+" holds nothing", func() bool { n, _ := h.Held(name); return n == 0 })
			}
		})
	}
}

// A body has the same meaning for every parser: a key in another spelling is another key, and a
// duplicate key makes the body invalid. Unsigned headers do not turn a signed body into another
// event.
func TestAttackBodyReadInTwoWays(t *testing.T) {
	good := `"references":["r.example.com/team/app:1"]`
	for name, tc := range map[string]struct {
		body   string
		queued int
	}{
		"honest":                       {`{` + good + `}`, 1},
		"another spelling after it":    {`{` + good + `,"References":["r.example.com/team/evil:1"]}`, 1},
		"another spelling alone":       {`{"References":["r.example.com/team/evil:1"]}`, 0},
		"with a letter that folds":     {`{"reference\u017f":["r.example.com/team/evil:1"]}`, 0},
		"twice":                        {`{` + good + `,"references":["r.example.com/team/evil:1"]}`, 0},
		"the action in another case":   {`{` + good + `,"ACTION":"delete"}`, 1},
		"a second document after it":   {`{` + good + `}{"references":["r.example.com/team/evil:1"]}`, 0},
		"a key that is unknown, twice": {`{` + good + `,"x":1,"x":2}`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir, spool := t.TempDir(), &memorySpool{}
			h := newHandler(t, dir, spool, newReceiver(t, dir, "generic", "r.example.com"))
			r := newRequest(t, "generic", "", []byte(tc.body))
			r.Header.Del("Authorization")
			r.Header.Set("X-Hub-Signature-256", "sha256="+sign(testSecret, []byte(tc.body)))
			_, got := serve(t, h, r)
			events := spool.take()
			if len(events) != tc.queued || got.Queued != tc.queued {
				t.Errorf("queued %v: %+v", events, got)
			}
			for _, e := range events {
				if e.Repository != "team/app" || e.Action != "push" {
					t.Errorf("it became %+v", e)
				}
			}
		})
	}
	all := fixtures(t)
	for _, typ := range []string{"github", "gitea"} {
		for name, f := range all[typ] {
			for _, event := range []string{"package", "registry_package", "push", "ping", ""} {
				dir, spool := t.TempDir(), &memorySpool{}
				h := newHandler(t, dir, spool, newReceiver(t, dir, typ, f.Hosts...))
				r := newRequest(t, typ, testSecret, f.Body)
				for _, header := range []string{"X-GitHub-Event", "X-Gitea-Event", "X-Forgejo-Event"} {
					r.Header.Set(header, event)
				}
				serve(t, h, r)
				for _, e := range spool.take() {
					if len(f.Jobs) == 0 || e.Action != f.Jobs[0].Action || e.Key() != f.Jobs[0].Key() {
						t.Errorf("%s/%s with the header %q became %+v", typ, name, event, e)
					}
				}
			}
		}
	}
}

// Only the verified content of a token counts, and it can be read in only one way.
func TestAttackTokenReadInTwoWays(t *testing.T) {
	dir, spool := t.TempDir(), &memorySpool{}
	h := newHandler(t, dir, spool, newReceiver(t, dir, "gar", "europe-docker.pkg.dev"))
	claims := func(edit func(string) string) []byte {
		raw, err := json.Marshal(goodClaims())
		if err != nil {
			t.Fatal(err)
		}
		return []byte(edit(string(raw)))
	}
	replaced := func(old, with string) func(string) string {
		return func(raw string) string {
			if !strings.Contains(raw, old) {
				t.Fatalf("%s lacks %s", raw, old)
			}
			return strings.Replace(raw, old, with, 1)
		}
	}
	same := func(raw string) string { return raw }
	const email, audience = `"email":"pusher@my-project.iam.gserviceaccount.com"`, `"aud":"https://tidewaiter.example.com/hooks/gar"`
	honest := testSigner().sign(t, claims(same))
	parts := strings.Split(honest, ".")
	for name, tc := range map[string]struct {
		token string
		want  int
	}{
		"honest":                         {honest, http.StatusAccepted},
		"of another account":             {testSigner().sign(t, claims(replaced(email, `"email":"evil@example.com"`))), http.StatusUnauthorized},
		"the account in another case":    {testSigner().sign(t, claims(replaced(email, `"email":"evil@example.com","Email":"pusher@my-project.iam.gserviceaccount.com"`))), http.StatusUnauthorized},
		"two accounts":                   {testSigner().sign(t, claims(replaced(email, `"email":"evil@example.com",`+email))), http.StatusUnauthorized},
		"the audience in another case":   {testSigner().sign(t, claims(replaced(audience, `"aud":"https://evil.example.com","AUD":"https://tidewaiter.example.com/hooks/gar"`))), http.StatusUnauthorized},
		"two audiences":                  {testSigner().sign(t, claims(replaced(audience, `"aud":"https://evil.example.com",`+audience))), http.StatusUnauthorized},
		"verified in another case":       {testSigner().sign(t, claims(replaced(`"email_verified":true`, `"email_verified":false,"EMAIL_VERIFIED":true`))), http.StatusUnauthorized},
		"the claims of another":          {parts[0] + "." + strings.Split(testSigner().sign(t, claims(replaced(email, `"email":"evil@example.com"`))), ".")[1] + "." + parts[2], http.StatusUnauthorized},
		"in the form of JSON":            {`{"protected":"` + parts[0] + `","payload":"` + parts[1] + `","signature":"` + parts[2] + `"}`, http.StatusUnauthorized},
		"with a fourth part":             {honest + "." + parts[1], http.StatusUnauthorized},
		"with padding after its payload": {parts[0] + "." + parts[1] + "=." + parts[2], http.StatusUnauthorized},
	} {
		r := newRequest(t, "gar", "", fixtures(t)["gar"]["insert"].Body)
		r.Header.Set("Authorization", "Bearer "+tc.token)
		if status, _ := serve(t, h, r); status != tc.want && !(tc.want == http.StatusAccepted && status == http.StatusOK) {
			t.Errorf("%s: status %d, want %d", name, status, tc.want)
		}
	}
}

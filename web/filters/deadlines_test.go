package filters

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// TestReadersThatDoNotReadAreCutOff: watches and lists whose clients do not read are ended, so that
// their memory is freed. A connection that is kept open serves further requests after their
// deadlines.
func TestReadersThatDoNotReadAreCutOff(t *testing.T) {
	ended := make(chan error, 2)
	over := make(chan context.Context, 1)
	h := http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch req.URL.Path {
		case "/kept":
			<-(<-over).Done()
			w.WriteHeader(http.StatusOK)
			return
		case "/short":
			over <- req.Context()
			w.WriteHeader(http.StatusOK)
			return
		}
		for {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				ended <- err
				return
			}
			w.(http.Flusher).Flush()
		}
	})
	bound := WithWriteDeadlines(h, func(r *http.Request, _ *request.RequestInfo) bool { return r.URL.Path == "/watch" }, 50*time.Millisecond)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithDeadline(context.WithoutCancel(r.Context()), time.Now().Add(50*time.Millisecond-answerGrace))
		t.Cleanup(cancel)
		if r.URL.Path == "/short" {
			ctx, cancel = context.WithTimeout(context.WithoutCancel(r.Context()), 50*time.Millisecond)
			t.Cleanup(cancel)
		}
		bound.ServeHTTP(w, r.WithContext(request.WithRequestInfo(ctx, &request.RequestInfo{})))
	}))
	defer server.Close()
	dial := func(request string) net.Conn {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := conn.Write([]byte(request)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for _, path := range []string{"/watch", "/list"} {
		dial("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n")
		if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: writing to a client that does not read ended with %v", path, err)
		}
	}
	kept := dial("GET /short HTTP/1.1\r\nHost: x\r\n\r\n")
	answers := bufio.NewReader(kept)
	for i := range 2 {
		if i == 1 {
			if _, err := kept.Write([]byte("GET /kept HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatalf("answer %d: %v", i, err)
		}
		resp.Body.Close()
	}
}

// TestQuietWatchContinues: a watch that has nothing to send for longer than the timeout continues,
// over HTTP/1.1 and HTTP/2.
func TestQuietWatchContinues(t *testing.T) {
	t.Parallel()
	for name, protocol := range map[string]int{"HTTP/1.1": 1, "HTTP/2": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const patience = time.Second
			bound := WithWriteDeadlines(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.(http.Flusher).Flush()
				select {
				case <-time.After(patience * 5 / 4):
				case <-r.Context().Done():
				}
				_, _ = w.Write([]byte("event\n")) // the test compares what its reader gets
			}), func(*http.Request, *request.RequestInfo) bool { return true }, patience)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				bound.ServeHTTP(w, r.WithContext(request.WithRequestInfo(r.Context(), &request.RequestInfo{})))
			}))
			server.EnableHTTP2 = protocol == 2
			server.StartTLS()
			defer server.Close()
			resp, err := server.Client().Get(server.URL)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if got, err := io.ReadAll(resp.Body); resp.ProtoMajor != protocol || string(got) != "event\n" || err != nil {
				t.Errorf("%s: %q, %v", resp.Proto, got, err)
			}
		})
	}
}

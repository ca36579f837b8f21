package verbatim

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

// Who does not read what it asked for holds up nobody beyond the request's
// deadline, and a connection that is kept outlives the deadlines of its requests.
func TestWritesAreBound(t *testing.T) {
	deadlines := make(chan context.Context, 2)
	ended := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/kept" {
			<-(<-deadlines).Done()
			w.WriteHeader(http.StatusOK)
			return
		}
		// A short answer is to be there in time, however busy the machine is.
		deadline := 50 * time.Millisecond
		if req.URL.Path == "/short" {
			deadline = 2 * time.Second
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(req.Context()), deadline)
		t.Cleanup(cancel)
		deadlines <- ctx
		defer boundWrites(w, req.WithContext(ctx))()
		if req.URL.Path == "/short" {
			w.WriteHeader(http.StatusOK)
			return
		}
		for {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				ended <- err
				return
			}
		}
	}))
	defer server.Close()

	idle, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	if _, err := idle.Write([]byte("GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("writing to a client that does not read ended with %v", err)
	}
	<-deadlines

	kept, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	answers := bufio.NewReader(kept)
	for _, path := range []string{"/short", "/kept"} {
		if _, err := kept.Write([]byte("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(answers, nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		resp.Body.Close()
	}
}

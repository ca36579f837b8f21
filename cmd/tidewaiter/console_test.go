package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// The arguments of the program that opens a browser do not have the code: every user can read them.
// The file that they name can be read by its owner alone. Nothing waits for the program.
func TestOpeningABrowserTellsNobodyTheCode(t *testing.T) {
	dir := t.TempDir()
	arguments := filepath.Join(dir, "arguments")
	script := "#!/bin/sh\necho \"$@\" >" + arguments + ".new\nmv " + arguments + ".new " + arguments + "\nexec tail -f /dev/null\n"
	if err := os.WriteFile(filepath.Join(dir, "xdg-open"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("DISPLAY", ":0")
	const address = "http://name.localhost:1/?code=SECRET&x=1"
	remove, err := openBrowser(t.Context(), address) // it returns although the program goes on
	if err != nil {
		t.Fatal(err)
	}
	var named string
	servertest.Eventually(t, "the program runs", func() bool {
		b, err := os.ReadFile(arguments)
		named = strings.TrimSpace(string(b))
		return err == nil
	})
	if strings.Contains(named, "SECRET") {
		t.Errorf("the arguments are %q", named)
	}
	page, err := os.ReadFile(named)
	if err != nil || !strings.Contains(string(page), "url=http://name.localhost:1/?code=SECRET&amp;x=1\"") {
		t.Errorf("the page is %q, %v", page, err)
	}
	for path, want := range map[string]os.FileMode{named: 0o600, filepath.Dir(named): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, info.Mode(), err)
		}
	}
	if remove(); !errors.Is(errOf(os.Stat(named)), os.ErrNotExist) {
		t.Error("the page stays")
	}
}

func errOf(_ os.FileInfo, err error) error { return err }

// The proxy of tidewaiter console lets in the browser that has the code first, and nobody else; it
// adds the credential, and passes on only what is for the console.
func TestConsoleProxy(t *testing.T) {
	var last *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { last = r }))
	defer server.Close()
	p, err := newConsoleProxy(&restclient.Config{Host: server.URL, BearerToken: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	ask := func(method, target string, with func(*http.Request)) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, "http://"+p.host+":1"+target, nil)
		if with != nil {
			with(r)
		}
		w := httptest.NewRecorder()
		p.ServeHTTP(w, r)
		return w
	}
	if w := ask("GET", "/console/", nil); w.Code != http.StatusForbidden || last != nil {
		t.Errorf("without the code: %d", w.Code)
	}
	if w := ask("GET", "/?code=WRONG", nil); w.Code != http.StatusForbidden {
		t.Errorf("with a wrong code: %d", w.Code)
	}
	in := ask("GET", "/?code="+p.code, nil)
	if in.Code != http.StatusSeeOther || len(in.Result().Cookies()) != 1 {
		t.Fatalf("with the code: %d %v", in.Code, in.Header())
	}
	if w := ask("GET", "/?code="+p.code, nil); w.Code != http.StatusForbidden {
		t.Errorf("with the code again: %d", w.Code)
	}
	known := func(r *http.Request) {
		r.AddCookie(in.Result().Cookies()[0])
		r.AddCookie(&http.Cookie{Name: "tidewaiter-theme", Value: "dark"})
		r.Header.Set("Authorization", "Bearer another")
	}
	if w := ask("GET", "/console/images?q=a", known); w.Code != http.StatusOK || last.URL.RequestURI() != "/console/images?q=a" {
		t.Fatalf("the page: %d", w.Code)
	}
	if got := last.Header; got.Get("Authorization") != "Bearer mine" || strings.Contains(got.Get("Cookie"), proxyCookie) || !strings.Contains(got.Get("Cookie"), "theme=dark") {
		t.Errorf("the server got %v", got)
	}
	last = nil
	if w := ask("GET", "/apis", known); w.Code != http.StatusSeeOther || last != nil {
		t.Errorf("the API is passed on: %d", w.Code)
	}
	if w := ask("GET", "/console/", func(r *http.Request) { known(r); r.Host = "rebound.example:1" }); w.Code != http.StatusMisdirectedRequest || last != nil {
		t.Errorf("by another name: %d", w.Code)
	}
	for _, host := range []string{"127.0.0.1:1", "localhost:1", "[::1]:1"} { // other programs get its cookies
		if w := ask("GET", "/console/", func(r *http.Request) { known(r); r.Host = host }); w.Code != http.StatusMisdirectedRequest || last != nil {
			t.Errorf("at %s: %d", host, w.Code)
		}
	}
	if w := ask("POST", "/console/queue", func(r *http.Request) { known(r); r.Header.Set("Sec-Fetch-Site", "cross-site") }); w.Code != http.StatusForbidden || last != nil {
		t.Errorf("a form of another site: %d", w.Code)
	}
}

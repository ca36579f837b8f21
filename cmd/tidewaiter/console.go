package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"html"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/web/console"
)

func newConsoleCommand() *cobra.Command {
	o, port, open := &clientOptions{}, 0, true
	cmd := &cobra.Command{
		Use:   "console",
		Short: "Open the web console as yourself",
		Long: `Open the web console of a server with your kubeconfig, until interrupted. A proxy
on loopback adds your credential, so the browser needs neither a token nor to
trust the server's certificate. The address holds a code that works once: it is
for one browser, and nobody else on this machine can use it.`,
		Example: `  # The server of KUBECONFIG, or the one that holds ./tidewaiter-data
  tidewaiter console

  # Only print the address, for instance to forward the port by ssh
  tidewaiter console --port 8080 --open=false`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, found, err := o.server(cmd)
			if err != nil {
				return err
			}
			if !found {
				return cli.WithHint(errors.New("no server is known"), "tidewaiter console --kubeconfig FILE")
			}
			if err := servesConsole(cmd.Context(), server.Config); err != nil {
				return err
			}
			listener, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
			if err != nil {
				return cli.WithHint(err, "tidewaiter console --port 0 takes a free one")
			}
			proxy, err := newConsoleProxy(server.Config)
			if err != nil {
				return errors.Join(err, listener.Close())
			}
			_, at, err := net.SplitHostPort(listener.Addr().String())
			if err != nil {
				return errors.Join(err, listener.Close())
			}
			address := "http://" + net.JoinHostPort(proxy.host, at) + "/?code=" + proxy.code
			fmt.Fprintf(cmd.OutOrStdout(), "The console of %s is open to you at\n\n  %s\n\nThe address works once. Ctrl-C ends it.\n", server.destination(), address)
			if open { // the listener queues what comes before it is served
				remove, err := openBrowser(cmd.Context(), address)
				if err != nil {
					return errors.Join(err, listener.Close())
				}
				defer remove()
			}
			return serveProxy(cmd.Context(), listener, proxy)
		},
	}
	o.addFlags(cmd)
	cmd.Flags().IntVar(&port, "port", 0, "port on loopback; 0 picks a free one")
	cmd.Flags().BoolVar(&open, "open", true, "open the browser, if there is one")
	return cmd
}

// servesConsole fails if the server does not answer with the console's page to sign in.
func servesConsole(ctx context.Context, config *restclient.Config) error {
	client, err := pathClient(config)
	if err != nil {
		return err
	}
	_, err = client.Get().AbsPath(console.Root + "sign-in").DoRaw(ctx)
	return err
}

// serveProxy serves h until ctx ends.
func serveProxy(ctx context.Context, listener net.Listener, h http.Handler) error {
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// openBrowser opens a page where a browser is known, and does not wait for it. If there is none,
// the address is printed anyway. All users of a machine can read the arguments of programs, so
// those name a file that only its owner can read, which leads to the page. remove removes it.
func openBrowser(ctx context.Context, address string) (remove func(), err error) {
	remove = func() {}
	for _, program := range []string{"xdg-open", "open"} {
		if program == "xdg-open" && os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
			continue
		}
		path, err := exec.LookPath(program)
		if err != nil {
			continue
		}
		file, err := redirectFile(address)
		if err != nil {
			return remove, err
		}
		if opener := exec.CommandContext(ctx, path, file); opener.Start() == nil {
			go func() { _ = opener.Wait() }()
		}
		return func() { _ = os.RemoveAll(filepath.Dir(file)) }, nil
	}
	return remove, nil
}

// redirectFile makes a page that leads to address, in a folder that only its owner can look into.
func redirectFile(address string) (string, error) {
	dir, err := os.MkdirTemp("", "tidewaiter-console-")
	if err != nil {
		return "", err
	}
	to := html.EscapeString(address)
	page := "<!doctype html><meta charset=utf-8><meta name=referrer content=no-referrer><meta http-equiv=refresh content=\"0; url=" + to + "\"><title>Tidewaiter</title><a href=\"" + to + "\">The console</a>\n"
	file := filepath.Join(dir, "console.html")
	if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	return file, nil
}

// proxyCookie holds what lets a browser in.
const proxyCookie = "tidewaiter-console-proxy"

// consoleProxy passes requests for the console on to a server, with a credential. It lets one
// browser in: that which brings the code first.
type consoleProxy struct {
	// host is a name that only this proxy has. Browsers send cookies of 127.0.0.1 to all its ports,
	// and other programs may listen there.
	host         string
	code, cookie string
	used         sync.Once
	proxy        http.Handler
}

func newConsoleProxy(config *restclient.Config) (*consoleProxy, error) {
	transport, server, err := transportTo(config)
	if err != nil {
		return nil, err
	}
	p := &consoleProxy{host: strings.ToLower(rand.Text()) + ".localhost", code: rand.Text(), cookie: rand.Text()}
	reverse := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: server.Scheme, Host: server.Host})
			// The cookie that admits a browser here means nothing to the server; the transport adds
			// the credential.
			cookies := r.In.Cookies()
			r.Out.Header.Del("Cookie")
			r.Out.Header.Del("Authorization")
			for _, c := range cookies {
				if c.Name != proxyCookie {
					r.Out.AddCookie(c)
				}
			}
			r.Out.Header.Del("Origin") // checked here, and of another host there
		},
		ErrorHandler: unreachable,
	}
	p.proxy = http.NewCrossOriginProtection().Handler(reverse)
	return p, nil
}

// ServeHTTP implements http.Handler.
func (p *consoleProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A name that leads here and is not this proxy's, such as 127.0.0.1, is refused: its cookies
	// would go to others.
	if host, _, _ := strings.Cut(r.Host, ":"); !strings.EqualFold(host, p.host) {
		http.Error(w, "this is for the address which tidewaiter console printed", http.StatusMisdirectedRequest)
		return
	}
	if r.URL.Path == "/" && r.URL.Query().Has("code") {
		p.letIn(w, r)
		return
	}
	cookie, err := r.Cookie(proxyCookie)
	if err != nil || subtle.ConstantTimeCompare([]byte(cookie.Value), []byte(p.cookie)) != 1 {
		http.Error(w, "this is for the browser that opened the address which tidewaiter console printed", http.StatusForbidden)
		return
	}
	if !strings.HasPrefix(r.URL.Path, console.Root) {
		http.Redirect(w, r, console.Root, http.StatusSeeOther)
		return
	}
	p.proxy.ServeHTTP(w, r)
}

// letIn gives the first browser that has the code its cookie.
func (p *consoleProxy) letIn(w http.ResponseWriter, r *http.Request) {
	first := false
	if subtle.ConstantTimeCompare([]byte(r.URL.Query().Get("code")), []byte(p.code)) == 1 {
		p.used.Do(func() { first = true })
	}
	if !first {
		http.Error(w, "this code is not good any more: it works once. Run tidewaiter console again", http.StatusForbidden)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: proxyCookie, Value: p.cookie, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.Header().Set("Referrer-Policy", "no-referrer")
	http.Redirect(w, r, console.Root, http.StatusSeeOther)
}

// Command oidc is a provider of OpenID Connect: the example server of zitadel's library,
// with its users, over TLS, as Kubernetes asks of an issuer.
//
//	go run -C e2e/oidc . -ca /tmp/ca.crt
//
// Its client is called kubectl and has no secret; its users are those of the example.
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/op"
	certutil "k8s.io/client-go/util/cert"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to serve on")
	ca := flag.String("ca", "", "file to write the certificate to that clients trust")
	redirect := flag.String("redirect", "http://localhost:8000", "where users come back to with a code")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := serve(ctx, *listen, *ca, *redirect); err != nil {
		fmt.Fprintln(os.Stderr, "oidc:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, address, ca, redirect string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return err
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey(host, []net.IP{net.ParseIP(host)}, nil)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(ca, cert, 0o644); err != nil {
		return err
	}
	issuer := "https://" + listener.Addr().String() + "/"
	storage.RegisterClients(storage.NativeClient("kubectl", redirect))
	server := &http.Server{
		Handler:           exampleop.SetupServer(issuer, withClaims{storage.NewStorage(storage.NewUserStore(issuer))}, slog.New(slog.NewTextHandler(os.Stderr, nil)), false),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: time.Minute,
	}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	fmt.Println("issuer", issuer)
	if err := server.ServeTLS(listener, "", ""); err != http.ErrServerClosed {
		return err
	}
	return nil
}

// withClaims is a storage whose clients get what they ask about a user in the ID token, too, as
// those of Google and Dex do. Fulcio reads an address of mail there.
type withClaims struct{ *storage.Storage }

func (s withClaims) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	c, err := s.Storage.GetClientByClientID(ctx, id)
	return client{c}, err
}

type client struct{ op.Client }

func (client) IDTokenUserinfoClaimsAssertion() bool { return true }

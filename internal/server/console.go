package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/web/console"
	"github.com/tidewaiter/tidewaiter/web/console/openid"
)

// newConsole returns the function that makes the console; nil if the server has no console.
func (s *Server) newConsole(ctx context.Context) (func(api http.Handler) http.Handler, error) {
	if s.listener == nil || !s.Options.Console {
		return nil, nil
	}
	// Replicas share the key of the certificate authority, so what is sealed with it holds on each.
	key, err := os.ReadFile(s.Credentials.CAKeyFile)
	if err != nil {
		return nil, fmt.Errorf("the console: %w", err)
	}
	kept := endedSessions{s.DB}
	options := console.Options{Clock: s.Options.Clock, Sessions: console.NewSessions(key, s.Options.Clock, kept)}
	if err := kept.each(ctx, options.Sessions.Learn); err != nil {
		return nil, fmt.Errorf("the console's sessions: %w", err)
	}
	if s.etcd != nil { // otherwise no other server ends any
		s.Tasks = append(s.Tasks, Task{Name: "ended-sessions", Run: func(ctx context.Context) error {
			reconcile.Keep(ctx, "following which sessions of the console were ended", nil, func(ctx context.Context) error { return kept.follow(ctx, options.Sessions.Learn) })
			return nil
		}})
	}
	options.Turn = func(ctx context.Context, w http.ResponseWriter, user, remote string) console.Turn {
		return s.turns.Of(ctx, w, user, remote)
	}
	if at, ok := s.listener.Addr().(*net.TCPAddr); ok {
		options.At = console.Address{URL: s.Options.TLS.AdvertiseURL, Hosts: s.Options.TLS.Hosts(at.IP), Port: at.Port}
	}
	if s.cluster == nil { // else the cluster knows the callers
		if options.Providers, err = s.signInFlow(key); err != nil {
			return nil, fmt.Errorf("the console: %w", err)
		}
	}
	return func(api http.Handler) http.Handler { return console.New(api, options) }, nil
}

// endedSessions keeps sessions of the console that were ended in the database.
type endedSessions struct{ db *db.DB }

// endedPrefix is what their keys begin with. IDs follow.
const endedPrefix = "/tidewaiter.dev/console-sessions/"

// Add implements console.EndedStore.
func (e endedSessions) Add(ctx context.Context, one console.Ended) error {
	value, err := json.Marshal(one)
	if err != nil {
		return err
	}
	_, err = e.db.Put(ctx, endedPrefix+one.ID, 0, value, db.PutOptions{TTL: max(time.Second, one.Until.Sub(e.db.Now()))})
	if errors.Is(err, db.ErrConflict) {
		return nil // another server has done it
	}
	return err
}

// Remove implements console.EndedStore.
func (e endedSessions) Remove(ctx context.Context, id string) error {
	kv, found, _, err := e.db.Get(ctx, endedPrefix+id)
	if err != nil || !found {
		return err
	}
	_, err = e.db.Delete(ctx, kv.Key, kv.Rev)
	return err
}

// each calls learn with each session that is kept.
func (e endedSessions) each(ctx context.Context, learn func(console.Ended)) error {
	w, err := e.db.RangeAndWatch(ctx, endedPrefix, func(kv db.KV) { learnEnded(kv, learn) })
	if err == nil {
		w.Stop()
	}
	return err
}

// follow calls learn with each session that is kept, then with each that is added, until ctx is
// done or changes may have been missed.
func (e endedSessions) follow(ctx context.Context, learn func(console.Ended)) error {
	return e.db.Follow(ctx, endedPrefix, func(kv db.KV) { learnEnded(kv, learn) })
}

// learnEnded calls learn with the session in a value. One that is gone has expired, or gave way to
// others; one that is damaged has lost its time.
func learnEnded(kv db.KV, learn func(console.Ended)) {
	one := console.Ended{}
	if json.Unmarshal(kv.Value, &one) == nil && kv.Key == endedPrefix+one.ID {
		learn(one)
	}
}

// signInFlow signs people in with the issuers whose tokens the server accepts; nil if there are
// none.
func (s *Server) signInFlow(secret []byte) (*openid.Flow, error) {
	config, err := s.authentication().ToAuthenticationConfig()
	if err != nil || config.AuthenticationConfig == nil {
		return nil, err
	}
	var all []openid.Provider
	for _, jwt := range config.AuthenticationConfig.JWT {
		if len(jwt.Issuer.Audiences) > 0 {
			all = append(all, openid.Provider{Issuer: jwt.Issuer.URL, DiscoveryURL: jwt.Issuer.DiscoveryURL, ClientID: jwt.Issuer.Audiences[0], CA: jwt.Issuer.CertificateAuthority})
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return openid.New(all, secret, clock.RealClock{})
}

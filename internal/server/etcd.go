package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/db/etcd"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/version"
)

// claimAgain is the pause before the next attempt if etcd does not answer at the start.
const claimAgain = time.Second

// claim waits for etcd, then claims the prefix for these servers.
func claim(ctx context.Context, store *etcd.Store) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, time.Minute)
		err := store.Claim(attempt, version.Build())
		cancel()
		if refused, ok := errors.AsType[*etcd.ClaimError](err); ok {
			return cli.WithHint(err, "%s", refused.Hint)
		}
		if err == nil || ctx.Err() != nil {
			return err
		}
		slog.Warn("The server waits for etcd", "err", err)
		select {
		case <-time.After(claimAgain):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// warnOfPlainEtcd warns if others on the network can read and change the requests to etcd.
func warnOfPlainEtcd(o etcd.Options) {
	var plain []string
	for _, s := range o.Servers {
		if !encrypted(s, o.CAFile+o.CertFile+o.KeyFile != "") {
			plain = append(plain, s)
		}
	}
	if len(plain) > 0 {
		slog.Warn("Connections to etcd are not encrypted, and everyone who can reach etcd can read and write all objects: have etcd serve https and require client certificates", "servers", strings.Join(plain, ", "), "see", "docs/tasks/scale.md")
	}
}

// encrypted reports whether an address of etcd uses https or is on this machine. HOST:PORT means
// https if certificate files are configured.
func encrypted(server string, files bool) bool {
	scheme, rest, ok := strings.Cut(server, "://")
	if !ok {
		scheme, rest = "", server
	}
	switch scheme = strings.ToLower(scheme); {
	case scheme == "https" || scheme == "unix" || scheme == "unixs" || scheme == "" && files:
		return true
	}
	rest, _, _ = strings.Cut(rest, "/")
	host, _, err := net.SplitHostPort(rest)
	if err != nil {
		host = rest
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/cmd/internal/server"
	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/access"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/web"
	"github.com/tidewaiter/tidewaiter/web/filters"
)

// auditLog is the default audit log of a data directory.
func auditLog(dataDir string) string { return filepath.Join(dataDir, "audit", "audit.log") }

type serveOptions struct {
	server.Options
	bindAddress string
	securePort  int
}

func newServeCommand() *cobra.Command {
	o := &serveOptions{}
	callers := pflag.NewFlagSet("callers", pflag.ContinueOnError) // flags about callers and what they may do
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a data directory as a Kubernetes API",
		Long: `Serve a data directory as a Kubernetes API, until interrupted.

The directory is created on the first start, with a private certificate
authority (pki/ca.crt) and an administrator's credential (admin.kubeconfig).
When the server is ready one line on standard output says where.`,
		Example: `  # Serve ./tidewaiter-data on https://127.0.0.1:6443
  tidewaiter serve

  # On any free port; admin.kubeconfig names the real one
  tidewaiter serve --data-dir /srv/tidewaiter --secure-port 0

  # For other machines
  tidewaiter serve --bind-address 0.0.0.0

  # Behind a name, with a certificate of one's own
  tidewaiter serve --bind-address 0.0.0.0 --advertise-url https://tidewaiter.example.com:6443 \
    --tls-cert-file tls.crt --tls-private-key-file tls.key

  # As an API server of the cluster that this is a pod of; docs/start/kubectl.md installs it
  tidewaiter serve --bind-address 0.0.0.0 --cluster

  # With a backup every six hours, those of two weeks kept
  tidewaiter serve --backup-dir /mnt/backups --backup-every 6h --backup-keep 56`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server.CollectSeldom()
			if !cmd.Flags().Changed("audit-log-path") {
				o.Audit.LogOptions.Path = auditLog(o.DataDir)
			}
			if err := o.Cluster.RefuseUnused(callers); err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	o.AddFlags(f)
	o.Audit = filters.NewAuditOptions("")
	o.Audit.AddFlags(f)
	f.Lookup("audit-policy-file").Usage = "audit policy, as kube-apiserver's; without one, changes and refusals are written down at the level Metadata"
	f.Lookup("audit-log-path").Usage = `file of the audit log; "-" is standard output, "" none (default: audit/audit.log in the data directory)`
	f.StringVar(&o.bindAddress, "bind-address", "127.0.0.1", "IP address to listen on; 0.0.0.0 or :: for all")
	f.IntVar(&o.securePort, "secure-port", 6443, "port to serve HTTPS on; 0 picks a free one")
	o.TLS.AddFlags(f)
	o.Cluster.AddFlags(f)
	o.Authentication, o.Access = web.NewAuthentication(), access.NewOptions()
	o.Authentication.AddFlags(callers)
	o.Access.AddFlags(callers)
	f.AddFlagSet(callers)
	f.BoolVar(&o.Console, "console", true, "serve the web console at /console/")
	f.IntVar(&o.MaxReads, "max-requests-inflight", 400, "how many requests that change nothing are served at once, lists a quarter of them, and of one user a part; the others wait for a moment and are then told to come later")
	f.IntVar(&o.MaxWrites, "max-mutating-requests-inflight", 200, "how many requests that change something are served at once, and of one user a part")
	return cmd
}

func (o *serveOptions) run(ctx context.Context, out io.Writer) error {
	ip := net.ParseIP(o.bindAddress)
	if ip == nil {
		return &cli.Exit{Code: cli.ExitUsage, Err: cli.WithHint(
			fmt.Errorf("--bind-address %q is not an IP address", o.bindAddress),
			"tidewaiter serve --bind-address 127.0.0.1")}
	}
	if o.securePort < 0 || o.securePort > 65535 {
		return &cli.Exit{Code: cli.ExitUsage, Err: cli.WithHint(
			fmt.Errorf("--secure-port %d is not a port", o.securePort),
			"tidewaiter serve --secure-port 6443")}
	}
	if o.EventTTL < time.Second {
		return &cli.Exit{Code: cli.ExitUsage, Err: cli.WithHint(
			fmt.Errorf("--event-ttl %s is less than a second", o.EventTTL),
			"tidewaiter serve --event-ttl %s", coreapi.DefaultEventTTL)}
	}
	if o.Quota < 0 {
		return &cli.Exit{Code: cli.ExitUsage, Err: cli.WithHint(
			fmt.Errorf("--quota-backend-bytes %d is negative", o.Quota),
			"tidewaiter serve --quota-backend-bytes 8589934592")}
	}
	if o.Backups.Dir != "" && (o.Backups.Every < time.Minute || o.Backups.Keep < 1) {
		return &cli.Exit{Code: cli.ExitUsage, Err: cli.WithHint(
			fmt.Errorf("--backup-every %s --backup-keep %d: a backup is made once a minute at most, and one at least is kept", o.Backups.Every, o.Backups.Keep),
			"tidewaiter serve --backup-dir %s --backup-every 24h --backup-keep 7", o.Backups.Dir)}
	}
	if err := o.TLS.Validate(); err != nil {
		return cli.Misuse(err, "tidewaiter serve --tls-san registry.example.com --advertise-url https://registry.example.com:6443")
	}
	if err := errors.Join(o.Audit.Validate()...); err != nil {
		return cli.Misuse(err, "tidewaiter serve --help lists the flags")
	}
	if err := o.Access.Validate(); err != nil {
		return cli.Misuse(err, "tidewaiter serve --authorization-mode RBAC")
	}
	if err := awaitDirectory(ctx, o.DataDir, clock.RealClock{}); err != nil || ctx.Err() != nil {
		return err
	}
	_, err := os.Lstat(filepath.Join(o.DataDir, datafile.FileName))
	isNew := errors.Is(err, fs.ErrNotExist)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(ip.String(), strconv.Itoa(o.securePort)))
	if err != nil {
		hint, err := cli.UnusedAddress(err)
		return cli.WithHint(err, "%s", cmp.Or(hint, "--bind-address and --secure-port say where to listen"))
	}
	s, err := server.Open(ctx, o.Options, listener)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	if isNew && o.DataDir != cli.DefaultDataDir {
		slog.Warn("created a new, empty database; if there should be one already, check --data-dir, and that its disk is mounted", "dir", o.DataDir)
	}
	return s.Run(ctx, func(context.Context) error {
		_, err := fmt.Fprintf(out, "tidewaiter is ready at %s, kubeconfig %s\n", s.URL, s.Credentials.Kubeconfig)
		return err
	})
}

// ownerInterval is how often a server that waits for its data directory looks whether it is free.
const ownerInterval = 200 * time.Millisecond

// awaitDirectory returns once no other process owns the data directory, or ctx ends. It waits for an import, or whatever
// else holds the directory for a while, and says for whom. A server holds it until it is stopped: that is a
// *db.LockedError at once.
func awaitDirectory(ctx context.Context, dir string, clock clock.WithTicker) error {
	tick := clock.NewTicker(ownerInterval)
	defer tick.Stop()
	waits := false
	for {
		err := datafile.Owner(dir)
		var owner *datafile.LockedError
		if !errors.As(err, &owner) || owner.IsServer() {
			if waits && err == nil {
				slog.Info("the data directory is free", "dir", dir)
			}
			return err
		}
		if !waits {
			waits = true
			slog.Warn("waiting for the data directory: another process, for instance an import, is using it", "dir", dir, "pid", owner.PID)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
	}
}

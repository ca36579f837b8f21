//go:build cgo

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
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/term"
	"k8s.io/utils/clock"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/access"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server"
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
	sections := o.flags()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a data directory as a Kubernetes API",
		Long: `Serve a data directory as a Kubernetes API, until interrupted.

The directory is created on the first start, with a private certificate
authority (pki/ca.crt) and an administrator's credential (admin.kubeconfig).
When the server is ready, it prints its address on standard output.`,
		Example: `  # Serve ./tidewaiter-data on https://127.0.0.1:6443
  tidewaiter serve

  # On any free port; admin.kubeconfig names the real one
  tidewaiter serve --data-dir /srv/tidewaiter --secure-port 0

  # For other machines
  tidewaiter serve --bind-address 0.0.0.0

  # Under a host name, with your own certificate
  tidewaiter serve --bind-address 0.0.0.0 --advertise-url https://tidewaiter.example.com:6443 \
    --tls-cert-file tls.crt --tls-private-key-file tls.key

  # As an aggregated API server of the cluster it runs in; docs/start/kubectl.md installs it
  tidewaiter serve --bind-address 0.0.0.0 --cluster

  # With a backup every six hours, kept for two weeks
  tidewaiter serve --backup-dir /mnt/backups --backup-every 6h --backup-keep 56`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("audit-log-path") {
				o.Audit.LogOptions.Path = auditLog(o.DataDir)
			}
			if err := o.Cluster.RefuseUnused(sections.FlagSet("authentication"), sections.FlagSet("authorization")); err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	for _, section := range sections.FlagSets {
		cmd.Flags().AddFlagSet(section)
	}
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		out := cmd.OutOrStdout()
		fmt.Fprintf(out, "Usage:\n  %s\n\nExamples:\n%s\n", cmd.UseLine(), cmd.Example)
		width, _, _ := term.TerminalSize(out) // 0 does not wrap lines
		cliflag.PrintSections(out, *sections, width)
		_, err := fmt.Fprintf(out, "\nGlobal flags:\n\n%s", cmd.InheritedFlags().FlagUsagesWrapped(width))
		return err
	})
	return cmd
}

// flags are the flags of a server, in the sections of its help.
func (o *serveOptions) flags() *cliflag.NamedFlagSets {
	sections := &cliflag.NamedFlagSets{}
	f := sections.FlagSet("serving")
	f.StringVar(&o.bindAddress, "bind-address", "127.0.0.1", "IP address to listen on; 0.0.0.0 or :: for all")
	f.IntVar(&o.securePort, "secure-port", 6443, "port to serve HTTPS on; 0 picks a free one")
	o.TLS.AddFlags(f)
	f.BoolVar(&o.Console, "console", true, "serve the web console at /console/")
	f.IntVar(&o.MaxReads, "max-requests-inflight", 400, "most read requests served at once, a quarter of them lists; one user gets only a share")
	f.IntVar(&o.MaxWrites, "max-mutating-requests-inflight", 200, "most write requests served at once; one user gets only a share")

	o.AddFlags(sections)
	o.Cluster.AddFlags(sections.FlagSet("aggregation"))

	o.Authentication, o.Access = web.NewAuthentication(), access.NewOptions()
	o.Authentication.AddFlags(sections.FlagSet("authentication"))
	o.Access.AddFlags(sections.FlagSet("authorization"))

	sections.FlagSet("tracing").StringVar(&o.TracingFile, "tracing-config-file", "", "TracingConfiguration, as for kube-apiserver: where spans go, and how many requests are traced; without it none is")

	f = sections.FlagSet("audit")
	o.Audit = filters.NewAuditOptions("")
	o.Audit.AddFlags(f)
	f.Lookup("audit-policy-file").Usage = "audit policy file, as for kube-apiserver; without one, changes and refusals are logged at the level Metadata"
	f.Lookup("audit-log-path").Usage = `audit log file; "-" means standard output, "" none (default: audit/audit.log in the data directory)`
	return sections
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
			fmt.Errorf("--backup-every %s --backup-keep %d: the interval is at least one minute, and at least one backup is kept", o.Backups.Every, o.Backups.Keep),
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
	if isNew && o.DataDir != cli.DefaultDataDir && len(o.Etcd.Servers) == 0 {
		slog.Warn("created a new, empty database; if one should exist already, check --data-dir and that its disk is mounted", "dir", o.DataDir)
	}
	return s.Run(ctx, func(context.Context) error {
		next := ""
		if isNew && o.ConfigFile == "" && o.Policy == "" {
			next = lookAround(ctx).nextSteps()
		}
		if _, err := fmt.Fprintf(out, "tidewaiter is ready at %s, kubeconfig %s\n%s", cmp.Or(o.TLS.AdvertiseURL, s.URL), s.Credentials.Kubeconfig, next); err != nil {
			slog.Warn("standard output cannot be written; the server is ready all the same", "url", s.URL, "kubeconfig", s.Credentials.Kubeconfig, "err", err)
		}
		return nil
	})
}

// ownerInterval is how often a server that waits for its data directory looks whether it is free.
const ownerInterval = 200 * time.Millisecond

// awaitDirectory returns once no other process owns the data directory, or ctx ends. It waits for
// an import, or whatever else holds the directory for a while, and says for whom. A server holds it
// until it is stopped: that is a
// *datafile.LockedError at once.
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

func newConfigCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "config",
		Short:   "Check a configuration file",
		Example: "  tidewaiter config check config.yaml",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Find the mistakes that would keep a server from starting with a configuration file",
		Long: `Read a configuration file and the files that it names, as a server does when it
starts. Each mistake is printed with its line. Nothing is asked over the network.`,
		Example: "  tidewaiter config check config.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			found, err := server.CheckConfig(args[0])
			if errors.Is(err, fs.ErrNotExist) {
				return cli.WithHint(err, "tidewaiter config check FILE")
			}
			if err != nil {
				return err
			}
			if len(found) > 0 {
				return &cli.Exit{Code: cli.ExitSome, Err: errors.Join(found...)}
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: no mistake was found\n", args[0])
			return err
		},
	})
	return cmd
}

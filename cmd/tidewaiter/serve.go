package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/access"
	"github.com/tidewaiter/tidewaiter/web"
)

// defaultDataDir is the data directory of every verb by default.
const defaultDataDir = "./tidewaiter-data"

// auditLog is the default audit log of a data directory.
func auditLog(dataDir string) string { return filepath.Join(dataDir, "audit", "audit.log") }

type serveOptions struct {
	serverOptions
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

  # As an API server of the cluster that this is a pod of; docs/cluster.md installs it
  tidewaiter serve --bind-address 0.0.0.0 --cluster

  # With a backup every six hours, those of two weeks kept
  tidewaiter serve --backup-dir /mnt/backups --backup-every 6h --backup-keep 56`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			collectSeldom()
			if !cmd.Flags().Changed("audit-log-path") {
				o.audit.LogOptions.Path = auditLog(o.dataDir)
			}
			if err := o.cluster.refuseUnused(callers); err != nil {
				return err
			}
			return o.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	o.addFlags(f)
	o.audit = web.NewAuditOptions("")
	o.audit.AddFlags(f)
	f.Lookup("audit-policy-file").Usage = "audit policy, as kube-apiserver's; without one, changes and refusals are written down at the level Metadata"
	f.Lookup("audit-log-path").Usage = `file of the audit log; "-" is standard output, "" none (default: audit/audit.log in the data directory)`
	f.StringVar(&o.bindAddress, "bind-address", "127.0.0.1", "IP address to listen on; 0.0.0.0 or :: for all")
	f.IntVar(&o.securePort, "secure-port", 6443, "port to serve HTTPS on; 0 picks a free one")
	o.tls.AddFlags(f)
	o.cluster.addFlags(f)
	o.authentication, o.access = web.NewAuthentication(), access.NewOptions()
	o.authentication.AddFlags(callers)
	o.access.AddFlags(callers)
	f.AddFlagSet(callers)
	f.IntVar(&o.maxReads, "max-requests-inflight", 400, "how many requests that change nothing are served at once, lists a quarter of them, and of one user a part; the others wait for a moment and are then told to come later")
	f.IntVar(&o.maxWrites, "max-mutating-requests-inflight", 200, "how many requests that change something are served at once, and of one user a part")
	return cmd
}

func (o *serveOptions) run(ctx context.Context, out io.Writer) error {
	ip := net.ParseIP(o.bindAddress)
	if ip == nil {
		return &exitError{code: exitUsage, err: withHint(
			fmt.Errorf("--bind-address %q is not an IP address", o.bindAddress),
			"tidewaiter serve --bind-address 127.0.0.1")}
	}
	if o.securePort < 0 || o.securePort > 65535 {
		return &exitError{code: exitUsage, err: withHint(
			fmt.Errorf("--secure-port %d is not a port", o.securePort),
			"tidewaiter serve --secure-port 6443")}
	}
	if o.eventTTL < time.Second {
		return &exitError{code: exitUsage, err: withHint(
			fmt.Errorf("--event-ttl %s is less than a second", o.eventTTL),
			"tidewaiter serve --event-ttl %s", coreapi.DefaultEventTTL)}
	}
	if o.quota < 0 {
		return &exitError{code: exitUsage, err: withHint(
			fmt.Errorf("--quota-backend-bytes %d is negative", o.quota),
			"tidewaiter serve --quota-backend-bytes 8589934592")}
	}
	if o.backups.Dir != "" && (o.backups.Every < time.Minute || o.backups.Keep < 1) {
		return &exitError{code: exitUsage, err: withHint(
			fmt.Errorf("--backup-every %s --backup-keep %d: a backup is made once a minute at most, and one at least is kept", o.backups.Every, o.backups.Keep),
			"tidewaiter serve --backup-dir %s --backup-every 24h --backup-keep 7", o.backups.Dir)}
	}
	if err := o.tls.Validate(); err != nil {
		return misuse(err, "tidewaiter serve --tls-san registry.example.com --advertise-url https://registry.example.com:6443")
	}
	if err := errors.Join(o.audit.Validate()...); err != nil {
		return misuse(err, "tidewaiter serve --help lists the flags")
	}
	if err := o.access.Validate(); err != nil {
		return misuse(err, "tidewaiter serve --authorization-mode RBAC")
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(ip.String(), strconv.Itoa(o.securePort)))
	if err != nil {
		return withHint(err, "--secure-port 0 picks a free port")
	}
	s, err := openServer(ctx, o.serverOptions, listener)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	return s.run(ctx, func(context.Context) error {
		_, err := fmt.Fprintf(out, "tidewaiter is ready at %s, kubeconfig %s\n", s.url, s.credentials.Kubeconfig)
		return err
	})
}

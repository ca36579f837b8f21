//go:build cgo

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/web"
)

// rotatePatience is how long a server may take to use a rotated credential.
const rotatePatience = 30 * time.Second

func newCredentialsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "credentials",
		Short:   "Replace the administrator's credential, or make what several servers share",
		Example: "  tidewaiter credentials rotate",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var dataDir string
	var r web.Rotation
	rotate := &cobra.Command{
		Use:   "rotate",
		Short: "Replace the administrator's token and certificate, also while the server runs",
		Long: `Replace the administrator's token and client certificate (pki/tokens.csv,
pki/admin.crt). A running server adopts the new ones, refuses the old ones within a
second, and rewrites admin.kubeconfig; copies of the old file stop working. If no
server runs, the next start does this.

Other tokens in pki/tokens.csv, tokens of service accounts and other client
certificates stay valid. Watches opened with the old token or certificate end.`,
		Example: `  # admin.kubeconfig was leaked
  tidewaiter credentials rotate

  # A client certificate signed with pki/ca.key was leaked
  tidewaiter credentials rotate --revoke somebody.crt

  # Several servers share ./pki
  tidewaiter credentials rotate --pki-dir ./pki

  # Sign service account tokens with a new key. Tokens of the old key stay valid until
  # they expire; remove that key from pki/sa.pub to refuse them now
  tidewaiter credentials rotate --signing-key`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			running, err := serverHolds(dataDir)
			if err != nil && !(r.PKIDir != "" && errors.Is(err, fs.ErrNotExist)) {
				return err
			}
			if _, err := os.Stat(filepath.Join(dataDir, "pki", "ca.key")); err == nil && r.PKIDir != "" {
				running = false // that server has its own credentials
			}
			token, err := web.Rotate(dataDir, r, time.Now())
			if errors.Is(err, fs.ErrNotExist) && r.PKIDir == "" {
				return cli.WithHint(err, "if its server has --pki-dir, give that")
			} else if err != nil {
				return err
			}
			if r.PKIDir != "" {
				fmt.Fprintf(cmd.OutOrStdout(), "The administrator's token and certificate in %s are new. Servers that read this directory refuse the old ones within a second. Other machines have their own copy: copy it to them, or replace the Secret that it was made into.\n", r.PKIDir)
			}
			switch {
			case !running && r.PKIDir != "":
				return nil
			case !running:
				fmt.Fprintf(cmd.OutOrStdout(), "The administrator's token and certificate are new. No server holds %s: the next start writes %s.\n", dataDir, filepath.Join(dataDir, "admin.kubeconfig"))
				return nil
			}
			if err := awaitToken(cmd.Context(), dataDir, token); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "The administrator's token and certificate are new, the server refuses the old ones: %s\n", filepath.Join(dataDir, "admin.kubeconfig"))
			return nil
		},
	}
	f := rotate.Flags()
	f.StringVar(&dataDir, "data-dir", cli.DefaultDataDir, "directory that holds the database, the certificates and the administrator's credential")
	f.StringVar(&r.PKIDir, "pki-dir", "", "directory of the credentials that several servers share, as their flag --pki-dir")
	f.BoolVar(&r.SigningKey, "signing-key", false, "also make a new key for service account tokens")
	f.StringArrayVar(&r.Revoke, "revoke", nil, "file with a client certificate of this server's authority to revoke; may be repeated")
	cmd.AddCommand(rotate, newCredentialsCreateCommand())
	return cmd
}

func newCredentialsCreateCommand() *cobra.Command {
	var shared string
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make the credentials that several servers share",
		Long: `Make the directory that several servers have as --pki-dir: their authority, the
administrator's token and certificate, and the key for service account tokens.
Without it, the first of the servers makes them, if it can write the directory;
a Secret of a cluster has to be made of them first.`,
		Example: `  tidewaiter credentials create --pki-dir ./pki
  kubectl create secret generic tidewaiter-pki --namespace tidewaiter --from-file=pki`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if shared == "" {
				return cli.Misuse(errors.New("it is not said where to make them"), "--pki-dir DIRECTORY")
			}
			if err := web.CreateShared(shared, time.Now()); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s has the credentials that several servers share. Keep it secret: whoever has it is the administrator.\n", shared)
			return err
		},
	}
	cmd.Flags().StringVar(&shared, "pki-dir", "", "directory to make")
	return cmd
}

// serverHolds reports whether a listening server holds dir.
func serverHolds(dir string) (bool, error) {
	err := datafile.Owner(dir)
	if locked, ok := errors.AsType[*datafile.LockedError](err); ok {
		return locked.IsServer(), nil
	}
	return false, err
}

// awaitToken waits until the server has written token into admin.kubeconfig, which it
// does once the token is in force.
func awaitToken(ctx context.Context, dir, token string) error {
	file := filepath.Join(dir, "admin.kubeconfig")
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, rotatePatience, true, func(context.Context) (bool, error) {
		data, err := os.ReadFile(file)
		return err == nil && bytes.Contains(data, []byte(token)), nil
	})
	if err != nil {
		return cli.WithHint(fmt.Errorf("the token and the certificate were replaced, but the server has not adopted them within %s", rotatePatience),
			"its log says why; a server of an older version needs a restart")
	}
	return nil
}

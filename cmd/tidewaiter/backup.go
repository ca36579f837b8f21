//go:build cgo

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/datafile"
)

func newBackupCommand() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the database to a file, while it is in use",
		Long: `Copy the database of a data directory to a new file. A server may keep running
and writing: the copy is a consistent snapshot. FILE appears only when it is
complete, and an existing file is not overwritten. "-" writes to standard output,
by way of an unnamed file in $TMPDIR. "tidewaiter serve --backup-dir" makes
backups on a schedule.

The copy is a SQLite database. It holds no certificates and no credentials:
back up pki/ separately, or let the restored server create new ones.`,
		Example: `  tidewaiter backup tidewaiter-monday.db
  tidewaiter backup - | ssh backup.example.com 'cat > tidewaiter.db'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := datafile.CheckOwn(cmd.Context(), dataDir); err != nil {
				return err
			}
			if args[0] != "-" {
				if err := backup.Make(cmd.Context(), dataDir, args[0]); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s backed up to %s\n", dataDir, args[0])
				return err
			}
			if f, ok := cmd.OutOrStdout().(*os.File); ok && term.IsTerminal(int(f.Fd())) {
				return cli.Misuse(errors.New("standard output is a terminal, and a database is binary"), "tidewaiter backup FILE")
			}
			return backup.Stream(cmd.Context(), dataDir, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", cli.DefaultDataDir, "data directory whose database to copy")
	return cmd
}

func newRestoreCommand() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a data directory from a backup",
		Long: `Make a data directory from a backup. The directory must have no database, and no
server may hold it. A backup contains role bindings, so a file that another user
owns or can write is refused.

Clients that watched the original server get 410 Expired and list again, so they
never see it go back in time.`,
		Example: "  tidewaiter restore tidewaiter-monday.db --data-dir ./restored",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := backup.Restore(cmd.Context(), args[0], dataDir); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s restored from %s; next: tidewaiter serve --data-dir %s\n", dataDir, args[0], dataDir)
			return err
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", cli.DefaultDataDir, "data directory to make")
	return cmd
}

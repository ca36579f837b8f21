package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/db/backup"
)

func newBackupCommand() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy the database to a file, while it is in use",
		Long: `Copy the database of a data directory to a new file. A server may hold the
directory and go on writing: the copy shows one moment. FILE has its name once it
is whole, and a file that exists is not overwritten. "-" writes to standard
output, by way of a file without a name in $TMPDIR. A server makes backups by
itself with "tidewaiter serve --backup-dir".

The copy is a SQLite database. It holds no certificates and no credentials:
keep pki/ apart, or let a restored directory make new ones.`,
		Example: `  tidewaiter backup tidewaiter-monday.db
  tidewaiter backup - | ssh backup.example.com 'cat > tidewaiter.db'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != "-" {
				if err := backup.Make(cmd.Context(), dataDir, args[0]); err != nil {
					return err
				}
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s backed up to %s\n", dataDir, args[0])
				return err
			}
			if f, ok := cmd.OutOrStdout().(*os.File); ok && term.IsTerminal(int(f.Fd())) {
				return cli.Misuse(errors.New("standard output is a terminal, and a database is no text"), "tidewaiter backup FILE")
			}
			return backup.Stream(cmd.Context(), dataDir, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&dataDir, "data-dir", cli.DefaultDataDir, "data directory to copy the database of")
	return cmd
}

func newRestoreCommand() *cobra.Command {
	var dataDir string
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a data directory from a backup",
		Long: `Make a data directory from a backup. The directory must have no database, and no
server may hold it. A backup brings its role bindings: a file that another user
owns or can write is refused.

Whoever watched the server that was backed up is told to start again (410
Expired), rather than shown a past.`,
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

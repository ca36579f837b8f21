//go:build cgo

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tidewaiter/tidewaiter/cmd/internal/migration"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server"
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

func newMigrateCommand() *cobra.Command {
	m := &migration.Migration{}
	var to, from bool
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Move all objects to an etcd that several servers share, or back (experimental)",
		Long: `Move all objects to an etcd that several servers share, or back into a data
directory (experimental). Stop all servers first. The source stays as it is. Each
object is compared at the end. An interrupted run can be repeated.

Pushes that wait to be imported move, too; those that were given up are tried again.
Certificates and credentials do not: copy pki/ of the data directory. Clients that
watched get 410 Expired and list again.`,
		Example: `  # From one server to several: its data directory is only read
  tidewaiter migrate --to-etcd --data-dir ./tidewaiter-data --etcd-servers http://10.0.0.1:2379

  # Back into a new data directory, or that of a server that had a copy of etcd
  tidewaiter migrate --from-etcd --data-dir ./single --etcd-servers http://10.0.0.1:2379`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			m.Out = cmd.OutOrStdout()
			switch {
			case !to && !from:
				return cli.Misuse(errors.New("it is not said in which direction to migrate"), "--to-etcd or --from-etcd")
			case len(m.Etcd.Servers) == 0:
				return cli.Misuse(errors.New("it is not said where etcd is"), "--etcd-servers http://HOST:2379")
			case to:
				return m.ToEtcd(cmd.Context())
			}
			return m.FromEtcd(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.BoolVar(&to, "to-etcd", false, "copy a data directory to etcd, which has nothing else below --etcd-prefix")
	f.BoolVar(&from, "from-etcd", false, "copy what etcd has to a data directory that has no objects of its own")
	f.StringVar(&m.DataDir, "data-dir", cli.DefaultDataDir, "data directory to read, or to make")
	server.AddEtcdFlags(f, &m.Etcd)
	cmd.MarkFlagsMutuallyExclusive("to-etcd", "from-etcd")
	return cmd
}

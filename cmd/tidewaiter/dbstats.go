//go:build cgo

package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/etcd"
	"github.com/tidewaiter/tidewaiter/db/truth"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

func newDBCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "db",
		Short: "Look into a data directory's database",
		Example: `  tidewaiter db stats
  tidewaiter db check`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var dataDir string
	var output cli.Output
	var shared etcd.Options
	stats := &cobra.Command{
		Use:   "stats",
		Short: "Print objects, bytes and revisions of each resource, and how the file is used",
		Long: `Print objects, bytes and revisions of each resource, and how the file is used. A
server may hold the directory.`,
		Example: "  tidewaiter db stats\n  tidewaiter db stats -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := datafile.ReadStats(cmd.Context(), dataDir)
			if err != nil {
				return err
			}
			if output.ForPeople() {
				return printStats(cmd.OutOrStdout(), s)
			}
			return output.Print(cmd.OutOrStdout(), cli.Document{Whole: s})
		},
	}
	output.AddFlag(stats, "a table", "json", "yaml")
	check := &cobra.Command{
		Use:   "check",
		Short: "Look for damage in the database, or in an etcd that several servers share",
		Long: `Look for damage in the database: SQLite's integrity check of every page. It reads
the whole file, so it takes a while for a large one. A server may hold the
directory.

With --etcd-servers, it looks for values in etcd that no server can read, and reads no
data directory. Servers may run meanwhile.`,
		Example: "  tidewaiter db check\n  tidewaiter db check --etcd-servers http://10.0.0.1:2379",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(shared.Servers) > 0 {
				return checkEtcd(cmd, shared)
			}
			if err := datafile.Check(cmd.Context(), dataDir); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is sound\n", dataDir)
			return err
		},
	}
	for _, c := range []*cobra.Command{stats, check} {
		c.Flags().StringVar(&dataDir, "data-dir", cli.DefaultDataDir, "data directory to look into")
		cmd.AddCommand(c)
	}
	server.AddEtcdFlags(check.Flags(), &shared)
	check.MarkFlagsMutuallyExclusive("data-dir", "etcd-servers")
	return cmd
}

// checkEtcd looks for values that cannot be read in the etcd of several servers.
func checkEtcd(cmd *cobra.Command, o etcd.Options) error {
	store, err := etcd.New(o)
	if err != nil {
		return err
	}
	defer store.Close()
	asking, cancel := context.WithTimeout(cmd.Context(), etcdAnswers)
	defer cancel()
	if _, err := store.Identity(asking); err != nil {
		return fmt.Errorf("etcd does not answer: %w", err)
	}
	if err := store.Readable(asking); err != nil {
		return err
	}
	keys, err := truth.Check(cmd.Context(), store)
	if err != nil {
		return cli.WithHint(fmt.Errorf("read %s below %s in etcd: %w", table.Quantity(keys, "key"), o.Prefix, err), "write these values again, or delete them in etcd: docs/tasks/scale.md")
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "etcd holds %s below %s; all can be read\n", table.Quantity(keys, "key"), o.Prefix)
	return err
}

// etcdAnswers is how long etcd may take to answer at the beginning.
const etcdAnswers = 10 * time.Second

func printStats(out io.Writer, s datafile.Stats) error {
	w := printers.GetNewTabWriter(out)
	fmt.Fprintln(w, "RESOURCE\tOBJECTS\tBYTES\tREVISIONS")
	for _, r := range s.Resources {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", r.Prefix, r.Objects, r.Bytes, r.Revisions)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	oldest := "none"
	if s.Oldest > 0 {
		oldest = fmt.Sprintf("%d, of %s", s.Oldest, s.OldestAt.UTC().Format(time.RFC3339))
	}
	_, err := fmt.Fprintf(out, `
revision         %d
oldest revision  %s
listable from    %d
file             %d bytes, %d pages of %d, %d of them free
log (WAL)        %d bytes
`, s.Revision, oldest, s.Compacted, s.FileBytes, s.Pages, s.PageSize, s.FreePages, s.WALBytes)
	return err
}

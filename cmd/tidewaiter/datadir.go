//go:build cgo

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/controllers/reverify"
	tidewaiterserver "github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
	"github.com/tidewaiter/tidewaiter/web/filters"
)

// hasDataDirs is true: this build has SQLite, which is C, so it can open data directories.
const hasDataDirs = true

// newDataDirCommands returns the verbs that open a data directory.
func newDataDirCommands() []*cobra.Command {
	return []*cobra.Command{newServeCommand(), newDemoCommand(), newCredentialsCommand(), newBackupCommand(), newRestoreCommand(), newMigrateCommand(), newDBCommand(), newConfigCommand()}
}

// ownerConfig reaches the server that holds a data directory; nil if none does.
func ownerConfig(dataDir string) (*restclient.Config, error) {
	return tidewaiterserver.OwnerConfig(dataDir)
}

func (o *importOptions) directory() (target, error) {
	if _, err := os.Stat(filepath.Join(o.dataDir, datafile.FileName)); errors.Is(err, fs.ErrNotExist) && !o.create {
		if err := trusted.CheckDir(o.dataDir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, cli.WithHint(fmt.Errorf("there is nowhere to import into: %s is not a data directory, and no server is named", o.dataDir),
			"--server or --kubeconfig name a server, tidewaiter serve starts one, --create-data-dir makes a data directory")
	}
	return directoryTarget{tidewaiterserver.Options{
		DataDir: o.dataDir, ConfigFile: o.registries.configFile, Audit: filters.NewAuditOptions(auditLog(o.dataDir)),
	}}, nil
}

// directoryTarget is a data directory that no server holds. For the time of the import a server
// runs over it, without a port, so that the same rules apply.
type directoryTarget struct{ options tidewaiterserver.Options }

func (t directoryTarget) destination() string { return t.options.DataDir }
func (t directoryTarget) String() string {
	return fmt.Sprintf("%s (a data directory that no server holds)", t.options.DataDir)
}

func (t directoryTarget) use(ctx context.Context, do func(context.Context, destination) error) error {
	s, err := tidewaiterserver.Open(ctx, t.options, nil)
	if err != nil {
		return err
	}
	return s.RunLocally(ctx, func(ctx context.Context, c *restclient.Config) error {
		return apiTarget{Config: c}.use(ctx, do)
	})
}

// sweepDirectory judges the images of a data directory that no server holds.
func (o *verifyOptions) sweepDirectory(cmd *cobra.Command) error {
	if _, err := os.Stat(filepath.Join(o.dataDir, datafile.FileName)); err != nil {
		return cli.WithHint(err, "--data-dir names the directory of a server")
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "judging in %s (a data directory that no server holds)\n", o.dataDir)
	s, err := tidewaiterserver.Open(cmd.Context(), tidewaiterserver.Options{DataDir: o.dataDir, Policy: o.policy}, nil)
	if err != nil {
		return err
	}
	return s.RunLocally(cmd.Context(), func(ctx context.Context, _ *restclient.Config) error {
		swept := make(chan struct{})
		go func() {
			defer close(swept)
			_ = s.Sweeper.Sweep(ctx, true) // the progress has the error
		}()
		defer func() { <-swept }()
		return o.showSweep(cmd, o.dataDir, 1, func(context.Context) (reverify.Progress, error) { return s.Sweeper.Progress(), nil })
	})
}

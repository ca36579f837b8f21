//go:build !cgo

package main

import (
	"errors"

	"github.com/spf13/cobra"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	restclient "k8s.io/client-go/rest"
)

// hasDataDirs is false: this build lacks SQLite, which is C, so it cannot open data directories.
const hasDataDirs = false

var errNoDataDirs = cli.WithHint(errors.New("this build of tidewaiter is a client only: it has no SQLite, which is written in C"),
	"install a C compiler such as gcc and build with CGO_ENABLED=1, or name a running server with --server or --kubeconfig")

// newDataDirCommands returns verbs that say that they need another build.
func newDataDirCommands() []*cobra.Command {
	var all []*cobra.Command
	for _, name := range []string{"serve", "demo", "credentials", "backup", "restore", "migrate", "db", "config"} {
		all = append(all, &cobra.Command{
			Use: name, Short: "Not in this build, which is a client only", Hidden: true, DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error { return errNoDataDirs },
		})
	}
	return all
}

func ownerConfig(string) (*restclient.Config, error) { return nil, nil }

func (o *importOptions) directory() (target, error) { return nil, errNoDataDirs }

func (o *verifyOptions) sweepDirectory(*cobra.Command) error { return errNoDataDirs }

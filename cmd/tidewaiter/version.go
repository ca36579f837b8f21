package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/tidewaiter/tidewaiter/cmd/internal/version"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  tidewaiter version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "tidewaiter %s (%s, %s/%s)\n", version.Build(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

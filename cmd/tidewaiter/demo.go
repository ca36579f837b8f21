package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"github.com/tidewaiter/tidewaiter/cmd/internal/demo"
)

func newDemoCommand() *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show it all: a throw-away registry, a server, pushes",
		Long: `Show it all, with nothing but this binary and no network: start a registry and a
server, both on loopback and on free ports, push a few images, signed, unsigned
and tampered with, and print what kubectl would. The registry tells the server of
each push by webhook. Both then run until interrupted, for you to try things;
everything they made is removed when they stop.`,
		Example: `  tidewaiter demo

  # Leave once it has been shown
  tidewaiter demo --once`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			dir, err := os.MkdirTemp("", "tidewaiter-demo-")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			return demo.Run(cmd.Context(), dir, once, cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "leave once it has been shown")
	return cmd
}

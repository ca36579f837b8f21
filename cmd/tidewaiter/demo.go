//go:build cgo

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
		Short: "Demonstrate everything with a throw-away registry and server",
		Long: `Demonstrate everything with this binary alone and no network: start a registry and a
server, both on loopback and on free ports, push a few images, signed, unsigned
and tampered with, and print what kubectl would. The registry tells the server of
each push by webhook. Both then run until interrupted, for you to try things;
everything they made is removed when they stop.`,
		Example: `  tidewaiter demo

  # Exit when the demonstration is over
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
	cmd.Flags().BoolVar(&once, "once", false, "exit when the demonstration is over")
	return cmd
}

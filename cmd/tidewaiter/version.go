package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// version is the release, set by the linker (-X main.version=…). Builds without
// it say which commit they are of.
var version = ""

// buildVersion is the release, the version that `go install` was given, or, for a
// build from a checkout, "0.0.0-dev" and the commit.
func buildVersion() string {
	if version != "" {
		return version
	}
	const dev = "0.0.0-dev"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return dev
	}
	var commit, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			commit = "." + s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = ".dirty"
		}
	}
	if installed := info.Main.Version; commit == "" && installed != "" && installed != "(devel)" {
		return strings.TrimPrefix(installed, "v")
	}
	return dev + commit + dirty
}

// userAgent is the name in requests to registries and API servers.
func userAgent() string { return "tidewaiter/" + buildVersion() }

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  tidewaiter version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "tidewaiter %s (%s, %s/%s)\n", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

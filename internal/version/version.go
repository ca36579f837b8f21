// Package version tells which release this program is.
package version

import (
	"runtime/debug"
	"strings"
)

// release is set by the linker, see deploy/static. Builds without it say which commit they are of.
var release = ""

// Build is the release, the version that `go install` was given, or, for a
// build from a checkout, "0.0.0-dev" and the commit.
func Build() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return built(info)
	}
	return dev
}

const dev = "0.0.0-dev"

// built is what Go has written into a program that is not a release.
func built(info *debug.BuildInfo) string {
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

// UserAgent is the name in requests to registries and API servers.
func UserAgent() string { return "tidewaiter/" + Build() }

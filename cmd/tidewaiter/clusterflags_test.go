package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// A flag that would do nothing is refused, and so is a cluster that cannot be reached by what is
// given.
func TestServeClusterRefusesFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--client-ca-file has no effect with --cluster":     {"--cluster", "--client-ca-file", "ca.crt"},
		"--authorization-mode has no effect with --cluster": {"--cluster", "--authorization-mode", "RBAC"},
		"the server does not run in a pod":                  {"--cluster"},
		"--cluster-kubeconfig: ":                            {"--cluster", "--cluster-kubeconfig", filepath.Join(t.TempDir(), "none")},
	} {
		var out, errs bytes.Buffer
		args = append([]string{"serve", "--secure-port", "0", "--data-dir", filepath.Join(t.TempDir(), "data")}, args...)
		if code := run(t.Context(), args, nil, &out, &errs); code == cli.ExitOK || !strings.Contains(errs.String(), want) {
			t.Errorf("%v: code %d, %q, want %q", args, code, errs.String(), want)
		}
	}
}

// Package servertest helps tests of servers.
package servertest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// WriteConfig writes a configuration into a folder of the test, and returns its path.
func WriteConfig(t testing.TB, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Eventually waits for a condition; the deadline measures nothing.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 3*time.Minute, true, func(context.Context) (bool, error) { return condition(), nil }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

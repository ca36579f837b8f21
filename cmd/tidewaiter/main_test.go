package main

import (
	"context"
	"errors"
	"io"
	"log"
	"os"
	"runtime/debug"
	"testing"

	"github.com/tidewaiter/tidewaiter/internal/cli"
)

// serveEnv makes this test binary the tidewaiter command.
const serveEnv = "TIDEWAITER_TEST_COMMAND"

// TestMain sets up the process as main does.
func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		os.Exit(profiled(command))
	}
	if role := os.Getenv(bulkEnv); role != "" {
		if err := bulkMain(role); err != nil {
			log.Fatal(err)
		}
		os.Exit(0)
	}
	// Most tests start a server, whose garbage takes a sixth of their time to collect.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(1 << 30) // bytes; near them it is collected more often
	cli.SetUpProcess(context.Background())
	// Tests run side by side: no verb asks the cluster of whoever runs them, and none has the log
	// for itself.
	if err := errors.Join(os.Setenv("KUBECONFIG", ""), setUpLogging(io.Discard, 0, logText)); err != nil {
		log.Fatal(err)
	}
	os.Exit(m.Run())
}

// oneCaller skips a slow test under the race detector, whose one caller asks again only when it has
// an answer. What the server does meanwhile, it does under shorter tests, too.
func oneCaller(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("slow, and nobody calls at the same time")
	}
}

package main

import (
	"context"
	"os"
	"testing"
)

// serveEnv makes this test binary the tidewaiter command.
const serveEnv = "TIDEWAITER_TEST_COMMAND"

// TestMain sets up the process as main does.
func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		main()
	}
	setUpProcess(context.Background())
	os.Exit(m.Run())
}

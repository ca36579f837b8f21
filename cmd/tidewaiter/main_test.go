package main

import (
	"context"
	"log"
	"os"
	"testing"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
)

// serveEnv makes this test binary the tidewaiter command.
const serveEnv = "TIDEWAITER_TEST_COMMAND"

// TestMain sets up the process as main does.
func TestMain(m *testing.M) {
	if os.Getenv(serveEnv) != "" {
		main()
	}
	if role := os.Getenv(bulkEnv); role != "" {
		if err := bulkMain(role); err != nil {
			log.Fatal(err)
		}
		os.Exit(0)
	}
	cli.SetUpProcess(context.Background())
	os.Exit(m.Run())
}

// Command tidewaiter keeps the papers of container images: what is in them, who
// signed them and where they run, behind a Kubernetes API in one SQLite file.
//
// Each verb has a file of its own here; server.go is where the packages meet.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
)

func main() {
	// The first signal asks a verb to finish what it does and leave; a second
	// one ends the process at once, because by then the handler is gone.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	cli.SetUpProcess(ctx)
	os.Exit(run(ctx, commandLine(os.Args), os.Stdin, os.Stdout, os.Stderr))
}

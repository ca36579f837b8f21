// Command tidewaiter keeps the papers of container images: what is in them, who
// signed them and where they run, behind a Kubernetes API in one SQLite file.
//
// Each verb has a file here. Package internal/server assembles the server from the other rooms.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/tidewaiter/tidewaiter/internal/cli"
)

func main() {
	os.Exit(command())
}

// command runs the command line of this process, and returns its exit code.
func command() int {
	// The first signal asks a verb to finish what it does and leave; a second
	// one ends the process at once, because by then the handler is gone.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	cli.SetUpProcess(ctx)
	limitMemory(memlimit.FromCgroup)
	return run(ctx, commandLine(os.Args), os.Stdin, os.Stdout, os.Stderr)
}

// limitMemory sets GOMEMLIMIT to most of a limit, unless the environment has it. Without it the
// garbage of a busy moment can take the process over the limit of its container.
func limitMemory(limit memlimit.Provider) {
	if _, err := memlimit.Set(memlimit.WithProvider(limit)); err != nil {
		slog.Warn("The memory limit of the container is not known, so garbage may take the process over it; set GOMEMLIMIT", "err", err)
	}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	tidewaiterserver "github.com/tidewaiter/tidewaiter/cmd/internal/server"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/signatures/reverify"
	"github.com/tidewaiter/tidewaiter/web/admin"
)

// pollInterval is the time between two requests for a server's progress.
const pollInterval = 200 * time.Millisecond

// sweep has a server judge all its images again. If no server holds the data directory
// and there are policies, it judges those of the directory.
func (o *verifyOptions) sweep(cmd *cobra.Command) error {
	if o.policy != "" {
		_, found, err := o.server(cmd)
		switch {
		case err != nil:
			return err
		case found:
			return cli.Misuse(errors.New("a server judges by the policies it was started with, not by --policy"), "tidewaiter verify --all")
		}
		return o.sweepDirectory(cmd)
	}
	client, server, err := o.plainClient(cmd)
	if err != nil {
		return err
	}
	asked, err := askVerification(cmd.Context(), client.Post())
	if err != nil {
		return err
	}
	return o.follow(cmd, server.destination(), asked.Sweep, func(ctx context.Context) (reverify.Progress, error) {
		return askVerification(ctx, client.Get())
	})
}

func (o *verifyOptions) sweepDirectory(cmd *cobra.Command) error {
	if _, err := os.Stat(filepath.Join(o.dataDir, datafile.FileName)); err != nil {
		return cli.WithHint(err, "--data-dir names the directory of a server")
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "judging in %s (a data directory that no server holds)\n", o.dataDir)
	s, err := tidewaiterserver.Open(cmd.Context(), tidewaiterserver.Options{DataDir: o.dataDir, Policy: o.policy}, nil)
	if err != nil {
		return err
	}
	return s.RunLocally(cmd.Context(), func(ctx context.Context, _ *restclient.Config) error {
		swept := make(chan struct{})
		go func() {
			defer close(swept)
			_ = s.Verification.Sweeper.Sweep(ctx, true) // the progress has the error
		}()
		defer func() { <-swept }()
		return o.follow(cmd, o.dataDir, 1, func(context.Context) (reverify.Progress, error) { return s.Verification.Sweeper.Progress(), nil })
	})
}

// follow shows the progress of a sweep until it ends, and reports its result.
func (o *verifyOptions) follow(cmd *cobra.Command, destination string, sweep int64, ask func(context.Context) (reverify.Progress, error)) error {
	line := bulk.NewProgress(cmd.ErrOrStderr())
	defer line.End()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		p, err := ask(cmd.Context())
		if err != nil {
			return err
		}
		if p.Sweep >= sweep && !p.Running {
			line.End()
			return o.finish(cmd, destination, p)
		}
		if p.Sweep >= sweep {
			line.Show(fmt.Sprintf("%d of %d images judged, %d verdicts changed", p.Examined, p.Total, p.Changed))
		}
		select {
		case <-cmd.Context().Done():
			return fmt.Errorf("interrupted; the server goes on: %w", context.Cause(cmd.Context()))
		case <-tick.C:
		}
	}
}

// progressAt is what -o json prints: the progress, and where.
type progressAt struct {
	reverify.Progress
	Destination string `json:"destination"`
}

func (o *verifyOptions) finish(cmd *cobra.Command, destination string, p reverify.Progress) error {
	if !o.output.ForPeople() {
		if err := o.output.Print(cmd.OutOrStdout(), cli.Document{Whole: progressAt{p, destination}}); err != nil {
			return err
		}
	} else {
		var counts []string
		for _, verdict := range knownVerdicts {
			counts = append(counts, fmt.Sprintf("%d %s", p.Verified[verdict], verdict))
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%d images: %s; %d verdicts changed\n", p.Examined, strings.Join(counts, ", "), p.Changed)
	}
	if p.Error != "" {
		return errors.New(p.Error)
	}
	return nil
}

func askVerification(ctx context.Context, request *restclient.Request) (p reverify.Progress, err error) {
	body, err := request.AbsPath(admin.VerificationPath).DoRaw(ctx)
	if err != nil {
		return p, fmt.Errorf("asking the server: %w", cli.StatusOf(body, err))
	}
	return p, json.Unmarshal(body, &p)
}

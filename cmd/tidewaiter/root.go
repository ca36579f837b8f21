package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/tidewaiter/tidewaiter/imageapi/printable"
)

// Exit codes of every verb. Verbs that handle several things use exitSome when
// only some of them failed.
const (
	exitOK    = 0
	exitSome  = 1
	exitNone  = 2
	exitUsage = 2
)

// exitError ends the process with a code. Its error, if any, is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// hintError adds to an error what to do next.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() }
func (e *hintError) Unwrap() error { return e.err }

// withHint adds to err what to do about it.
func withHint(err error, format string, args ...any) error {
	return &hintError{err: err, hint: fmt.Sprintf(format, args...)}
}

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var exit *exitError
	if !errors.As(err, &exit) {
		exit = &exitError{code: exitNone, err: err}
	}
	if exit.err != nil {
		fmt.Fprintf(stderr, "error: %s\n", printable.Text(exit.err.Error()))
		var hint *hintError
		if errors.As(exit.err, &hint) {
			fmt.Fprintf(stderr, "hint: %s\n", hint.hint)
		}
	}
	return exit.code
}

func newRootCommand() *cobra.Command {
	var verbosity int
	root := &cobra.Command{
		Use:   "tidewaiter",
		Short: "What is in these images, who signed them, where do they run",
		Long: `Tidewaiter reads images from OCI registries, keeps them as image.openshift.io/v1
Images in one SQLite file, and answers kubectl and oc about them.`,
		Example: `  # See it work, with nothing but this binary
  tidewaiter demo

  # Serve a data directory, import an image into it, ask about it
  tidewaiter serve --data-dir ./tidewaiter-data &
  tidewaiter import registry.example.com/team/app:v1
  tidewaiter describe registry.example.com/team/app:v1
  kubectl --kubeconfig ./tidewaiter-data/admin.kubeconfig get images`,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return setUpLogging(cmd.ErrOrStderr(), verbosity)
		},
	}
	root.PersistentFlags().IntVarP(&verbosity, "v", "v", 0, "how much to log, to standard error: 0 warnings, 1 progress, up to 10 for all")
	root.SetFlagErrorFunc(explainFlagError)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newServeCommand(), newImportCommand(), newVerifyCommand(), newGetCommand(), newDescribeCommand(), newHistoryCommand(), newDiffCommand(), newPruneCommand(), newDemoCommand(), newPodsCommand(), newSpoolCommand(), newCredentialsCommand(),
		newBackupCommand(), newRestoreCommand(), newDBCommand(), newVersionCommand())
	return root
}

// setUpLogging sends the logs of every package, Kubernetes' included, to w:
// warnings and worse at verbosity 0, klog's V(n) from verbosity n on.
func setUpLogging(w io.Writer, verbosity int) error {
	level := slog.LevelWarn
	if verbosity > 0 {
		// klog maps V(n) to slog's level -n, and has a gate of its own.
		level = slog.Level(-verbosity)
		flags := flag.NewFlagSet("klog", flag.ContinueOnError)
		klog.InitFlags(flags)
		if err := flags.Set("v", strconv.Itoa(verbosity)); err != nil {
			return err
		}
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})))
	return nil
}

// explainFlagError adds a corrected command to pflag's error.
func explainFlagError(cmd *cobra.Command, err error) error {
	usage := func(hint string, args ...any) error {
		return &exitError{code: exitUsage, err: withHint(err, hint, args...)}
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		if near := nearestFlag(cmd, unknown.GetSpecifiedName()); near != "" {
			return usage("did you mean --%s? Try: %s --%s …", near, cmd.CommandPath(), near)
		}
	}
	return usage("%s --help lists the flags", cmd.CommandPath())
}

// nearestFlag returns the flag of cmd that name was probably meant to be, or "". It uses
// Cobra's suggestions for misspelt commands.
func nearestFlag(cmd *cobra.Command, name string) string {
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		names.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	if s := names.SuggestionsFor(strings.TrimLeft(name, "-")); len(s) > 0 {
		return s[0]
	}
	return ""
}

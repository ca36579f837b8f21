package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/nearest"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/version"
)

// run carries out one command line and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	cli.Completing.Store(cli.Completes(args))
	return execute(ctx, newRootCommand(), args, stdin, stdout, stderr)
}

// execute has a root command carry out one command line and returns the exit code.
func execute(ctx context.Context, root *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return explainFlagError(cmd, args, err) })
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return cli.ExitOK
	}
	var exit *cli.Exit
	if !errors.As(err, &exit) {
		exit = &cli.Exit{Code: cli.ExitNone, Err: err}
	}
	if exit.Err != nil {
		text, hint := cli.Explain(cmd.Name(), exit.Err)
		hint = cli.KeepFlags(cmd, hint)
		if number := wrongNumber.FindStringSubmatch(text); number != nil {
			text, hint = fmt.Sprintf("%s %s", cmd.CommandPath(), numberOfArguments(number[1], number[2])), "usage: "+cmd.UseLine()
		} else if group := together.FindStringSubmatch(text); group != nil {
			text, hint = "--"+strings.ReplaceAll(group[1], " ", " and --")+" exclude each other", "give one of them"
		}
		fmt.Fprintf(stderr, "error: %s\n", printable.Text(text))
		if hint != "" {
			fmt.Fprintf(stderr, "hint: %s\n", hint)
		}
	}
	return exit.Code
}

// Cobra's errors about the number of arguments, with the bound and the given number, and about
// flags that exclude each other.
var (
	wrongNumber = regexp.MustCompile(`^(?:accepts|accepts at most|accepts between|requires at least) (\d+)(?: and \d+)? arg\(s\), (?:only )?received (\d+)$`)
	together    = regexp.MustCompile(`^if any flags in the group .* none of the others can be; \[(.*)\] were all set$`)
)

// numberOfArguments says what is wrong with the number of arguments.
func numberOfArguments(bound, given string) string {
	most, _ := strconv.Atoi(bound) // both are digits
	n, _ := strconv.Atoi(given)
	switch {
	case n == 0:
		return "needs an argument"
	case n < most:
		return "needs more arguments"
	}
	return "takes fewer arguments"
}

func newRootCommand() *cobra.Command {
	var verbosity int
	var format string
	root := &cobra.Command{
		Use:   "tidewaiter",
		Short: "What is in these images, who signed them, where do they run",
		Long: `Tidewaiter reads images from OCI registries, keeps them as image.openshift.io/v1
Images in one SQLite file, and answers kubectl and oc about them.`,
		Example: `  # See it work with this binary alone
  tidewaiter demo

  # Serve a data directory, import an image into it, ask about it
  tidewaiter serve --data-dir ./tidewaiter-data &
  tidewaiter import registry.example.com/team/app:v1
  tidewaiter describe registry.example.com/team/app:v1
  kubectl --kubeconfig ./tidewaiter-data/admin.kubeconfig get images

  # Complete verbs, references and flag values in the shell
  source <(tidewaiter completion bash)`,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: calledAs(os.Args[0])},
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			return setUpLogging(cmd.ErrOrStderr(), verbosity, format)
		},
	}
	root.PersistentFlags().IntVarP(&verbosity, "v", "v", 0, "log level, to standard error: 0 warnings, 1 progress, up to 10 for everything")
	// kube-apiserver's name, and the one that many other programs have.
	root.PersistentFlags().StringVar(&format, "logging-format", logText, "format of the log: text, or json with an object on each line")
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "log-format" {
			name = "logging-format"
		}
		return pflag.NormalizedName(name)
	})
	cli.Complete(root, "logging-format", logText, logJSON)
	root.AddCommand(newDataDirCommands()...)
	root.AddCommand(newImportCommand(), newVerifyCommand(), newGetCommand(), newDescribeCommand(), newHistoryCommand(), newAcceptCommand(), newDiffCommand(), newPruneCommand(), newPodsCommand(), newImagesCommand(), newFollowCommand(), newRanCommand(), newChangesCommand(), newReportCommand(), newImpactCommand(), newExplainCommand(), newPolicyCommand(), newConsoleCommand(), newSpoolCommand(), newVersionCommand())
	group(root)
	return root
}

// pluginOf is the name of kubectl's plugin that a program is by its path, such as tidewaiter for
// kubectl-tidewaiter; "" if it is none.
func pluginOf(path string) string {
	plugin, ok := strings.CutPrefix(strings.TrimSuffix(filepath.Base(path), ".exe"), "kubectl-")
	if !ok {
		return ""
	}
	return strings.ReplaceAll(plugin, "_", "-")
}

// calledAs is how people call the program by its path.
func calledAs(path string) string {
	switch plugin := pluginOf(path); plugin {
	case "":
		return "tidewaiter"
	case imagesVerb: // the verb is a plugin of its own
		return "kubectl"
	default:
		return "kubectl " + plugin
	}
}

// commandLine returns the arguments of the process. If kubectl runs it as the plugin
// kubectl-images, it adds the verb images. To complete words in a shell, kubectl runs
// kubectl_complete-images.
func commandLine(process []string) []string {
	name, completes := strings.CutPrefix(filepath.Base(process[0]), "kubectl_complete-")
	args := process[1:]
	if pluginOf(process[0]) == imagesVerb || completes && strings.TrimSuffix(name, ".exe") == imagesVerb {
		args = append([]string{imagesVerb}, args...)
	}
	if completes {
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	return args
}

// Formats of the log.
const (
	logText = "text"
	logJSON = "json"
)

// setUpLogging sends the logs of every package, Kubernetes' included, to w in a format:
// warnings and worse at verbosity 0, klog's V(n) from verbosity n on.
func setUpLogging(w io.Writer, verbosity int, format string) error {
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
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler
	switch format {
	case logText:
		handler = slog.NewTextHandler(w, options)
	case logJSON:
		handler = slog.NewJSONHandler(w, options)
	default:
		return cli.Misuse(fmt.Errorf("--logging-format %q is neither %s nor %s", format, logText, logJSON), "--logging-format %s", logJSON)
	}
	slog.SetDefault(slog.New(cli.LogHandler{Handler: handler, Quiet: verbosity == 0}))
	return nil
}

// explainFlagError adds a corrected command to pflag's error: the one that was given, with the flag
// that was meant.
func explainFlagError(cmd *cobra.Command, args []string, err error) error {
	usage := func(hint string, args ...any) error {
		return &cli.Exit{Code: cli.ExitUsage, Err: cli.WithHint(err, hint, args...)}
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name := unknown.GetSpecifiedName()
		if near := nearestFlag(cmd, name); near != "" {
			return usage("did you mean --%s? Try: %s", near, corrected(args, name, near))
		}
	}
	if without, ok := errors.AsType[*pflag.ValueRequiredError](err); ok && without.GetFlag() != nil {
		f := without.GetFlag()
		err = fmt.Errorf("--%s needs a value", f.Name)
		return usage("--%s: %s", f.Name, f.Usage)
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		f := invalid.GetFlag()
		if _, ok := f.Value.(*cli.Output); ok {
			err = fmt.Errorf("-o %s is not known", invalid.GetValue())
			return usage("%v", invalid.Unwrap())
		}
		err = fmt.Errorf("--%s %q is not %s", f.Name, invalid.GetValue(), typeWords(f.Value.Type()))
		return usage("--%s: %s", f.Name, f.Usage)
	}
	return usage("%s --help lists the flags", cmd.CommandPath())
}

// typeWords says what a flag of a type takes.
func typeWords(flagType string) string {
	switch {
	case strings.HasPrefix(flagType, "int"), strings.HasPrefix(flagType, "uint"):
		return "a whole number"
	case strings.HasPrefix(flagType, "float"):
		return "a number"
	case flagType == "bool":
		return "true or false"
	case flagType == "duration":
		return "a duration, such as 90s, 10m or 6h"
	}
	return "a " + flagType
}

// corrected is a command line with a flag under another name. It shows no secrets.
func corrected(args []string, wrong, right string) string {
	line, hide := []string{"tidewaiter"}, false
	for _, arg := range args {
		flag, value, hasValue := strings.Cut(arg, "=")
		if strings.TrimLeft(flag, "-") == wrong && strings.HasPrefix(flag, "--") {
			flag = "--" + right
		}
		secret := flag == "--token" || flag == "--creds"
		switch {
		case hide, secret && hasValue:
			value = "…"
		}
		switch {
		case hide:
			arg = "…"
		case hasValue:
			arg = flag + "=" + value
		default:
			arg = flag
		}
		hide = secret && !hasValue
		line = append(line, cli.Quote(arg))
	}
	return strings.Join(line, " ")
}

// nearestFlag returns the flag of cmd that a name was probably meant to be: the shortest that
// begins so, or the nearest; "" if none is near. A single letter is near to nothing.
func nearestFlag(cmd *cobra.Command, name string) string {
	if len(name) < 2 {
		return ""
	}
	var names []string
	begins := ""
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		names = append(names, f.Name)
		if strings.HasPrefix(f.Name, strings.ToLower(name)) && (begins == "" || len(f.Name) < len(begins)) {
			begins = f.Name
		}
	})
	if begins != "" {
		return begins
	}
	return nearest.Likely(name, names)
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  tidewaiter version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "tidewaiter %s (%s, %s/%s)\n", version.Build(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	"k8s.io/client-go/metadata"

	"github.com/tidewaiter/tidewaiter/cmd/internal/registryplan"
	"github.com/tidewaiter/tidewaiter/imageapi/prune"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// knownVerdicts are those that an image can have.
var knownVerdicts = []string{verdicts.VerifiedTrue, verdicts.ByIndex, verdicts.VerifiedFalse, verdicts.VerifiedUnknown, verdicts.Unsigned, verdicts.NoPolicy, verdicts.Excepted}

const (
	pruneRow = "%-19s   %-8s   %-20s   %s\n"
	pruneWhy = cli.MaxWidth - 56 // characters; a longer text is printed below
)

type pruneOptions struct {
	clientOptions
	prune.Options
	kept           bool
	plan, commands string
	output         cli.Output
}

func newPruneCommand() *cobra.Command {
	o := &pruneOptions{}
	cmd := &cobra.Command{
		Use:   "prune [--plan registry HOST[/PATH]]",
		Short: "Delete images that nothing needs, after a grace period in which one command undoes it",
		Long: `Delete images that no tag leads to, no pod uses, no workload needs, and no remaining
index lists. A workload creates pods, whether any run now or not: a Deployment with
zero replicas, the ReplicaSet that it may be rolled back to, a CronJob.

Without --confirm, prune only shows what it would change. With it, prune marks images
that nothing needs (the annotation tidewaiter.dev/prune-after), and a later run deletes
those whose --grace is over and that nothing has needed since. So run it daily. Until
an image is deleted, --undo removes the marks. Registries are not touched, so a deleted
image can be imported again as long as its registry has it.

Prune keeps an image if
  - it has the annotation tidewaiter.dev/prune: disabled,
  - it is younger than --keep-younger-than,
  - its verdict in one of its repositories is not one of --verdict,
  - it is one of the last --keep-tag-revisions images that a tag has led to,
  - the server would not delete it: a tag leads to it, pods use it, workloads need it, or
    one of these is unknown (with --without-workloads the workloads may be unknown, with
    --without-clusters what runs may be, where the server follows no cluster),
  - an index that is not marked lists it: an index is deleted before what it lists.

With --plan registry, prune changes nothing here, and prints what a registry, or the part
of it below a path, may delete and must keep by the same rules, but for --grace: what runs
anywhere, what tags lead to or led to lately, what indexes list, signatures. --commands
prints commands of crane, regctl or for Harbor's API that delete it, for you to read and
run. What is in the registry and was never imported is not known, and is in no command.

-o name prints the images that are marked or deleted, or would be; with --kept, all.

The exit code is 0 if everything was decided and done, 1 if some images were kept
because it is unknown whether they are needed, or could not be changed, and 2 if
nothing could be done.`,
		Example: `  # Show what would be deleted, and why
  tidewaiter prune

  # Mark what nothing needs; delete what was marked a day ago and is still not needed
  tidewaiter prune --confirm

  # Only unsigned images; keep ten images of each tag, and all of the last 30 days
  tidewaiter prune --verdict Unsigned,NoPolicy --keep-tag-revisions 10 --keep-younger-than 720h --confirm

  # Undo
  tidewaiter prune --undo --confirm

  # What may a registry delete?
  tidewaiter prune --plan registry registry.example.com --commands crane >delete.sh

  # Each decision, including images that are kept, for programs
  tidewaiter prune --kept -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmp.Or(checkGiven(cmd, "verdict", o.Verdicts), o.check(args)); err != nil {
				return err
			}
			l, err := o.looker(cmd)
			if err != nil {
				return err
			}
			images, err := metadata.NewForConfig(l.Config)
			if err != nil {
				return err
			}
			p := prune.New(o.Options, images.Resource(imagev1.GroupVersion.WithResource("images")), l.client, l.ask)
			if o.plan != "" {
				err = o.printPlan(cmd.Context(), cmd.OutOrStdout(), p, args[0])
			} else {
				err = o.run(cmd.Context(), cmd.OutOrStdout(), p)
			}
			if errors.Is(err, prune.ErrUnfollowed) {
				return cli.WithHint(err, "tidewaiter follow CONTEXT names a cluster in the server's configuration; set ownPodsOnly: true there if no cluster runs its images; --without-clusters prunes once by tags and its own pods alone")
			} else if err != nil {
				return err
			}
			if !o.Confirm && o.plan == "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "nothing was changed; to apply this, add --confirm")
			}
			if n := p.Undecided(); n > 0 {
				return &cli.Exit{Code: cli.ExitSome, Err: fmt.Errorf("%s could not be changed, or may be needed", tablecells.Quantity(n, "image"))}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.Confirm, "confirm", false, "apply the changes instead of only showing them")
	f.IntVar(&o.Revisions, "keep-tag-revisions", 3, "keep the last N images of each tag that its registry still has")
	f.DurationVar(&o.Younger, "keep-younger-than", time.Hour, "keep images that are younger than this")
	f.StringSliceVar(&o.Verdicts, "verdict", nil, "only images with one of these verdicts in every one of their repositories: True, ByIndex, False, Unknown, Unsigned (a policy demands a signature), NoPolicy, Excepted (default: any)")
	f.DurationVar(&o.Grace, "grace", 24*time.Hour, "time between marking an image and deleting it, in which --undo works")
	f.BoolVar(&o.Undo, "undo", false, "remove the marks, and delete nothing")
	f.BoolVar(&o.WithoutWorkloads, "without-workloads", false, "delete even if it is unknown what workloads need: then only pods and tags keep images")
	f.BoolVar(&o.WithoutClusters, "without-clusters", false, "delete even if the server follows no cluster, so that it is unknown what runs: then only tags and the server's own pods keep images")
	f.BoolVar(&o.kept, "kept", false, "also list the images that are kept")
	f.StringVar(&o.plan, "plan", "", "registry: print what a registry may delete and must keep, and change nothing")
	f.StringVar(&o.commands, "commands", "", "with --plan: print commands that delete, of crane, regctl or harbor (curl)")
	o.output.AddFlag(cmd, "a table", cli.ListFormats...)
	cli.Complete(cmd, "plan", planRegistry)
	cli.Complete(cmd, "commands", registryplan.Formats...)
	cli.Complete(cmd, "verdict", knownVerdicts...)
	o.addFlags(cmd)
	return cmd
}

const planRegistry = "registry"

// check checks the flags and the arguments together.
func (o *pruneOptions) check(args []string) error {
	const hint = "tidewaiter prune --plan registry registry.example.com --commands crane"
	switch format := o.output.String(); {
	case o.plan != "" && (o.plan != planRegistry || len(args) == 0):
		return cli.Misuse(errors.New("--plan registry needs the name of a registry"), hint)
	case o.plan == "" && (len(args) > 0 || o.commands != ""):
		return cli.Misuse(errors.New("the name of a registry, and --commands, are for --plan registry"), hint)
	case o.plan != "" && (o.Confirm || o.Undo || format == "name" || format == "jsonl"):
		return cli.Misuse(errors.New("--plan changes nothing, so it goes with neither --confirm nor --undo; it prints json and yaml"), hint)
	case o.plan != "" && o.kept:
		return cli.Misuse(errors.New("--plan shows how much is kept, and -o json each image with its reason"), "leave --kept out")
	case o.commands != "" && format != "":
		return cli.Misuse(errors.New("--commands prints commands, and -o a document"), "give one of them")
	case o.commands != "" && !slices.Contains(registryplan.Formats, o.commands):
		return cli.Misuse(fmt.Errorf("--commands %s is not known", o.commands), "it is one of %s", strings.Join(registryplan.Formats, ", "))
	}
	if o.Revisions < 0 || o.Younger < 0 || o.Grace < 0 {
		return cli.Misuse(errors.New("--keep-tag-revisions, --keep-younger-than and --grace cannot be negative"), "0 turns the rule off")
	}
	for _, verdict := range o.Verdicts {
		if !slices.Contains(knownVerdicts, verdict) {
			return cli.Misuse(fmt.Errorf("--verdict %s is not known", verdict), "it is one of %s", strings.Join(knownVerdicts, ", "))
		}
	}
	return nil
}

// run prunes, and writes the decisions to out as they are made.
func (o *pruneOptions) run(ctx context.Context, out io.Writer, p *prune.Pruner) error {
	report, end := o.printTo(out, p)
	err := p.Run(ctx, func(d prune.Decision) error {
		isNeeded := d.Decision == prune.Keep || d.Decision == prune.Unmark && !o.Undo
		switch {
		case o.kept:
		case d.Decision == prune.Keep && !d.IsUnknown():
			return nil
		case isNeeded && o.output.String() == "name":
			return nil // programs delete by these names
		}
		return report(d)
	})
	if errors.Is(err, prune.ErrUnfollowed) && !o.output.ForPeople() {
		return errors.Join(err, end()) // programs read to the end
	}
	if err != nil {
		return err
	}
	return end()
}

// printPlan prints what a registry, or a part of it, may delete.
func (o *pruneOptions) printPlan(ctx context.Context, out io.Writer, p *prune.Pruner, where string) error {
	host, path, _ := strings.Cut(strings.TrimSuffix(where, "/"), "/")
	host, err := reference.ParseHost(host)
	if err != nil {
		return cli.Misuse(err, "tidewaiter prune --plan registry registry.example.com/team")
	}
	plan, err := p.Plan(ctx, reference.Reference{Host: host, Repository: path})
	switch {
	case err != nil:
		return err
	case o.commands != "":
		err = registryplan.Commands(plan, out, o.commands)
	case !o.output.ForPeople():
		err = o.output.Print(out, cli.Document{Whole: plan})
	default:
		err = registryplan.Print(plan, out)
	}
	if err == nil && len(plan.Repositories) == 0 {
		err = &cli.Exit{Code: cli.ExitSome, Err: cli.WithHint(fmt.Errorf("no image of %s is known, so it is unknown what it may delete", plan.Registry),
			"is it the host, with the port, that references have? If so: tidewaiter import --catalog %s", host)}
	}
	return err
}

// printTo returns what writes decisions to out. end finishes the output.
func (o *pruneOptions) printTo(out io.Writer, p *prune.Pruner) (report func(prune.Decision) error, end func() error) {
	switch o.output.String() {
	case "name":
		report = func(d prune.Decision) error {
			return o.output.Print(out, cli.Document{Names: []string{imageName(d.Image)}})
		}
		return report, func() error { return nil }
	case "jsonl":
		report = func(d prune.Decision) error { return o.output.Print(out, cli.Document{Items: []any{d}}) }
		return report, func() error { return o.output.Print(out, cli.Document{Items: []any{o.ended(p)}}) }
	case "yaml":
		begun := false
		report = func(d prune.Decision) error {
			if !begun {
				begun = true
				fmt.Fprintln(out, "images:")
			}
			return o.output.Print(out, cli.Document{Whole: []prune.Decision{d}})
		}
		return report, func() error {
			if !begun {
				fmt.Fprintln(out, "images: []")
			}
			return o.output.Print(out, cli.Document{Whole: o.ended(p)})
		}
	case "json":
		separator := `{"images":[`
		report = func(d prune.Decision) error {
			b, err := json.Marshal(d)
			if err == nil {
				_, err = fmt.Fprintf(out, "%s\n  %s", separator, b)
			}
			separator = ","
			return err
		}
		return report, func() error {
			if separator != "," {
				fmt.Fprint(out, separator)
			}
			b, err := json.Marshal(o.ended(p))
			if err == nil {
				_, err = fmt.Fprintf(out, "\n],%s\n", b[1:])
			}
			return err
		}
	}
	begun := false
	report = func(d prune.Decision) error {
		if !begun {
			begun = true
			fmt.Fprintf(out, pruneRow, "IMAGE", "DECISION", "AFTER", "WHY")
		}
		after := "<none>"
		if d.After != nil {
			after = d.After.Format(time.RFC3339)
		}
		why, below := d.Message, ""
		if d.Repository != "" {
			why += " (" + printable.Line(d.Repository, 0) + ")"
		}
		if utf8.RuneCountInString(why) > pruneWhy {
			why, below = "", "\n    "+strings.Join(cli.Wrap(why, cli.MaxWidth-4), "\n    ")
		}
		line := fmt.Sprintf(pruneRow, printable.Line(reference.ShortDigest(d.Image), 0), d.Decision, after, why)
		_, err := io.WriteString(out, strings.TrimRight(line, " \n")+below+"\n")
		return err
	}
	return report, func() error {
		var texts []string
		counts := p.Summary()
		for _, what := range slices.Sorted(maps.Keys(counts)) {
			texts = append(texts, fmt.Sprintf("%s: %d", what, counts[what]))
		}
		if len(texts) == 0 {
			texts = []string{"no images"}
		}
		_, err := fmt.Fprintln(out, strings.Join(texts, ", "))
		return err
	}
}

// ended is the last document for programs, once everything is decided.
func (o *pruneOptions) ended(p *prune.Pruner) map[string]any {
	return map[string]any{"confirmed": o.Confirm, "counts": p.Summary()}
}

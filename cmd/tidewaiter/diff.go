package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/content"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// exitDiffer is the exit code of diff when the images differ, as in diff(1). Failures exit with
// exitNone.
const exitDiffer = 1

// diff compares two images. If they are for several platforms, it compares one that both have.
func (l *looker) diff(ctx context.Context, sides [2]*found, platform string) (*content.Comparison, error) {
	platform = cmp.Or(platform, content.Shared(sides[0].image, sides[1].image))
	var subjects [2]content.Subject
	for i, side := range sides {
		subjects[i] = content.Subject{Reference: side.name(), Image: side.image, OnPlatform: side.image}
		if platform != "" {
			on, err := l.onPlatform(ctx, side, platform)
			if err != nil {
				return nil, err
			}
			subjects[i].OnPlatform = on.image
		}
	}
	return content.Compare(subjects[0], subjects[1], platform), nil
}

// printComparison prints the page for people, with the signs of diff: - is only in A, + only in B.
func printComparison(r *content.Comparison, out io.Writer) error {
	side := func(sign string, s content.Side) {
		fmt.Fprintf(out, "%s %s", sign, printable.Line(s.Reference, 0))
		if !strings.HasSuffix(s.Reference, s.Digest) {
			fmt.Fprintf(out, " %s", printable.Line(s.Digest, 0))
		}
		fmt.Fprintln(out)
	}
	side("---", r.A)
	side("+++", r.B)
	if r.Same {
		_, err := fmt.Fprintln(out, "the same image")
		return err
	}
	title := ""
	section := func(s string) {
		if s != title {
			title = s
			fmt.Fprintf(out, "\n%s:\n", s)
		}
	}
	pair := func(c content.Change, show func(string) string) {
		section(titles[c.Field])
		for _, line := range []struct{ sign, text string }{{"-", c.A}, {"+", c.B}} {
			if line.text != "" {
				fmt.Fprintf(out, "%s %s\n", line.sign, printable.Line(show(line.text), 0))
			}
		}
	}
	plain := func(s string) string { return s }
	for _, p := range r.Platforms {
		p.Field = "platforms"
		pair(p, plain)
	}
	if r.Platform != "" {
		fmt.Fprintf(out, "\nOf %s (--platform compares another):\n", printable.Line(r.Platform, 0))
	}
	for _, c := range r.Changes {
		if c.Field == "size" {
			pair(c, humanBytes)
		} else {
			pair(c, plain)
		}
	}
	printLayers(&r.Layers, out)
	if len(r.Changes) == 0 && len(r.Layers.Added)+len(r.Layers.Removed) == 0 && len(r.NotCompared) == 0 {
		fmt.Fprintln(out, "\nEverything compared is the same; the images differ elsewhere in their manifests or configs, such as in dates.")
	}
	for _, what := range r.NotCompared {
		fmt.Fprintf(out, "\nnot compared: %s\n", printable.Line(what, 0))
	}
	return nil
}

// titles are the headings of the page, by the kind of difference.
var titles = map[string]string{
	"platforms": "Platforms", "platform": "Platform", "size": "Size", "base": "Base", "entrypoint": "Entrypoint", "cmd": "Cmd", "user": "User",
	"workingDir": "Working dir", "ports": "Ports", "volumes": "Volumes", "run": "Run", "env": "Environment", "label": "Labels",
}

// humanBytes prints a number of bytes in the units of tables.
func humanBytes(s string) string {
	var n int64
	if _, err := fmt.Sscan(s, &n); err != nil {
		return s
	}
	return table.Size(n)
}

func printLayers(d *content.Layers, out io.Writer) {
	sum := func(layers []content.Layer) string {
		var n int64
		for _, l := range layers {
			n += l.Size
		}
		return cmp.Or(strings.TrimPrefix(table.Size(n), "<none>"), "0B")
	}
	fmt.Fprintf(out, "\nLayers: %d shared (%s), the first %d of them in the same position; %d removed (%s), %d added (%s)\n",
		len(d.Shared), sum(d.Shared), d.Base, len(d.Removed), sum(d.Removed), len(d.Added), sum(d.Added))
	for _, part := range []struct {
		sign   string
		layers []content.Layer
	}{{" ", d.Shared}, {"-", d.Removed}, {"+", d.Added}} {
		for _, l := range part.layers {
			fmt.Fprintf(out, "%s %s %s\n", part.sign, printable.Line(l.Digest, 0), table.Size(l.Size))
		}
	}
}

func newDiffCommand() *cobra.Command {
	o := &describeOptions{}
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two images",
		Long: `Compare two images that a server knows, such as two tags: platform, size, base,
entrypoint, command, user, working directory, ports, volumes, health check,
environment, labels and layers. Lines that begin with - are about A, lines with +
about B. For multi-platform images it shows which platforms differ, and compares
the first platform that both have, or the one given with --platform.

A and B are each a REF. ` + referenceHelp + `

The exit code is like that of diff: 0 if both are the same image (one digest), 1 if
they differ, and 2 if one of them is unknown or ambiguous, or the server did not
answer.`,
		Example: `  tidewaiter diff registry.example.com/team/app:v1 registry.example.com/team/app:v2

  # What did the tag lead to before, and what changed?
  tidewaiter history registry.example.com/team/app:v1
  tidewaiter diff 9f86d081884c registry.example.com/team/app:v1

  # For programs
  tidewaiter diff -o json app:v1 app:v2 | jq '.changes[] | select(.field == "user")'`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			same, err := o.diff(cmd, args[0], args[1])
			if err != nil {
				return &cli.Exit{Code: cli.ExitNone, Err: err}
			}
			if !same {
				return &cli.Exit{Code: exitDiffer}
			}
			return nil
		},
	}
	o.addFlags(cmd, 2, "json", "yaml")
	return cmd
}

// diff prints the differences of two images, and reports whether there are none.
func (o *describeOptions) diff(cmd *cobra.Command, a, b string) (same bool, err error) {
	l, err := o.looker(cmd)
	if err != nil {
		return false, err
	}
	var sides [2]*found
	for i, asked := range []string{a, b} {
		if sides[i], err = l.withImage(cmd.Context(), asked, ""); err != nil {
			return false, err
		}
	}
	report, err := l.diff(cmd.Context(), sides, o.platform)
	if err != nil {
		return false, err
	}
	if o.output.ForPeople() {
		return report.Same, printComparison(report, cmd.OutOrStdout())
	}
	return report.Same, o.output.Print(cmd.OutOrStdout(), cli.Document{Whole: report})
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/imageapi/table"
)

// exitDiffer is the exit code of diff when the images differ, as that of diff(1). Failures are
// exitNone.
const exitDiffer = 1

// diffReport lists the differences of two images, and is what -o json prints.
type diffReport struct {
	A diffSide `json:"a"`
	B diffSide `json:"b"`
	// Same is true if both are one image, by its digest.
	Same bool `json:"same"`
	// Platform is the platform that is compared, of images for several.
	Platform string `json:"platform,omitempty"`
	// Platforms are the platforms whose images differ, or that one side lacks.
	Platforms []change `json:"platforms,omitempty"`
	// Changes are in this order: platform, size, base, entrypoint, cmd, user, workingDir, ports,
	// volumes, run, env and label.
	Changes []change   `json:"changes"`
	Layers  diffLayers `json:"layers"`
	// NotCompared names what is not known of one of the images.
	NotCompared []string `json:"notCompared,omitempty"`
}

// diffSide is one of the two images.
type diffSide struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	// Compared is the digest of what is compared, if that is one of several platforms.
	Compared string `json:"compared,omitempty"`
}

// change is something that only one image has, or that differs. An absent side is empty.
type change struct {
	Field string `json:"field"`
	// Key is the name of the variable or the label.
	Key string `json:"key,omitempty"`
	A   string `json:"a,omitempty"`
	B   string `json:"b,omitempty"`
}

// diffLayers compares the layers by their place, each once.
type diffLayers struct {
	// Base is how many layers, from the first on, are the same in both, in the same place.
	Base    int     `json:"base"`
	Shared  []layer `json:"shared"`
	Removed []layer `json:"removed"`
	Added   []layer `json:"added"`
}

// diffContents compares the contents of two images.
func diffContents(a, b *content, r *diffReport) {
	add := func(field, key, from, to string) {
		if from != to {
			r.Changes = append(r.Changes, change{field, key, from, to})
		}
	}
	size := func(c *content) string {
		if c.Size == 0 {
			return ""
		}
		return fmt.Sprint(c.Size)
	}
	add("size", "", size(a), size(b))
	add("base", "", a.Base, b.Base)
	if a.Configured && b.Configured {
		add("entrypoint", "", words(a.Entrypoint), words(b.Entrypoint))
		add("cmd", "", words(a.Cmd), words(b.Cmd))
		add("user", "", a.User, b.User)
		add("workingDir", "", a.WorkingDir, b.WorkingDir)
		add("ports", "", strings.Join(a.Ports, ","), strings.Join(b.Ports, ","))
		add("volumes", "", strings.Join(a.Volumes, ","), strings.Join(b.Volumes, ","))
		add("run", "", string(a.Run), string(b.Run))
		diffMaps("env", variables(a.Env), variables(b.Env), r)
		diffMaps("label", a.Labels, b.Labels, r)
	}
	r.Layers = diffLayersOf(a.Layers, b.Layers)
}

// variables returns the variables of an environment by name. The last one of a name counts, as in a
// container.
func variables(env []string) map[string]string {
	all := map[string]string{}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		all[name] = value
	}
	return all
}

// diffMaps compares two maps. A key with an empty value in one map differs from a key that the map
// lacks.
func diffMaps(field string, a, b map[string]string, r *diffReport) {
	names := slices.Concat(slices.Collect(maps.Keys(a)), slices.Collect(maps.Keys(b)))
	slices.Sort(names)
	text := func(m map[string]string, name string) string {
		if value, ok := m[name]; ok {
			return name + "=" + value
		}
		return ""
	}
	for _, name := range slices.Compact(names) {
		if from, to := text(a, name), text(b, name); from != to {
			r.Changes = append(r.Changes, change{field, name, from, to})
		}
	}
}

func diffLayersOf(a, b []layer) diffLayers {
	d := diffLayers{Shared: []layer{}, Removed: []layer{}, Added: []layer{}}
	for d.Base < min(len(a), len(b)) && a[d.Base].Digest == b[d.Base].Digest {
		d.Base++
	}
	digests := func(layers []layer) map[string]bool {
		all := map[string]bool{}
		for _, l := range layers {
			all[l.Digest] = true
		}
		return all
	}
	inA, inB := digests(a), digests(b)
	seen := map[string]bool{}
	for _, l := range slices.Concat(a, b) {
		switch {
		case seen[l.Digest]:
		case inA[l.Digest] && inB[l.Digest]:
			d.Shared = append(d.Shared, l)
		case inA[l.Digest]:
			d.Removed = append(d.Removed, l)
		default:
			d.Added = append(d.Added, l)
		}
		seen[l.Digest] = true
	}
	return d
}

// diff compares two images. If they are for several platforms, it compares one that both have.
func (l *looker) diff(ctx context.Context, a, b *found, platform string) (*diffReport, error) {
	r := &diffReport{A: diffSide{Reference: a.name(), Digest: a.image.Name}, B: diffSide{Reference: b.name(), Digest: b.image.Name}, Same: a.image.Name == b.image.Name, Changes: []change{}}
	platformsA, platformsB := byPlatform(a), byPlatform(b)
	if len(platformsA) > 0 && len(platformsB) > 0 {
		sub := &diffReport{}
		diffMaps("platform", platformsA, platformsB, sub)
		r.Platforms = sub.Changes
	}
	if platform == "" {
		platform = bothHave(a, b)
	}
	var err error
	if len(platformsA)+len(platformsB) > 0 {
		if platform == "" {
			r.NotCompared = append(r.NotCompared, "the contents: the images have no platform in common")
			return r, nil
		}
		r.Platform = platform
	}
	if platform != "" {
		if a, err = l.onPlatform(ctx, a, platform); err != nil {
			return nil, err
		}
		if b, err = l.onPlatform(ctx, b, platform); err != nil {
			return nil, err
		}
		if a.image.Name != r.A.Digest {
			r.A.Compared = a.image.Name
		}
		if b.image.Name != r.B.Digest {
			r.B.Compared = b.image.Name
		}
	}
	contentA, contentB := contentOf(a.image), contentOf(b.image)
	for _, side := range []struct {
		name string
		c    *content
	}{{r.A.Reference, &contentA}, {r.B.Reference, &contentB}} {
		if !side.c.Configured {
			r.NotCompared = append(r.NotCompared, "the configuration: that of "+side.name+" is not known")
		}
	}
	if p, q := platformOf(&contentA), platformOf(&contentB); p != q {
		r.Changes = append(r.Changes, change{"platform", "", p, q})
	}
	diffContents(&contentA, &contentB, r)
	return r, nil
}

// platformOf returns the platform of an image for one platform.
func platformOf(c *content) string {
	if len(c.Platforms) == 1 {
		return c.Platforms[0].Platform
	}
	return ""
}

// byPlatform returns the images of an index by platform; none for an image.
func byPlatform(f *found) map[string]string {
	all := map[string]string{}
	for _, p := range contentOf(f.image).Platforms {
		if p.Digest != "" {
			all[p.Platform] = p.Digest
		}
	}
	return all
}

// bothHave returns the first platform of a that b has, too, if one of them is an index; "" if there
// is none, or if neither is an index.
func bothHave(a, b *found) string {
	platformsA, platformsB := contentOf(a.image).Platforms, contentOf(b.image).Platforms
	isIndex := func(all []platformLine) bool { return len(all) > 0 && all[0].Digest != "" }
	if !isIndex(platformsA) && !isIndex(platformsB) {
		return ""
	}
	for _, p := range platformsA {
		if p.Platform != "" && slices.ContainsFunc(platformsB, func(q platformLine) bool { return q.Platform == p.Platform }) {
			return p.Platform
		}
	}
	return ""
}

// print prints the page for people, with the signs of diff: - is only in A, + only in B.
func (r *diffReport) print(out io.Writer) error {
	side := func(sign string, s diffSide) {
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
	pair := func(c change, show func(string) string) {
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
	r.Layers.print(out)
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

func (d *diffLayers) print(out io.Writer) {
	sum := func(layers []layer) string {
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
		layers []layer
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
	report, err := l.diff(cmd.Context(), sides[0], sides[1], o.platform)
	if err != nil {
		return false, err
	}
	if o.output.ForPeople() {
		return report.Same, report.print(cmd.OutOrStdout())
	}
	return report.Same, o.output.Print(cmd.OutOrStdout(), cli.Document{Whole: report})
}

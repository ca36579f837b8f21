package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/content"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/packages"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// imageReport is the page of describe about an image. -o json prints it as it is.
type imageReport struct {
	// Reference is the full form of the given reference; empty if only a digest was given.
	Reference string `json:"reference,omitempty"`
	Digest    string `json:"digest"`
	// Repositories are the repositories that the image is in.
	Repositories []string `json:"repositories"`
	MediaType    string   `json:"mediaType,omitempty"`
	// ArtifactType says what kind of artifact it is if it is not an image, such as a chart. An
	// artifact has no known signatures.
	ArtifactType string `json:"artifactType,omitempty"`
	// Created is the image's own date, and Known the creation of the Image object.
	Created *time.Time      `json:"created,omitempty"`
	Known   time.Time       `json:"known"`
	Content content.Content `json:"content"`

	// Checked is how it is known where the reference leads, and whether the registry still has it.
	Checked answers.Checked `json:"checked"`
	// Assumed says what the reference left open and how that was decided.
	Assumed []string `json:"assumed,omitempty"`
	// Indexes list the image.
	Indexes []string `json:"indexes,omitempty"`

	// Verified, Reason, Signers and Attested are the verdict for the reference. A digest that is in
	// several repositories has a verdict in each; if these differ, Verified counts them.
	Verified     string            `json:"verified"`
	Reason       string            `json:"reason,omitempty"`
	Signers      []string          `json:"signers,omitempty"`
	Attested     string            `json:"attested,omitempty"`
	Verdicts     []answers.Verdict `json:"verdicts,omitempty"`
	Signatures   []signatureLine   `json:"signatures,omitempty"`
	Attestations []signatureLine   `json:"attestations,omitempty"`

	// Pods is how many pods run the image, as in the column PODS, and Running is where.
	Pods    string           `json:"pods"`
	Running *answers.Running `json:"running,omitempty"`
	// NeededBy are workloads that need the image, whether they run it or not.
	NeededBy []string `json:"neededBy,omitempty"`
	// Base is what the image is built on.
	Base *answers.Base `json:"base,omitempty"`
	// Unknowns are what is not known, or not as of now, and why.
	Unknowns []answers.UnknownPart `json:"unknowns,omitempty"`

	// Packages is what is known of the image's packages; nil if that could not be asked.
	Packages *packagesReport `json:"packages,omitempty"`

	// Tags are the histories of the tags that lead to the image now, at most 20.
	Tags []*historyReport `json:"tags"`
	// FormerTags are the tags that led to the image before.
	FormerTags []answers.FormerTag `json:"formerTags,omitempty"`
	// LeftOut names the parts of the image that could not be kept, and why.
	LeftOut []string `json:"leftOut,omitempty"`
}

type signatureLine struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Trusted  string `json:"trusted"`
	ForImage string `json:"forImage"`
	Signer   string `json:"signer"`
	Reason   string `json:"reason,omitempty"`
	Message  string `json:"message,omitempty"`
	// Since is when the verdict last changed.
	Since *metav1.Time `json:"since,omitempty"`
}

// describe reads everything about an image from the server.
func (l *looker) describe(ctx context.Context, f *found) (*imageReport, error) {
	image := f.image
	metadata, err := manifest.Metadata(image)
	if err != nil {
		return nil, err
	}
	r := &imageReport{Digest: image.Name, Repositories: []string{}, MediaType: image.DockerImageManifestMediaType, Known: image.CreationTimestamp.UTC(), Content: content.Of(image)}
	r.Reference, r.Assumed = f.Meaning.Reference, f.Meaning.Assumed
	r.Repositories = append(r.Repositories, f.Meaning.Repositories...)
	if !metadata.Created.IsZero() {
		created := metadata.Created.UTC()
		r.Created = &created
	}
	r.LeftOut = leftOut(image)
	r.Indexes, r.FormerTags, r.Checked, r.Running, r.NeededBy, r.Base, r.Unknowns = f.Meaning.Indexes, f.Meaning.FormerTags, f.Checked, f.Running, f.NeededBy, f.Base, f.Unknowns
	if r.ArtifactType = image.Annotations[annotation.ArtifactType]; r.ArtifactType == "" {
		r.judged(&f.Answer)
		r.signed(image)
		l.packaged(ctx, image, r)
	}
	r.Pods = answers.PodsCell(&f.Answer)
	r.Tags, err = l.leading(ctx, image.Name)
	return r, err
}

// leftOut names the parts of an image that could not be kept, and why.
func leftOut(image *imagev1.Image) (all []string) {
	left, _ := manifest.LeftOutOf(image) // an annotation that cannot be read leaves nothing out
	for name, part := range map[string]*manifest.LeftOutPart{"manifest": left.Manifest, "config": left.Config} {
		if part != nil {
			all = append(all, fmt.Sprintf("%s (%s): %s", name, table.Size(part.Size), part.Reason))
		}
	}
	slices.Sort(all)
	return all
}

// judged fills in the verdict for the reference, or those in each repository.
func (r *imageReport) judged(a *answers.Answer) {
	r.Verified, r.Verdicts = answers.VerdictCell(a), a.Verdicts
	if v := a.Verdict; v != nil {
		r.Verdicts = []answers.Verdict{*v}
	}
	if len(r.Verdicts) == 1 {
		v := &r.Verdicts[0]
		r.Verified, r.Signers, r.Attested, r.Reason = v.Verified, v.Signers, v.Attested, cmp.Or(v.Message, v.Reason)
	}
}

// signed fills in the signatures, and the attestations apart from them.
func (r *imageReport) signed(image *imagev1.Image) {
	for i := range image.Signatures {
		s := &image.Signatures[i]
		trusted, forImage := verdicts.ConditionOf(s, verdicts.Trusted), verdicts.ConditionOf(s, verdicts.ForImage)
		line := signatureLine{s.Name, s.Type, string(trusted.Status), string(forImage.Status), signerOf(s), trusted.Reason, trusted.Message, nil}
		if !trusted.LastTransitionTime.IsZero() {
			line.Since = &trusted.LastTransitionTime
		}
		if s.Type == verdicts.TypeAttestation {
			r.Attestations = append(r.Attestations, line)
			continue
		}
		r.Signatures = append(r.Signatures, line)
	}
}

// widestName is the width of the names at the left of a page, with the gap to their values.
const widestName = len("Configuration:   ")

// print prints the page for people. Its texts may come from strangers.
func (r *imageReport) print(out io.Writer) error {
	w := printers.GetNewTabWriter(out)
	line := func(name, value string) {
		if value == "" {
			return
		}
		for i, part := range cli.Wrap(printable.Line(value, 0), cli.MaxWidth-widestName) {
			if i > 0 {
				name = ""
			} else {
				name += ":"
			}
			fmt.Fprintf(w, "%s\t%s\n", name, part)
		}
	}
	line("Reference", r.Reference)
	line("Assumed", strings.Join(r.Assumed, "; "))
	line("Image", r.Digest)
	line("Indexes", strings.Join(r.Indexes, ", "))
	line("Registry", r.registry())
	if how := r.Checked.Overwritten; how != nil {
		line("Overwritten", how.Message)
	}
	line("Repositories", strings.Join(r.Repositories, ", "))
	line("Media type", r.MediaType)
	line("Artifact", r.ArtifactType)
	if r.Created == nil {
		line("Created", "unknown")
	} else {
		line("Created", ago(*r.Created))
	}
	line("Known since", ago(r.Known))
	line("Left out", strings.Join(r.LeftOut, ", "))
	verdict := r.Verified
	if len(r.Signers) > 0 {
		verdict += ", signed by " + strings.Join(r.Signers, ", ")
	}
	if r.Reason != "" {
		verdict += ": " + r.Reason
	}
	line("Verified", verdict)
	line("Attested", r.Attested)
	r.Packages.print(line)
	line("Pods", r.Pods)
	if r.Running != nil && r.Running.Outdated > 0 {
		line("Outdated", table.Quantity(r.Running.Outdated, "pod")+" with this tag, and another image than it leads to now")
	}
	if r.Running != nil && r.Running.OutdatedUnknown > 0 {
		line("Not known", table.Clause(r.Running.OutdatedUnknown, "pod", "name")+" the tag and may run another image: "+r.Running.OutdatedUnknownReason)
	}
	line("Base", baseLine(r.Base))
	line("Needed by", strings.Join(r.NeededBy, ", "))
	for _, u := range r.Unknowns {
		line("Not known", u.Part+": "+u.Reason)
	}
	if r.ArtifactType == "" {
		printContent(&r.Content, line)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.Content.Configured {
		printConfig(&r.Content, out)
	}
	return r.printTables(out)
}

// baseLine says what an image is built on, and whether that is the base's present revision.
func baseLine(b *answers.Base) string {
	if b == nil {
		return ""
	}
	text := b.Reference
	if b.Digest != "" {
		text += "@" + b.Digest
	}
	if b.By == answers.BaseByLayers {
		text += ", by its layers"
	}
	switch b.Outdated {
	case answers.BaseCurrent:
		return text + ", the present revision"
	case answers.BaseOutdated:
		if text += ", an older revision"; b.Until != nil {
			text += " until " + ago(b.Until.Time)
		}
		return text + ": it leads to " + b.Now + " now"
	}
	return text + ", revision unknown: " + b.Message
}

func ago(t time.Time) string {
	return t.UTC().Format(time.RFC3339) + " (" + duration.HumanDuration(time.Since(t)) + " ago)"
}

// printContent prints the lines of a page about an image's content.
func printContent(c *content.Content, line func(name, value string)) {
	switch {
	case len(c.Platforms) == 1 && c.Platforms[0].Digest == "":
		line("Platform", c.Platforms[0].Platform)
	case len(c.Platforms) == 0:
		line("Platform", "unknown")
	}
	if c.Size > 0 {
		line("Size", fmt.Sprintf("%s in %s", table.Size(c.Size), table.Quantity(len(c.Layers), "layer")))
	}
	if !c.Configured {
		if len(c.Layers) > 0 || len(c.Platforms) < 2 && (len(c.Platforms) == 0 || c.Platforms[0].Digest == "") {
			line("Configuration", "unknown")
		}
		return
	}
	line("Entrypoint", content.Words(c.Entrypoint))
	line("Cmd", content.Words(c.Cmd))
	line("User", cmp.Or(c.User, "<none> (usually root)"))
	line("Working dir", c.WorkingDir)
	line("Ports", strings.Join(c.Ports, ", "))
	line("Volumes", strings.Join(c.Volumes, ", "))
	line("Run", string(c.Run))
}

// printConfig prints the parts of a configuration that have many entries.
func printConfig(c *content.Content, out io.Writer) {
	if len(c.Env) > 0 {
		fmt.Fprintln(out, "\nEnvironment:")
		for _, e := range c.Env {
			fmt.Fprintf(out, "  %s\n", printable.Line(e, 0))
		}
	}
	if len(c.Labels) > 0 {
		fmt.Fprintln(out, "\nLabels:")
		for _, key := range slices.Sorted(maps.Keys(c.Labels)) {
			fmt.Fprintf(out, "  %s=%s\n", printable.Line(key, 0), printable.Line(c.Labels[key], 0))
		}
	}
}

// printTables prints the parts with several columns that are not empty.
func (r *imageReport) printTables(out io.Writer) error {
	var failed error
	part := func(title, header string, n int, row func(i int) []any) {
		if n == 0 || failed != nil {
			return
		}
		fmt.Fprintf(out, "\n%s:\n", title)
		t := cli.Table{Columns: strings.Split(header, "|"), Indent: 2}
		for i := range n {
			var cells []string
			for _, cell := range row(i) {
				cells = append(cells, fmt.Sprint(cell))
			}
			t.Rows = append(t.Rows, cells)
		}
		failed = t.Print(out)
	}
	c := &r.Content
	if len(c.Platforms) > 0 && c.Platforms[0].Digest != "" {
		part("Platforms", "PLATFORM|IMAGE", len(c.Platforms), func(i int) []any { return []any{c.Platforms[i].Platform, c.Platforms[i].Digest} })
	}
	part("Layers", "SIZE|DIGEST", len(c.Layers), func(i int) []any { return []any{table.Size(c.Layers[i].Size), c.Layers[i].Digest} })
	part("Verdicts", "VERIFIED|REFERENCE|POLICY|REASON|SIGNERS", len(r.Verdicts), func(i int) []any {
		v := r.Verdicts[i]
		return []any{v.Verified, v.Reference, verdicts.Policies(v.Policies, v.Spared), v.Reason, strings.Join(v.Signers, ", ")}
	})
	lines := func(title string, all []signatureLine) {
		part(title, "TRUSTED|FOR IMAGE|SIGNER|TYPE|SINCE|REASON|MESSAGE…", len(all), func(i int) []any {
			s, since := all[i], ""
			if s.Since != nil {
				since = duration.HumanDuration(time.Since(s.Since.Time))
			}
			return []any{s.Trusted, s.ForImage, s.Signer, s.Type, since, s.Reason, s.Message}
		})
	}
	lines("Signatures", r.Signatures)
	lines("Attestations", r.Attestations)
	if run := r.Running; run != nil {
		part("Running in", "CLUSTER|NAMESPACE|PODS|SINCE", len(run.Clusters), func(i int) []any {
			in, since := run.Clusters[i], ""
			if in.Since != nil {
				since = duration.HumanDuration(time.Since(in.Since.Time))
			}
			return []any{in.Cluster, in.Namespace, in.Pods, since}
		})
		part("Outdated pods run", "IMAGE|PODS", len(run.OutdatedImages), func(i int) []any {
			return []any{run.OutdatedImages[i].Digest, run.OutdatedImages[i].Pods}
		})
	}
	if len(r.Tags) == 0 {
		fmt.Fprintln(out, "\nTags: none leads to it now")
	}
	part("Tags", "REFERENCE|SINCE|BEFORE|BY", len(r.Tags), func(i int) []any {
		tag := r.Tags[i]
		if len(tag.Items) == 0 {
			return []any{tag.Reference, "", "", ""}
		}
		now, before := tag.Items[0], ""
		if len(tag.Items) > 1 {
			before = shortDigest(now.Before)
		}
		return []any{tag.Reference, duration.HumanDuration(time.Since(now.Created.Time)), before, now.By}
	})
	part("Former tags", "REFERENCE|UNTIL|NOW", len(r.FormerTags), func(i int) []any {
		former := r.FormerTags[i]
		return []any{former.Reference, ago(former.Until.Time), shortDigest(former.Now)}
	})
	return failed
}

// registry says whether the registry has what the reference means, and when it last said so.
func (r *imageReport) registry() string {
	c := &r.Checked
	asOf := ""
	if c.LastChecked != nil {
		asOf = ", last checked " + ago(c.LastChecked.Time)
	}
	text := ""
	switch c.Registry {
	case answers.Present:
		text = "had it" + asOf
	case answers.Lost:
		text = "no longer has it"
		if c.Since != nil {
			text += ", as was found at " + ago(c.Since.Time)
		}
	}
	if c.Failing != "" && c.FailingSince != nil {
		text += fmt.Sprintf("; looks fail since %s: %s", ago(c.FailingSince.Time), c.Failing)
	}
	return text
}

// onPlatform returns the image for a platform in an index, or the same image if it is for that
// platform.
func (l *looker) onPlatform(ctx context.Context, f *found, platform string) (*found, error) {
	exactly := f.Meaning.Digest // the tag may have moved meanwhile
	if f.Meaning.Repository != "" {
		exactly = f.Meaning.Repository + "@" + exactly
	}
	return l.withImage(ctx, exactly, platform)
}

// check has the registry asked what a reference leads to, by an import with the flags that were
// given. unchecked is why that failed.
func (l *looker) check(cmd *cobra.Command, asked string) (unchecked, err error) {
	f, err := l.find(cmd.Context(), asked, "")
	if err != nil && (f == nil || f.Meaning.Reference == "" || !reference.NamesRegistry(asked)) {
		// what is not known here may be in the registry that is named
		return nil, err
	}
	if f.Meaning.Reference == "" {
		return nil, cli.WithHint(fmt.Errorf("%s is in several repositories:\n  %s", f.name(), strings.Join(f.Meaning.Repositories, "\n  ")), "name one to check, REPOSITORY@DIGEST")
	}
	imports := newImportCommand()
	cmd.Flags().Visit(func(given *pflag.Flag) {
		if flag := imports.Flags().Lookup(given.Name); flag != nil && given.Name != "output" && given.Name != "platform" {
			err = cmp.Or(imports.Flags().Set(given.Name, given.Value.String()), err)
		}
	})
	imports.SetContext(cmd.Context())
	imports.SetOut(cmd.ErrOrStderr())
	imports.SetErr(cmd.ErrOrStderr())
	failed := imports.RunE(imports, []string{f.Meaning.Reference})
	var exit *cli.Exit
	switch {
	case failed == nil:
		return nil, nil
	case errors.As(failed, &exit) && exit.Err == nil: // it has said why
		return &cli.Exit{Code: cli.ExitNone, Err: fmt.Errorf("the registry has not confirmed %s; showing what is known without it", f.Meaning.Reference)}, nil
	}
	return nil, failed
}

// describeOptions are the flags of describe and of diff.
type describeOptions struct {
	clientOptions
	output   cli.Output
	platform string
}

func (o *describeOptions) addFlags(cmd *cobra.Command, references int, formats ...string) {
	o.output.AddFlag(cmd, "a page", formats...)
	cmd.ValidArgsFunction = o.completeReferences(references)
	cmd.Flags().StringVar(&o.platform, "platform", "", "platform to show of a multi-platform image, as os/architecture[/variant]")
	o.clientOptions.addFlags(cmd)
}

func newDescribeCommand() *cobra.Command {
	o, check, then := &describeOptions{}, false, atFlag{}
	cmd := &cobra.Command{
		Use:        "describe REF",
		SuggestFor: []string{"inspect", "show"},
		Short:      "Show one image on a page: all that is known of it; get shows one line",
		Long: `Show everything that a server knows about an image: its contents (platforms, size,
layers, environment, entrypoint, user, labels), who signed it and whether that
counts, how many pods use it and where, and which tags lead to it, since when.
The pods of the server's own API are in the cluster "local". The verdict is for
exactly this reference; a digest in several repositories has one in each.

` + referenceHelp + `

` + atHelp + `

--check asks the registry first, as tidewaiter import does: from this machine, with
the credentials that skopeo and podman use. It needs the right to import into the
server. If the registry does not answer, the page shows what is already known.

The exit code is 0 if the image was found, 1 if the server does not know it, and 2 if
REF is ambiguous, or the server or (with --check) the registry did not answer.`,
		Example: `  tidewaiter describe registry.example.com/team/app:v1

  # Ask the registry first: where does the tag lead now, and does it still exist?
  tidewaiter describe --check registry.example.com/team/app:v1

  # One platform of it
  tidewaiter describe --platform linux/arm64 registry.example.com/team/app:v1

  # For programs
  tidewaiter describe -o json 9f86d081884c | jq .verified`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := o.looker(cmd)
			if err != nil {
				return err
			}
			if at, ok, err := then.time(time.Now()); err != nil {
				return err
			} else if ok {
				return l.printThen(cmd, &o.output, args[0], at, (*thenReport).page)
			}
			l.formerTags = true
			var unchecked error
			if check {
				if unchecked, err = l.check(cmd, args[0]); err != nil {
					return err
				}
			}
			f, err := l.withImage(cmd.Context(), args[0], o.platform)
			if err != nil {
				return err
			}
			report, err := l.describe(cmd.Context(), f)
			if err != nil {
				return err
			}
			if o.output.ForPeople() {
				err = report.print(cmd.OutOrStdout())
			} else {
				if o.output.Lines() {
					warnUnknown(cmd.ErrOrStderr(), report.Unknowns)
					warnOverwritten(cmd.ErrOrStderr(), report.Checked.Overwritten)
				}
				err = o.output.Print(cmd.OutOrStdout(), cli.Document{Whole: report, Names: []string{imageName(report.Digest)}})
			}
			return cmp.Or(err, unchecked)
		},
	}
	o.addFlags(cmd, 1, cli.ObjectFormats...)
	then.addFlag(cmd.Flags(), "show what was known at this time")
	cmd.Flags().BoolVar(&check, "check", false, "ask the registry first; the registry flags apply to this")
	cmd.MarkFlagsMutuallyExclusive("at", "check")
	cmd.MarkFlagsMutuallyExclusive("at", "platform")
	(&registryOptions{}).addFlags(cmd) // import has them
	return cmd
}

// packagesReport lists the known packages of an image.
type packagesReport struct {
	// Count is how many packages the SBOMs have together; without any SBOM that could be read, it
	// is unknown.
	Count     int32            `json:"count"`
	Documents []documentReport `json:"documents"`
}

// documentReport is a document that is attached to an image.
type documentReport struct {
	Format     string               `json:"format,omitempty"`
	Type       string               `json:"type,omitempty"`
	Repository string               `json:"repository"`
	Digest     string               `json:"digest"`
	Count      int32                `json:"count"`
	Problem    string               `json:"problem,omitempty"`
	Vouched    string               `json:"vouched"`
	VouchedBy  string               `json:"vouchedBy,omitempty"`
	Reason     string               `json:"reason,omitempty"`
	Author     string               `json:"author,omitempty"`
	Statements []packages.Statement `json:"statements,omitempty"`
}

// packaged fills in the packages of an image.
func (l *looker) packaged(ctx context.Context, image *imagev1.Image, r *imageReport) {
	list, err := l.client.GetPackages(ctx, image.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		list = &packages.ImagePackages{}
	case err != nil:
		r.Unknowns = append(r.Unknowns, answers.UnknownPart{Part: "packages", Reason: err.Error()})
		return
	}
	r.Packages = &packagesReport{Count: list.Count(), Documents: []documentReport{}}
	for i := range list.Sources {
		s := &list.Sources[i]
		asked, err := reference.Parse(cmp.Or(r.Reference, s.Repository+"@"+image.Name))
		if err != nil {
			r.Unknowns = append(r.Unknowns, answers.UnknownPart{Part: "packages", Reason: err.Error()})
			continue
		}
		v := s.Vouched(image, asked, func(digest string) (*imagev1.Image, error) {
			return l.client.Get(ctx, digest, metav1.GetOptions{})
		})
		r.Packages.Documents = append(r.Packages.Documents, documentReport{
			s.Format, s.Type, s.Repository, s.Blob, s.Count, s.Problem, v.Verified, v.By, v.Reason, s.Author, s.Statements,
		})
	}
}

// print prints the lines of a page about packages; nothing if they could not be asked for.
func (p *packagesReport) print(line func(name, value string)) {
	if p == nil {
		return
	}
	var sboms, statements []string
	read := 0
	for _, d := range p.Documents {
		vouched := d.Vouched
		switch {
		case d.Vouched == verdicts.VerifiedTrue:
			vouched = "vouched for by " + cmp.Or(d.VouchedBy, "a trusted signer")
		case d.Reason != "":
			vouched += ": " + d.Reason
		}
		switch {
		case d.Format == packages.FormatOpenVEX:
			for _, s := range d.Statements {
				statements = append(statements, fmt.Sprintf("%s %s, says %s (%s)", s.Vulnerability, s.Status, cmp.Or(d.Author, "nobody"), vouched))
			}
			if d.Problem != "" {
				statements = append(statements, d.Problem)
			}
			continue
		case d.Format != "":
			read++
		}
		text := fmt.Sprintf("%s %s (%s)", cmp.Or(d.Format, d.Type), d.Digest, vouched)
		if d.Problem != "" {
			text += ", not all known: " + d.Problem
		}
		sboms = append(sboms, text)
	}
	switch {
	case read > 0:
		line("Packages", table.Quantity(p.Count, "package")+" in "+table.Quantity(read, "SBOM"))
	case len(sboms) > 0:
		line("Packages", "unknown: no SBOM could be read")
	default:
		line("Packages", "unknown: no SBOM was found")
	}
	line("SBOMs", strings.Join(sboms, "; "))
	line("VEX", strings.Join(statements, "; "))
}

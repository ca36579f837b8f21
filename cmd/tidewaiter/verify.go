package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/config"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// Exit codes of verify. Any other failure exits with 2, too: "unknown" must not look like yes or
// no.
const (
	exitTrusted    = 0
	exitUntrusted  = 1
	exitUndeclared = 2
	exitExcepted   = 3
)

type verifyOptions struct {
	clientOptions
	local      localOptions
	all        bool
	files      []string
	failOn     []string
	policy     string
	registries registryOptions
	output     cli.Output
	watch      watchFlag
}

func newVerifyCommand() *cobra.Command {
	o := &verifyOptions{}
	cmd := &cobra.Command{
		Use:   "verify REFERENCE...",
		Short: "Check whether a trusted signer signed an image",
		Long: `Check whether a trusted signer signed an image.

Without --policy, a server judges exactly this reference (repository, tag and digest
together) by its own policies. The answer is the same as that of get, describe and
admission. It may be about the digest to which the tag led before: in a pipeline, verify
REPOSITORY:TAG@DIGEST, with the digest that was pushed.

With --policy, verify reads the signatures directly from the registry, with the
credentials and certificates that skopeo and podman use, and judges them by that
policy. It contacts no server and stores nothing. A multi-platform image is judged by
itself, without its platforms. A platform that is named by its digest and has no
trusted signature of its own is verified through an index that lists it: the index of
the tag in REPOSITORY:TAG@DIGEST, else those of the repository's first 100 tags.

` + localHelp + `

The exit code is 0 if a signature of the image or of such an index is trusted, 1 if
none is, 2 if that is unknown: no policy covers the image, no signature can be
judged, or the registry or the server did not answer, and 3 if none is and an
exception of the policy lets the image through. -o json prints nothing if the image
could not be judged at all.

Several references, as arguments or in the file of -f, have a row each, and in -o jsonl
a line each. One that could not be judged has the outcome "failed" there, with the
error, and does not stop the others. The exit code is then the worst: 2 before 1 before
3 before 0.

With --all, a running server judges all its images again by the policies in force.
The server does this by itself when policies change or something expires; --all does
it now and shows the progress. With --all and --policy, the server's signatures are
judged by that policy on this machine, and the server changes nothing: you see what a
policy would say before you apply it. The counts are of verdicts, one for each
repository of an image; an image that runs and is not imported counts as Unknown for
--fail-on. The exit code is 0 if all were judged and no verdict is one of --fail-on, 1
if one is, and 2 if not all could be judged.`,
		Example: `  # By the policies of the server
  tidewaiter verify registry.example.com/team/app:v1

  # Is this image signed by a key that the policy trusts?
  tidewaiter verify --policy policies/ registry.example.com/team/app:v1

  # In a script
  tidewaiter verify --policy policy.yaml -o json registry.example.com/team/app:v1 | jq .verified

  # All of a release: references from a file, one per line; "-" reads standard input
  tidewaiter verify --policy policy.yaml -f references.txt -o jsonl

  # Wait until it is signed
  tidewaiter verify --watch registry.example.com/team/app:v1

  # Judge all images of the server of ./tidewaiter-data again
  tidewaiter verify --all

  # In a nightly job that also fails where no policy covers an image
  tidewaiter verify --all --fail-on False,Unsigned,Unknown,NoPolicy

  # What would other policies say about the server's images? The server stores nothing.
  # If no server runs, this judges the images in the data directory, and stores that there
  tidewaiter verify --all --policy policies/`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case bool(o.watch) && (o.all || o.policy != "" || len(o.files) > 0 || len(args) > 1):
				return cli.Misuse(errors.New("--watch asks a server about one reference, by its own policies"), "leave out --all, --policy, -f and further references")
			case o.local.namespace != "" && (o.all || o.policy != ""):
				return cli.Misuse(errors.New("-n asks a server about one reference, by its own policies"), "leave out --all and --policy")
			case !o.all && cmd.Flags().Changed("fail-on"):
				return cli.Misuse(errors.New("--fail-on is for --all: the exit code of one reference is its verdict"), "leave it out")
			case o.all && len(args) == 0 && len(o.files) == 0:
				if err := cmp.Or(checkGiven(cmd, "fail-on", o.failOn), o.checkFailOn()); err != nil {
					return err
				}
				return o.sweep(cmd)
			case !o.all && (len(args) > 0 || len(o.files) > 0):
				return o.verify(cmd, args)
			}
			return cli.Misuse(errors.New("give references, or --all"), "remove the extra arguments, as in verify registry.example.com/team/app:v1")
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.policy, "policy", "", "file or folder of ClusterImagePolicy documents (default: the policies of the server)")
	o.registries.addFlags(cmd)
	o.output.AddFlag(cmd, "a page", cli.ListFormats...)
	o.local.addFlag(cmd, "namespace whose pods ask (default: none")
	cmd.ValidArgsFunction = o.completeReferences(bulk.MaxReferences)
	o.watch.addFlag(cmd, "print the verdict, and again whenever the answer changes")
	f.StringArrayVarP(&o.files, "filename", "f", nil, `file of references, one per line, # begins a comment; "-" is standard input`)
	f.BoolVar(&o.all, "all", false, "judge all images of a server again")
	f.StringSliceVar(&o.failOn, "fail-on", []string{verdicts.VerifiedFalse, verdicts.Unsigned, verdicts.VerifiedUnknown}, "verdicts for which --all exits 1; none: for no verdict")
	o.addFlags(cmd)
	o.completeNames(cmd)
	return cmd
}

// verdictReport is the answer about one image. -o json prints it as it is.
type verdictReport struct {
	Reference string `json:"reference"`
	Digest    string `json:"digest"`
	// Verified is True, ByIndex, False, Unknown, Unsigned, NoPolicy or Excepted, as in the column
	// VERIFIED.
	Verified string `json:"verified"`
	// Index is the digest of the index through which the image is verified, if it is ByIndex.
	Index string `json:"index,omitempty"`
	// Until is when the exception ends, in RFC 3339, if it is Excepted.
	Until string `json:"until,omitempty"`
	// Policy is the name of the policy that covers the image. If several do, it is all their names,
	// separated by commas; if none does, it is empty.
	Policy string `json:"policy,omitempty"`
	// Spared are those of them that the image does not meet, because it meets an alternative to each.
	Spared  []string `json:"spared,omitempty"`
	Signers []string `json:"signers,omitempty"`
	// Reason and Message say why; a signature has them, too, if a single one does.
	Reason     string                   `json:"reason,omitempty"`
	Message    string                   `json:"message,omitempty"`
	Signatures []imagev1.ImageSignature `json:"signatures"`
	Warnings   []string                 `json:"warnings,omitempty"`

	demands bool // attestations are demanded, so no signature says why
}

// judge is who answers about references: a server, or a policy and their registries.
type judge interface {
	// judge answers about one reference, and writes warnings to notes.
	judge(ctx context.Context, arg string, notes io.Writer) (*verdictReport, error)
}

func (o *verifyOptions) verify(cmd *cobra.Command, args []string) error {
	references, err := o.references(cmd, args)
	if err != nil {
		return err
	}
	var by judge
	if o.policy != "" {
		p, err := o.byPolicy()
		if err != nil {
			return err
		}
		defer p.importer.Close()
		by = p
	} else {
		l, err := o.looker(cmd)
		if err != nil {
			return err
		}
		o.local.apply(l, &o.clientOptions)
		if o.watch {
			return o.watchServer(cmd, l, args[0])
		}
		by = l
	}
	if len(args) != 1 || len(o.files) > 0 {
		return o.verifyEach(cmd, by, references)
	}
	return o.answer(cmd.Context(), by, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
}

// byPolicy judges what registries have by the policies of --policy.
type byPolicy struct {
	set      *policy.Set
	importer *importer.Importer
}

func (o *verifyOptions) byPolicy() (*byPolicy, error) {
	set, err := config.LoadPolicies(o.policy)
	if err != nil {
		return nil, err
	}
	cfg, err := config.Load(o.registries.configFile)
	if err != nil {
		return nil, err
	}
	finder, err := config.NewFinder(cfg, set)
	if err != nil {
		return nil, err
	}
	options, err := o.registries.importerOptions(cfg)
	if err != nil {
		return nil, err
	}
	options.Signatures = finder
	im, err := importer.New(options)
	return &byPolicy{set, im}, err
}

// judge is part of [judge].
func (p *byPolicy) judge(ctx context.Context, arg string, notes io.Writer) (*verdictReport, error) {
	ref, err := reference.Parse(arg)
	if err != nil {
		return nil, bulk.ExplainReference(err)
	}
	image, warnings, err := p.importer.Find(ctx, ref)
	printWarnings(notes, warnings)
	if err != nil {
		return nil, bulk.ExplainReference(err)
	}
	listing := &listing{importer: p.importer, set: p.set, asked: ref, image: image, now: time.Now()}
	report, err := judgeImage(arg, ref.Pulled(), image, p.set, listing.now, func(string) ([]*imagev1.Image, error) { return listing.indexes(ctx) })
	if err != nil {
		return nil, err
	}
	moves := unseenMoves(p.set, ref.Pulled())
	printWarnings(notes, slices.Concat(listing.warnings, moves))
	report.Warnings = slices.Concat(warnings, listing.warnings, moves)
	if (report.Verified == verdicts.Unsigned || report.Verified == verdicts.NoPolicy) && report.Message == "" {
		report.Message = listing.notFound
	}
	return report, nil
}

// answer answers about one reference, as a page or a document.
func (o *verifyOptions) answer(ctx context.Context, by judge, arg string, out, notes io.Writer) error {
	report, err := by.judge(ctx, arg, notes)
	if err != nil {
		if o.output.Lines() { // which has a line for each reference
			err = cmp.Or(o.output.Print(out, cli.Document{Items: []any{failedLine(arg, err)}}), err)
		}
		return err
	}
	if err := report.print(out, notes, &o.output); err != nil {
		return err
	}
	return report.exit()
}

// unseenMoves returns a warning for each policy that forbids the tag to move: the registry does not
// know where the tag led first.
func unseenMoves(set *policy.Set, ref reference.Reference) (warnings []string) {
	if ref.Digest != "" {
		return nil
	}
	for _, p := range set.For(ref) {
		if pattern := p.Admission.ImmutableTags.Match(ref.Tag); pattern != "" {
			warnings = append(warnings, fmt.Sprintf("policy %q says that %s must not move (%s): without a server it is not known whether it has", p.ID(), ref, pattern))
		}
	}
	return warnings
}

// watchServer asks a server for its verdict on a reference, and again whenever something changes.
func (o *verifyOptions) watchServer(cmd *cobra.Command, l *looker, arg string) error {
	said, verdict := "", error(nil) // the last that was said
	err := l.eachChange(cmd.Context(), []string{imagesPath, imageTagsPath}, func() error {
		var out, notes strings.Builder
		answer := o.answer(cmd.Context(), l, arg, &out, &notes)
		if cmd.Context().Err() != nil {
			return nil
		}
		now := out.String() + notes.String()
		if exit, ok := errors.AsType[*cli.Exit](answer); answer != nil && (!ok || exit.Err != nil) {
			fmt.Fprintf(&notes, "%s\n", printable.Text(answer.Error())) // such as that it is not imported
			now += answer.Error()
		}
		if now != said {
			fmt.Fprint(cmd.OutOrStdout(), out.String())
			fmt.Fprint(cmd.ErrOrStderr(), notes.String())
		}
		said, verdict = now, answer
		return nil
	})
	return cmp.Or(err, verdict)
}

// judge is part of [judge]: it asks a server.
func (l *looker) judge(ctx context.Context, arg string, notes io.Writer) (*verdictReport, error) {
	f, err := l.withImage(ctx, arg, "")
	if err != nil {
		if exit, ok := errors.AsType[*cli.Exit](err); ok {
			exit.Code = exitUndeclared // an unknown verdict is neither signed nor unsigned
		}
		return nil, err
	}
	unknowns := slices.DeleteFunc(f.Unknowns, func(u answers.UnknownPart) bool {
		return u.Part == answers.PartTags || u.Part == answers.PartRunning // it names neither
	})
	warnUnknown(notes, unknowns)
	warnOverwritten(notes, f.Checked.Overwritten)
	v := f.Verdict
	if v == nil {
		var in []string
		for i := range f.Verdicts {
			in = append(in, f.Verdicts[i].Verified+" "+f.Verdicts[i].Reference)
		}
		return nil, &cli.Exit{Code: exitUndeclared, Err: cli.WithHint(fmt.Errorf("%s is in several repositories, each with its own verdict:\n  %s", arg, strings.Join(in, "\n  ")), "name one of them")}
	}
	report := &verdictReport{
		Reference: v.Reference, Digest: f.Meaning.Digest, Verified: v.Verified, Index: v.Index, Until: v.Until, Policy: strings.Join(v.Policies, ","), Spared: v.Spared, Signers: v.Signers,
		Reason: v.Reason, Message: v.Message, Signatures: append([]imagev1.ImageSignature{}, f.image.Signatures...), demands: true,
	}
	for _, u := range unknowns {
		report.Warnings = append(report.Warnings, u.Reason)
	}
	if moved := f.Checked.Overwritten; moved != nil {
		report.Warnings = append(report.Warnings, moved.Message)
	}
	return report, nil
}

// printWarnings writes warnings that may quote a registry.
func printWarnings(w io.Writer, warnings []string) {
	for _, text := range warnings {
		fmt.Fprintf(w, "warning: %s\n", printable.Text(text))
	}
}

// judgeImage computes the verdicts on an Image of a registry under the reference ref. Its tag
// decides which policies cover the image, and some policies demand that the signature names this
// tag.
func judgeImage(asked string, ref reference.Reference, image *imagev1.Image, set *policy.Set, now time.Time, indexes signatures.Indexes) (*verdictReport, error) {
	name, err := reference.Parse(image.DockerImageReference)
	if err != nil {
		return nil, err
	}
	if ref.Tag != "" {
		name, image.DockerImageReference = ref, ref.String()
	}
	signatures.VerifyImage(image, set, now, indexes)
	r := &verdictReport{Reference: asked, Digest: image.Name, Signatures: image.Signatures}
	if r.Signatures == nil {
		r.Signatures = []imagev1.ImageSignature{}
	}
	var names []string
	for _, p := range set.For(name) {
		names = append(names, p.Name)
		r.demands = r.demands || len(p.Attestations) > 0
	}
	r.Policy = strings.Join(names, ",")
	r.Verified, r.Signers, _ = signatures.Summary(image)
	for _, v := range annotation.Judged(image.Annotations) {
		// only the repository that was asked has one
		r.Reason, r.Message, r.Index, r.Until, r.Spared = v.Reason, v.Message, v.Index, v.Until, v.Spared
	}
	return r, nil
}

// exit turns the answer into an exit code. An unsigned image is a no only if a policy demands a
// signature.
func (r *verdictReport) exit() error {
	switch {
	case verdicts.IsVerified(r.Verified):
		return nil
	case r.Policy == "":
		return &cli.Exit{Code: exitUndeclared, Err: cli.WithHint(
			fmt.Errorf("no policy covers %s, so it is not defined who must sign it", r.Reference),
			"tidewaiter verify --policy FILE %s, with a scope that covers it", r.Reference)}
	case r.Verified == verdicts.VerifiedUnknown:
		return &cli.Exit{Code: exitUndeclared}
	case r.Verified == verdicts.Excepted:
		return &cli.Exit{Code: exitExcepted}
	default:
		return &cli.Exit{Code: exitUntrusted}
	}
}

func (r *verdictReport) print(out, notes io.Writer, format *cli.Output) error {
	if !format.ForPeople() {
		if format.String() == "name" && r.Verified == verdicts.VerifiedUnknown { // a name does not say why
			warnUnknown(notes, []answers.UnknownPart{{Part: "verdict", Reason: cmp.Or(r.Message, r.Reason)}})
		}
		return format.Print(out, cli.Document{Whole: r, Items: []any{r}, Names: []string{imageName(r.Digest)}})
	}
	covered := "by policy " + verdicts.Policies(strings.Split(r.Policy, ","), r.Spared)
	if r.Policy == "" {
		covered = "no policy covers it"
	}
	verified := r.Verified
	if r.Until != "" {
		verified += " until " + r.Until
	}
	fmt.Fprintf(out, "%s %s\nverified: %s (%s)%s\n", r.Reference, r.Digest, verified, covered, r.reason())
	if !verdicts.IsVerified(r.Verified) && r.Policy != "" { // else exit says what to do
		fmt.Fprintf(notes, "hint: tidewaiter explain %s\n", cmp.Or(r.Reason, r.Verified))
	}
	if len(r.Signatures) == 0 {
		return nil
	}
	fmt.Fprintln(out)
	table := cli.Table{Columns: []string{"SIGNATURE", "TYPE", "TRUSTED", "FOR IMAGE", "SIGNER", "REASON", "MESSAGE…"}}
	for i := range r.Signatures {
		s := &r.Signatures[i]
		trusted, forImage := verdicts.ConditionOf(s, verdicts.Trusted), verdicts.ConditionOf(s, verdicts.ForImage)
		table.Rows = append(table.Rows, []string{shortName(s.Name), s.Type, string(trusted.Status), string(forImage.Status), signerOf(s), trusted.Reason, trusted.Message})
	}
	return table.Print(out)
}

// reason says why, if no single signature does.
func (r *verdictReport) reason() string {
	if slices.ContainsFunc(r.Signatures, func(s imagev1.ImageSignature) bool {
		return r.Reason != "" && verdicts.ConditionOf(&s, verdicts.Trusted).Reason == r.Reason // the table has it
	}) {
		return ""
	}
	signed := slices.ContainsFunc(r.Signatures, func(s imagev1.ImageSignature) bool { return s.Type != verdicts.TypeAttestation })
	if r.Message == "" || signed && !r.demands && !slices.Contains([]string{verdicts.VerifiedUnknown, verdicts.ByIndex, verdicts.Excepted}, r.Verified) {
		return ""
	}
	return "\nreason: " + r.Message
}

// signerOf is the signer by a root of trust, trusted or not.
func signerOf(s *imagev1.ImageSignature) string {
	if s.IssuedTo == nil {
		return tablecells.Unknown
	}
	return cmp.Or(s.IssuedTo.CommonName, s.IssuedTo.PublicKeyID)
}

// shortName is the beginning of the part of a signature's name that tells it from others of the
// image.
func shortName(name string) string {
	const digits = 12
	if len(name) < 64 {
		return name
	}
	return name[len(name)-64:][:digits]
}

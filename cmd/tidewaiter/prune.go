package main

import (
	"context"
	"crypto/sha256"
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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/cmd/internal/registryplan"
	"github.com/tidewaiter/tidewaiter/coreapi/pages"
	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
	"github.com/tidewaiter/tidewaiter/imageapi/verdicts"
)

// Decisions about an image.
const (
	decisionKeep   = "keep"   // something needs it
	decisionMark   = "mark"   // nothing does: it will be deleted when the grace period is over
	decisionWait   = "wait"   // it is marked, and the grace period is not over
	decisionDelete = "delete" // it is marked, and the grace period is over
	decisionUnmark = "unmark" // it was marked, and something needs it, or it is undone
	decisionFail   = "fail"   // it could not be decided or done
)

// knownVerdicts are those that an image can have.
var knownVerdicts = []string{verdicts.VerifiedTrue, verdicts.ByIndex, verdicts.VerifiedFalse, verdicts.VerifiedUnknown, verdicts.Unsigned, verdicts.NoPolicy, verdicts.Excepted}

// Why an image is kept, beside the reasons that the server has (annotation.TaggedReason and
// others).
const (
	keptDisabled = "disabled"
	keptYoung    = "young"
	keptRevision = "revision"
	keptListed   = "listed"
	keptChanged  = "changed"
	keptVerdict  = "verdict"
)

const (
	prunePage       = 500 // images at a time, without what they are made of
	pruneTagsPage   = 200 // tags at a time, each with its history
	pruneRow        = "%-19s   %-8s   %-20s   %s\n"
	pruneWhy        = cli.MaxWidth - 56 // characters; a longer text is printed below
	leastRepository = 16                // characters that say something of a repository
	maxPruneReason  = 300               // bytes of a reason that is shown
)

type pruneOptions struct {
	clientOptions
	confirm, undo, kept bool
	withoutWorkloads    bool
	withoutClusters     bool
	revisions           int
	younger, grace      time.Duration
	verdicts            []string
	plan, commands      string
	output              cli.Output
	now                 func() time.Time
}

// pruned is the decision about an image, and its reason.
type pruned struct {
	Image      string     `json:"image"`
	Repository string     `json:"repository,omitempty"`
	Decision   string     `json:"decision"`
	Reason     string     `json:"reason,omitempty"`
	Message    string     `json:"message"`
	After      *time.Time `json:"after,omitempty"` // when it is deleted

	// why it is unknown whether something needs it, and a flag says that this does not matter
	unasked string
}

// errUnfollowed ends a run that cannot know what runs.
var errUnfollowed = errors.New("it is not known what runs, as the server follows no cluster")

// pruner decides about images page by page. It remembers only which images are revisions of tags.
type pruner struct {
	*pruneOptions
	images      metadata.Getter
	client      *imageclient.Client
	ask         func(context.Context, ...answers.Question) ([]answers.Answer, error)
	revisionsOf map[imageKey]string // each with a tag that led to it
	goes        map[imageKey]bool   // images that a plan deletes; nil if marks decide
	report      func(pruned) error
	counts      map[string]int // by decision, and by decision and reason
}

// imageKey is the key of an image's name: 16 bytes of a digest of it.
type imageKey [16]byte

func keyOf(name string) imageKey {
	sum := sha256.Sum256([]byte(name))
	return imageKey(sum[:16])
}

func newPruneCommand() *cobra.Command {
	o := &pruneOptions{now: time.Now}
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
			if err := o.check(args); err != nil {
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
			p := &pruner{pruneOptions: o, images: images.Resource(imagev1.GroupVersion.WithResource("images")), client: l.client, ask: l.ask, counts: map[string]int{}}
			run := p.run
			if o.plan != "" {
				run = func(ctx context.Context, out io.Writer) error { return p.planFor(ctx, out, args[0]) }
			}
			if err := run(cmd.Context(), cmd.OutOrStdout()); errors.Is(err, errUnfollowed) {
				return cli.WithHint(err, "name clusters in the server's configuration, or ownPodsOnly: true if no cluster runs its images; --without-clusters prunes once by tags and its own pods alone")
			} else if err != nil {
				return err
			}
			if !o.confirm && o.plan == "" {
				fmt.Fprintln(cmd.ErrOrStderr(), "nothing was changed; to apply this, add --confirm")
			}
			n := p.counts[decisionFail]
			for _, unknown := range []string{annotation.UnknownReason, annotation.WorkloadsReason} {
				n += p.counts[decisionKeep+" "+unknown] + p.counts[decisionUnmark+" "+unknown]
			}
			if n > 0 {
				return &cli.Exit{Code: cli.ExitSome, Err: fmt.Errorf("%d images could not be changed, or it is unknown whether something needs them", n)}
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.confirm, "confirm", false, "apply the changes instead of only showing them")
	f.IntVar(&o.revisions, "keep-tag-revisions", 3, "keep the last N images of each tag that its registry still has")
	f.DurationVar(&o.younger, "keep-younger-than", time.Hour, "keep images that are younger than this")
	f.StringSliceVar(&o.verdicts, "verdict", nil, "only images with one of these verdicts in every one of their repositories: True, ByIndex, False, Unknown, Unsigned (a policy demands a signature), NoPolicy, Excepted (default: any)")
	f.DurationVar(&o.grace, "grace", 24*time.Hour, "time between marking an image and deleting it, in which --undo works")
	f.BoolVar(&o.undo, "undo", false, "remove the marks, and delete nothing")
	f.BoolVar(&o.withoutWorkloads, "without-workloads", false, "delete even if it is unknown what workloads need: then only pods and tags keep images")
	f.BoolVar(&o.withoutClusters, "without-clusters", false, "delete even if the server follows no cluster, so that it is unknown what runs: then only tags and the server's own pods keep images")
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
	case o.plan != "" && (o.confirm || o.undo || format == "name" || format == "jsonl"):
		return cli.Misuse(errors.New("--plan changes nothing, so it goes with neither --confirm nor --undo; it prints json and yaml"), hint)
	case o.commands != "" && format != "":
		return cli.Misuse(errors.New("--commands prints commands, and -o a document"), "give one of them")
	case o.commands != "" && !slices.Contains(registryplan.Formats, o.commands):
		return cli.Misuse(fmt.Errorf("--commands %s is not known", o.commands), "it is one of %s", strings.Join(registryplan.Formats, ", "))
	}
	if o.revisions < 0 || o.younger < 0 || o.grace < 0 {
		return cli.Misuse(errors.New("--keep-tag-revisions, --keep-younger-than and --grace cannot be negative"), "0 turns the rule off")
	}
	for _, verdict := range o.verdicts {
		if !slices.Contains(knownVerdicts, verdict) {
			return cli.Misuse(fmt.Errorf("--verdict %s is not known", verdict), "it is one of %s", strings.Join(knownVerdicts, ", "))
		}
	}
	return nil
}

// run decides about all selected images, and writes the decisions to out as they are made.
func (p *pruner) run(ctx context.Context, out io.Writer) error {
	end := p.printTo(out)
	if !p.undo {
		if err := p.readRevisions(ctx); err != nil {
			return err
		}
	}
	selected := []string{""}
	if len(p.verdicts) > 0 {
		selected = nil
		for _, verdict := range p.verdicts {
			selected = append(selected, fields.OneTermEqualSelector("signatures.verified", verdict).String())
		}
	}
	for _, selector := range selected {
		err := pages.Each(ctx, metav1.ListOptions{Limit: prunePage, FieldSelector: selector}, p.images.List, func(list *metav1.PartialObjectMetadataList) error {
			for i := range list.Items {
				if err := p.one(ctx, &list.Items[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if errors.Is(err, errUnfollowed) && !p.output.ForPeople() {
			return errors.Join(err, end()) // programs read to the end
		}
		if err != nil {
			return err
		}
	}
	return end()
}

// readRevisions reads which images the tags have led to lately.
func (p *pruner) readRevisions(ctx context.Context) error {
	p.revisionsOf = map[imageKey]string{}
	keep := func(tag string, items []imagev1.TagEvent) {
		if len(items) == 0 || items[0].Image == "" {
			return // the registry no longer has it
		}
		n := 0
		for _, item := range items {
			if item.Image == "" {
				continue
			}
			if n++; n > p.revisions {
				return
			}
			if key := keyOf(item.Image); p.revisionsOf[key] == "" {
				p.revisionsOf[key] = tag
			}
		}
	}
	err := pages.Each(ctx, metav1.ListOptions{Limit: pruneTagsPage}, p.client.ListTags, func(list *imagev1.ImageTagList) error {
		for i := range list.Items {
			if tag := &list.Items[i]; tag.Status != nil {
				keep(tag.Namespace+"/"+tag.Name, tag.Status.Items)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return pages.Each(ctx, metav1.ListOptions{Limit: pruneTagsPage}, p.client.ListStreams, func(list *imagev1.ImageStreamList) error {
		for i := range list.Items {
			stream := &list.Items[i]
			if stream.Annotations[tags.Auto] != "" {
				continue // it has only what the ImageTags have
			}
			for _, tag := range stream.Status.Tags {
				keep(stream.Namespace+"/"+stream.Name+":"+tag.Tag, tag.Items)
			}
		}
		return nil
	})
}

// one decides about one image, acts and reports.
func (p *pruner) one(ctx context.Context, image *metav1.PartialObjectMetadata) error {
	d, err := p.decide(ctx, image)
	repository := ""
	if err == nil {
		repository, err = p.repository(ctx, image, d.Decision)
	}
	if err == nil && p.confirm {
		err = p.do(ctx, image, &d)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, errUnfollowed) {
		return err
	}
	if apierrors.IsNotFound(err) {
		return nil // somebody else has deleted it
	}
	if reason, message := refusal(err); reason != "" {
		d, err = pruned{Decision: decisionKeep, Reason: reason, Message: message}, nil
	}
	if err != nil {
		d.Decision, d.Reason, d.Message, d.After = decisionFail, "", err.Error(), nil
	}
	d.Image, d.Repository = image.Name, repository
	d.Message = printable.Line(d.Message, maxPruneReason)
	p.counts[d.Decision]++
	p.counts[d.Decision+" "+d.Reason]++
	if d.Decision == decisionKeep && !p.kept && d.Reason != annotation.UnknownReason && d.Reason != annotation.WorkloadsReason {
		return nil
	}
	return p.report(d)
}

// repository returns a repository of an image. It is "" for a kept image whose annotations name
// none, as the image is not read for that.
func (p *pruner) repository(ctx context.Context, image *metav1.PartialObjectMetadata, decision string) (string, error) {
	own := ""
	if decision != decisionKeep && len(annotation.In(image.Annotations, "", image.Name)) == 0 {
		whole, err := p.client.Get(ctx, image.Name, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		own = whole.DockerImageReference
	}
	for _, in := range annotation.In(image.Annotations, own, image.Name) {
		return in.Name(), nil
	}
	return "", nil
}

// decide decides about an image. It asks the server at most three times.
func (p *pruner) decide(ctx context.Context, image *metav1.PartialObjectMetadata) (pruned, error) {
	after, marked := annotation.Marked(image.Annotations)
	_, written := image.Annotations[annotation.PruneAfter]
	keep := func(reason, format string, args ...any) (pruned, error) {
		d := pruned{Decision: decisionKeep, Reason: reason, Message: fmt.Sprintf(format, args...)}
		if written {
			d.Decision = decisionUnmark
		}
		return d, nil
	}
	if p.undo {
		return keep("undone", "--undo")
	}
	if value, ok := image.Annotations[annotation.Prune]; ok {
		return keep(keptDisabled, "%s: %s", annotation.Prune, value)
	}
	if age := p.now().Sub(image.CreationTimestamp.Time); age < p.younger {
		return keep(keptYoung, "stored %s ago, less than %s", age.Truncate(time.Second), p.younger)
	}
	if tag := p.revisionsOf[keyOf(image.Name)]; tag != "" {
		return keep(keptRevision, "one of the last %d images of %s", p.revisions, tag)
	}
	above, err := p.images.List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("lists", image.Name).String(), Limit: prunePage})
	if err != nil {
		return pruned{}, err
	}
	for i := range above.Items {
		index := &above.Items[i]
		if tag := p.revisionsOf[keyOf(index.Name)]; tag != "" {
			return keep(keptRevision, "listed by index %s, one of the last %d images of %s", index.Name, p.revisions, tag)
		}
		if index.Name != image.Name && p.stays(index) {
			return keep(keptListed, "index %s lists it", index.Name)
		}
	}
	if above.Continue != "" {
		return keep(keptListed, "more than %d indexes list it", prunePage)
	}
	options, d := p.precondition(image), pruned{Message: "nothing needs it"}
	options.DryRun = []string{metav1.DryRunAll}
	if err := p.images.Delete(ctx, image.Name, options); err != nil {
		reason, message := refusal(err)
		switch {
		case reason == "":
			return pruned{}, err
		case reason == annotation.ClustersReason && !p.withoutClusters:
			return pruned{}, errUnfollowed
		case reason == annotation.ClustersReason, reason == annotation.WorkloadsReason && p.withoutWorkloads:
			d = pruned{Message: "nothing is known to need it", unasked: reason}
		default:
			return keep(reason, "%s", message)
		}
	}
	if reason, message, err := p.otherVerdict(ctx, image.Name); err != nil {
		return pruned{}, err
	} else if reason != "" {
		return keep(reason, "%s", message)
	}
	switch {
	case !marked:
		after = p.now().Add(p.grace).UTC().Truncate(time.Second)
		d.Decision = decisionMark
	case p.now().Before(after):
		d.Decision = decisionWait
	default:
		d.Decision = decisionDelete
		d.Message += ", and it was marked"
	}
	d.After = &after
	return d, nil
}

// stays reports whether an index stays.
func (p *pruner) stays(index *metav1.PartialObjectMetadata) bool {
	_, goes := annotation.Marked(index.Annotations)
	if p.goes != nil {
		goes = p.goes[keyOf(index.Name)]
	}
	_, disabled := index.Annotations[annotation.Prune]
	return disabled || !goes
}

// planWarning says which images no plan knows.
const planWarning = "what was never imported is not known, such as an index that lists an image which may be deleted: import all that the registry has first (tidewaiter import --catalog), and delete nothing else"

// planFor prints what a registry may delete.
func (p *pruner) planFor(ctx context.Context, out io.Writer, where string) error {
	host, path, _ := strings.Cut(strings.TrimSuffix(where, "/"), "/")
	host, err := reference.ParseHost(host)
	if err != nil {
		return cli.Misuse(err, "tidewaiter prune --plan registry registry.example.com/team")
	}
	if err := p.readRevisions(ctx); err != nil {
		return err
	}
	p.goes = map[imageKey]bool{}
	plan := registryplan.New(strings.TrimSuffix(host+"/"+path, "/"), p.now())
	plan.Warnings = append(plan.Warnings, planWarning)
	asked := reference.Reference{Host: host, Repository: path}
	is := func(r reference.Reference) bool { return r.Below(asked) }
	var listed []string // images that are kept only because an index lists them
	err = pages.Each(ctx, metav1.ListOptions{Limit: prunePage}, p.images.List, func(list *metav1.PartialObjectMetadataList) error {
		for i := range list.Items {
			again, err := p.planOne(ctx, plan, &list.Items[i], is, false)
			if err != nil {
				return err
			}
			if again {
				listed = append(listed, list.Items[i].Name)
			}
		}
		return nil
	})
	for err == nil && len(listed) > 0 {
		// what goes may have been the last index that listed an image
		var left []string
		if left, err = p.planListed(ctx, plan, listed, is, false); err == nil && len(left) == len(listed) {
			left, err = p.planListed(ctx, plan, listed, is, true)
		}
		listed = left
	}
	if err != nil {
		return err
	}
	plan.Finish()
	switch {
	case p.commands != "":
		return plan.Commands(out, p.commands)
	case !p.output.ForPeople():
		return p.output.Print(out, cli.Document{Whole: plan})
	}
	return plan.Print(out)
}

// planListed decides once more about images that indexes list. left are those for which it is not
// the last time and nothing has changed.
func (p *pruner) planListed(ctx context.Context, plan *registryplan.Plan, names []string, is func(reference.Reference) bool, last bool) (left []string, err error) {
	for _, name := range names {
		image, err := p.images.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		var again bool
		if err == nil {
			again, err = p.planOne(ctx, plan, image, is, last)
		}
		if err != nil {
			return nil, err
		}
		if again {
			left = append(left, name)
		}
	}
	return left, nil
}

// planOne adds an image to a plan, once for each of the repositories that are planned. again is
// true, and nothing is added, if indexes are all that keeps it, which may go yet.
func (p *pruner) planOne(ctx context.Context, plan *registryplan.Plan, image *metav1.PartialObjectMetadata, is func(reference.Reference) bool, last bool) (again bool, err error) {
	var whole *imagev1.Image
	in := annotation.In(image.Annotations, "", image.Name)
	if len(in) == 0 {
		if whole, err = p.client.Get(ctx, image.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, err
		}
		in = annotation.In(whole.Annotations, whole.DockerImageReference, whole.Name)
	}
	if in = slices.DeleteFunc(in, func(r reference.Reference) bool { return !is(r) }); len(in) == 0 {
		return false, nil
	}
	d, err := p.decide(ctx, image)
	kind := registryplan.Delete
	switch {
	case errors.Is(err, errUnfollowed) || ctx.Err() != nil:
		return false, err
	case apierrors.IsNotFound(err):
		return false, nil // somebody has deleted it here, so it is not known
	case err != nil:
		kind, d.Reason, d.Message = registryplan.Unknown, decisionFail, err.Error()
	case d.Reason == annotation.UnknownReason, d.Reason == annotation.WorkloadsReason:
		kind = registryplan.Unknown
	case d.Reason == keptListed && !last:
		return true, nil
	case d.Decision == decisionKeep, d.Decision == decisionUnmark:
		kind = registryplan.Keep
	}
	if whole == nil && image.Annotations[annotation.Platform] == "" { // it may be an index
		if whole, err = p.client.Get(ctx, image.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	switch kind {
	case registryplan.Delete:
		p.goes[keyOf(image.Name)] = true
		d.Message = strings.TrimSuffix(d.Message, ", and it was marked")
	case registryplan.Unknown:
		p.counts[decisionFail]++ // as the exit code says
	}
	one := registryplan.Image{Digest: image.Name, Reason: d.Reason, Message: printable.Line(d.Message, maxPruneReason)}
	if whole != nil {
		one.Lists = manifest.Listed(whole)
	}
	found := annotation.Found(image.Annotations)
	for _, repository := range in {
		of := one
		r := found[repository.String()]
		of.Attached = r.Holders()
		if r.Unread != "" || r.Cut {
			plan.Warn(fmt.Sprintf("not all signatures of images in %s are known", repository.Name()))
		}
		for _, ref := range annotation.Known(image.Annotations) {
			if ref.Tag != "" && ref.Bare() == repository {
				of.Tags = append(of.Tags, ref.Tag)
			}
		}
		if d.unasked != "" {
			plan.Warn("it is not known what runs everywhere, and a flag says that this does not matter")
		}
		if err := plan.Add(repository.Name(), kind, of); err != nil {
			return false, err
		}
	}
	return false, nil
}

// otherVerdict says in which repository an image has another verdict than those that are to go; no
// reason if it has none, or if all verdicts may go. The list of images has the worst verdict of
// each; a review returns the others.
func (p *pruner) otherVerdict(ctx context.Context, name string) (reason, message string, err error) {
	if len(p.verdicts) == 0 {
		return "", "", nil
	}
	all, err := p.ask(ctx, answers.Question{Reference: name})
	if err != nil {
		return "", "", err
	}
	given := all[0].Verdicts
	if all[0].Verdict != nil {
		given = append(given, *all[0].Verdict)
	}
	for _, v := range given {
		if !slices.Contains(p.verdicts, v.Verified) {
			return keptVerdict, fmt.Sprintf("the verdict for %s is %s", v.Reference, v.Verified), nil
		}
	}
	for _, unknown := range all[0].Unknowns {
		if unknown.Part == "verdict" {
			return annotation.UnknownReason, "its verdicts are not all known: " + unknown.Reason, nil
		}
	}
	return "", "", nil
}

// refusal returns why the server would not delete an image; no reason if err is another error. Of
// several reasons it is the first that is known, else that pods and tags are unknown, then that no
// cluster is followed, and last that workloads are.
func refusal(err error) (reason, message string) {
	var status apierrors.APIStatus
	if !apierrors.IsConflict(err) || !errors.As(err, &status) {
		return "", ""
	}
	reason, message = keptChanged, "it changed in the meantime"
	if details := status.Status().Details; details != nil {
		weak := []string{annotation.UnknownReason, annotation.ClustersReason, annotation.WorkloadsReason, keptChanged}
		for _, cause := range details.Causes {
			// The index of a reason that is known is -1.
			if slices.Index(weak, string(cause.Type)) < slices.Index(weak, reason) {
				reason, message = string(cause.Type), cause.Message
			}
		}
	}
	return reason, message
}

// precondition makes the server refuse a deletion if the image has changed since.
func (p *pruner) precondition(image *metav1.PartialObjectMetadata) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &image.UID, ResourceVersion: &image.ResourceVersion}}
}

// do carries out a decision, unless the image has changed since.
func (p *pruner) do(ctx context.Context, image *metav1.PartialObjectMetadata, d *pruned) error {
	var value any
	switch d.Decision {
	case decisionDelete:
		if d.unasked != "" {
			words := strings.TrimPrefix(image.Annotations[annotation.AllowDelete]+","+d.unasked, ",")
			var err error
			if image, err = p.annotate(ctx, image, annotation.AllowDelete, words); err != nil {
				return err
			}
		}
		return p.images.Delete(ctx, image.Name, p.precondition(image))
	case decisionMark:
		value = d.After.Format(time.RFC3339)
	case decisionUnmark:
	default:
		return nil
	}
	_, err := p.annotate(ctx, image, annotation.PruneAfter, value)
	return err
}

// annotate writes an annotation, or takes it off if the value is nil, unless the image has changed
// since.
func (p *pruner) annotate(ctx context.Context, image *metav1.PartialObjectMetadata, name string, value any) (*metav1.PartialObjectMetadata, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": image.ResourceVersion, "annotations": map[string]any{name: value},
	}})
	if err != nil {
		return nil, err
	}
	return p.images.Patch(ctx, image.Name, types.MergePatchType, patch, metav1.PatchOptions{})
}

// printTo prepares to write decisions to out. end finishes the output.
func (p *pruner) printTo(out io.Writer) (end func() error) {
	switch p.output.String() {
	case "name":
		p.report = func(d pruned) error { return p.output.Print(out, cli.Document{Names: []string{imageName(d.Image)}}) }
		return func() error { return nil }
	case "jsonl":
		p.report = func(d pruned) error { return p.output.Print(out, cli.Document{Items: []any{d}}) }
		return func() error { return p.output.Print(out, cli.Document{Items: []any{p.ended()}}) }
	case "yaml":
		begun := false
		p.report = func(d pruned) error {
			if !begun {
				begun = true
				fmt.Fprintln(out, "images:")
			}
			return p.output.Print(out, cli.Document{Whole: []pruned{d}})
		}
		return func() error {
			if !begun {
				fmt.Fprintln(out, "images: []")
			}
			return p.output.Print(out, cli.Document{Whole: p.ended()})
		}
	case "json":
		separator := `{"images":[`
		p.report = func(d pruned) error {
			b, err := json.Marshal(d)
			if err == nil {
				_, err = fmt.Fprintf(out, "%s\n  %s", separator, b)
			}
			separator = ","
			return err
		}
		return func() error {
			if separator != "," {
				fmt.Fprint(out, separator)
			}
			b, err := json.Marshal(p.ended())
			if err == nil {
				_, err = fmt.Fprintf(out, "\n],%s\n", b[1:])
			}
			return err
		}
	}
	begun := false
	p.report = func(d pruned) error {
		if !begun {
			begun = true
			fmt.Fprintf(out, pruneRow, "IMAGE", "DECISION", "AFTER", "WHY")
		}
		after := "<none>"
		if d.After != nil {
			after = d.After.Format(time.RFC3339)
		}
		why, below := d.Message, ""
		if room := pruneWhy - utf8.RuneCountInString(why) - len(" ()"); d.Repository != "" && room >= leastRepository {
			why += " (" + cli.CutLeft(printable.Line(d.Repository, 0), room) + ")"
		}
		if utf8.RuneCountInString(why) > pruneWhy {
			why, below = "", "\n    "+strings.Join(cli.Wrap(why, cli.MaxWidth-4), "\n    ")
		}
		line := fmt.Sprintf(pruneRow, printable.Line(reference.ShortDigest(d.Image), 0), d.Decision, after, why)
		_, err := io.WriteString(out, strings.TrimRight(line, " \n")+below+"\n")
		return err
	}
	return func() error {
		var texts []string
		counts := p.summary()
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
func (p *pruner) ended() map[string]any {
	return map[string]any{"confirmed": p.confirm, "counts": p.summary()}
}

// summary counts the decisions, and the kept images by reason.
func (p *pruner) summary() map[string]int {
	counts := map[string]int{}
	for what, n := range p.counts {
		decision, reason, detailed := strings.Cut(what, " ")
		if detailed == (decision == decisionKeep) && (!detailed || reason != "") {
			counts[what] = n
		}
	}
	return counts
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/annotation"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/imageapi/selectors"
	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// exitAbsent is the exit code of verbs that look something up on a server, when the server does not know it. A
// reference that may mean several images is exitNone, like all other failures.
const exitAbsent = 1

// maxCandidates is how many meanings of a reference are named.
const maxCandidates = 10

// referenceHelp is the help on references of the verbs that look images up.
const referenceHelp = `REF is a tag (registry.example.com/team/app:v1; without a tag, latest), a digest
(sha256:9f86d0…, also behind a repository and @), or the beginning of a digest, at
least four digits: sha256:9f86, 9f86d081884c. docker.io/library may be left out as
Docker has it. Where docker.io has no such tag here, team/app:v1 and app:v1 are
those of the one registry that has them; with several the command says which.`

// imagesPath is the path of images on a server.
var imagesPath = "/apis/" + imagev1.GroupVersion.String() + "/images"

// looker looks images up on a server.
type looker struct {
	server apiTarget
	config *restclient.Config
	client *imageclient.Client
	verb   string // the verb that looks
}

// looker returns a looker at the server that the flags name. It prints the server's warnings.
func (o *clientOptions) looker(cmd *cobra.Command) (*looker, error) {
	server, err := o.running(cmd)
	if err != nil {
		return nil, err
	}
	config := restclient.CopyConfig(server.config)
	config.WarningHandler = restclient.NewWarningWriter(cmd.ErrOrStderr(), restclient.WarningWriterOptions{Deduplicate: true})
	client, err := newImageClient(config)
	return &looker{server: server, config: config, client: client, verb: cmd.CommandPath()}, err
}

// found is the meaning of a reference.
type found struct {
	asked string
	// ref is the full reference, with its tag if it has one; it is zero if only a digest was given.
	ref reference.Reference
	// tag is nil if none was given, or if the server keeps no history of it.
	tag *imagev1.ImageTag
	// image is nil if the tag leads to none that is stored.
	image *imagev1.Image
}

// name is what to call it in messages.
func (f *found) name() string {
	if f.ref != (reference.Reference{}) {
		return f.ref.String()
	}
	return f.asked
}

var (
	digestText = regexp.MustCompile(`^sha(256|512):`)
	digitsText = regexp.MustCompile(`^[0-9a-f]{4,128}$`)
)

// find looks up what a person means. It makes a few requests, each for at most a page.
func (l *looker) find(ctx context.Context, asked string) (*found, error) {
	name, digest, hasDigest := strings.Cut(asked, "@")
	if digestText.MatchString(asked) {
		digest = asked
	}
	if hasDigest || digest != "" {
		f, err := l.byDigest(ctx, asked, digest)
		if err == nil && hasDigest {
			err = l.inRepository(f, name)
		}
		return f, err
	}
	ref, bad := reference.Parse(asked)
	isDigits := digitsText.MatchString(asked)
	if bad != nil && !isDigits {
		return nil, l.explain(bad)
	}
	if bad == nil {
		if f, err := l.byTag(ctx, asked, ref); f != nil || err != nil {
			return f, err
		}
	}
	if isDigits {
		f, err := l.byDigest(ctx, asked, asked)
		var exit *exitError
		if !errors.As(err, &exit) || exit.code != exitAbsent {
			return f, err
		}
	}
	return nil, l.absent(ctx, asked, ref)
}

// ofArtifacts selects artifacts.
var ofArtifacts = fields.OneTermEqualSelector(selectors.Artifact, "true")

// byDigest finds the image whose digest has the given beginning.
func (l *looker) byDigest(ctx context.Context, asked, beginning string) (*found, error) {
	if reference.IsDigest(beginning) {
		image, err := l.client.Get(ctx, beginning, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, l.nothing("no image has the digest %s", beginning)
		}
		return &found{asked: asked, image: image}, l.explain(err)
	}
	selector := fields.OneTermEqualSelector(selectors.Digest, beginning)
	list, err := l.client.List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err == nil && len(list.Items) == 0 {
		list, err = l.client.List(ctx, metav1.ListOptions{FieldSelector: fields.AndSelectors(selector, ofArtifacts).String()})
	}
	switch {
	case err != nil:
		return nil, l.explain(err)
	case len(list.Items) == 0:
		return nil, l.nothing("no image has a digest that begins with %s", beginning)
	case len(list.Items) == 1:
		return &found{asked: asked, image: &list.Items[0]}, nil
	}
	var names []string
	for i := range list.Items {
		image := &list.Items[i]
		names = append(names, image.Name+" "+image.DockerImageReference)
	}
	return nil, ambiguous(asked, "several images", names, "more digits name one")
}

// inRepository refuses an image that is not known to be in the repository that was asked for.
func (l *looker) inRepository(f *found, name string) error {
	ref, err := reference.Parse(name)
	if err != nil {
		return l.explain(err)
	}
	in := annotation.In(f.image.Annotations, f.image.DockerImageReference, f.image.Name)
	if slices.Contains(in, ref.Bare()) {
		f.ref = ref.WithDigest(f.image.Name)
		return nil
	}
	var names []string
	for _, r := range in {
		names = append(names, r.Name())
	}
	return l.nothing("%s is not known to be in %s, but in %s", f.image.Name, ref.Name(), strings.Join(names[:min(len(names), maxCandidates)], ", "))
}

// byTag finds a tag and the image that it leads to; nil if the server does not know the tag.
func (l *looker) byTag(ctx context.Context, asked string, ref reference.Reference) (*found, error) {
	pulled := ref.Pulled()
	tag, err := l.client.GetTag(ctx, tags.Name(pulled), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if tag, err = l.byShortName(ctx, asked, pulled); tag == nil && err == nil {
			return l.recorded(ctx, asked, pulled)
		}
	}
	if err != nil {
		return nil, l.explain(err)
	}
	f := &found{asked: asked, ref: pulled, tag: tag}
	if followed, ok := tags.Reference(tag); ok {
		f.ref = followed
	}
	if now, _ := tags.Now(tag); now != "" {
		f.image, err = l.client.Get(ctx, now, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			f.image, err = nil, nil
		}
	}
	return f, l.explain(err)
}

// byShortName finds the tag of a reference that was given without its registry.
func (l *looker) byShortName(ctx context.Context, asked string, ref reference.Reference) (*imagev1.ImageTag, error) {
	first, _, hasPath := strings.Cut(asked, "/")
	if ref.Host != reference.DockerHub || hasPath && strings.ContainsAny(first, ".:") {
		return nil, nil // the registry was given
	}
	short := ref.Repository + ":" + ref.Tag
	if !hasPath {
		short = strings.TrimPrefix(short, "library/")
	}
	list, err := l.client.ListTags(ctx, metav1.ListOptions{Limit: maxCandidates + 1, FieldSelector: fields.OneTermEqualSelector(selectors.TagShort, short).String()})
	if err != nil || len(list.Items) == 0 {
		return nil, err
	}
	if len(list.Items) == 1 {
		return &list.Items[0], nil
	}
	var names []string
	for i := range list.Items {
		followed, _ := tags.Reference(&list.Items[i])
		names = append(names, followed.String())
	}
	return nil, ambiguous(asked, "tags of several repositories", names, "the registry's name makes it one")
}

// recorded finds the image that records a reference of which no history is kept.
func (l *looker) recorded(ctx context.Context, asked string, ref reference.Reference) (*found, error) {
	list, err := l.client.List(ctx, metav1.ListOptions{Limit: 2, FieldSelector: fields.OneTermEqualSelector(selectors.References, ref.String()).String()})
	switch {
	case err != nil:
		return nil, l.explain(err)
	case len(list.Items) == 0:
		return nil, nil
	case len(list.Items) == 1:
		return &found{asked: asked, ref: ref, image: &list.Items[0]}, nil
	}
	return nil, ambiguous(asked, "several images, as nobody has looked where the tag leads since this is kept", []string{list.Items[0].Name, list.Items[1].Name}, "tidewaiter import "+ref.String()+" looks")
}

func ambiguous(asked, what string, names []string, hint string) error {
	text := fmt.Sprintf("%s may be %s:", asked, what)
	for _, name := range names[:min(len(names), maxCandidates)] {
		text += "\n  " + name
	}
	if len(names) > maxCandidates {
		text += "\n  and more"
	}
	return withHint(errors.New(text), "%s", hint)
}

// nothing is the error for something that the server does not know.
func (l *looker) nothing(format string, args ...any) error {
	return &exitError{code: exitAbsent, err: fmt.Errorf(format+": %s does not know it", append(args, l.server.destination())...)}
}

// absent is that error with advice.
func (l *looker) absent(ctx context.Context, asked string, ref reference.Reference) error {
	if ref == (reference.Reference{}) {
		return l.nothing("no image has a digest that begins with %s", asked)
	}
	pulled, hint := ref.Pulled(), "tidewaiter import "+ref.Pulled().String()
	list, err := l.client.ListTags(ctx, metav1.ListOptions{Limit: maxCandidates, FieldSelector: fields.OneTermEqualSelector(selectors.TagRepository, pulled.Name()).String()})
	if err == nil && len(list.Items) > 0 {
		var known []string
		for i := range list.Items {
			if followed, ok := tags.Reference(&list.Items[i]); ok {
				known = append(known, followed.Tag)
			}
		}
		if list.Continue != "" {
			known = append(known, "…")
		}
		hint += "; known tags of the repository: " + strings.Join(known, ", ")
	}
	err = l.nothing("nothing is %s", pulled)
	return &exitError{code: exitAbsent, err: withHint(errors.Unwrap(err), "%s", hint)}
}

// one is find for the verbs that need exactly one image.
func (l *looker) one(ctx context.Context, asked string) (*found, error) {
	f, err := l.find(ctx, asked)
	if err != nil || f.image != nil {
		return f, err
	}
	now, known := tags.Now(f.tag)
	say := func(hint, format string, args ...any) (*found, error) {
		return nil, &exitError{code: exitAbsent, err: withHint(fmt.Errorf(format, args...), "%s", hint)}
	}
	switch {
	case now != "":
		return say("tidewaiter import "+f.name(), "%s leads to %s, which is not imported", f.name(), now)
	case known:
		items, before := f.tag.Status.Items, ""
		if len(items) > 1 {
			before = ", and led to " + items[1].Image + " before"
		}
		return say("tidewaiter history "+f.name(), "%s is gone from its registry since %s%s", f.name(), items[0].Created.UTC().Format(time.RFC3339), before)
	}
	why := ""
	if c := tags.Failure(f.tag); c != nil {
		why = ": " + c.Reason + ": " + c.Message
	}
	return say("tidewaiter import "+f.name(), "nobody has seen yet where %s leads%s", f.name(), why)
}

// explain adds advice to an error of the server, or about a reference.
func (l *looker) explain(err error) error {
	var bad *reference.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &bad) && bad.Suggestion != "":
		return withHint(err, "%s %s", l.verb, bad.Suggestion)
	case utilnet.IsConnectionRefused(err):
		return withHint(err, "no server answers at %s: start it (tidewaiter serve), or name another with --server or --kubeconfig", l.server.destination())
	case apierrors.IsUnauthorized(err):
		return withHint(err, "the credential is of another server, or has expired: --kubeconfig or --token-file names another")
	}
	return err
}

// getOptions are the flags of get.
type getOptions struct {
	clientOptions
	output string
}

func newGetCommand() *cobra.Command {
	o := &getOptions{}
	cmd := &cobra.Command{
		Use:   "get REF",
		Short: "Show an image in a line: repository, tags, verdict, pods, age",
		Long: `Show an image that a server knows, in the line that kubectl get images has for it.

` + referenceHelp + `

The exit code is 0 when the image was found, 1 when the server knows no such image,
and 2 when REF may be several, or the server could not be asked.`,
		Example: `  # By tag, and by the beginning of a digest
  tidewaiter get registry.example.com/team/app:v1
  tidewaiter get 9f86d081884c

  # For programs: the Image, or its name
  tidewaiter get -o json registry.example.com/team/app:v1
  tidewaiter get -o name registry.example.com/team/app:v1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{"", "wide", "name", "json"}, o.output) {
				return misuse(fmt.Errorf("-o %s is not known", o.output), "-o wide, -o name, -o json, or without -o a line")
			}
			l, err := o.looker(cmd)
			if err != nil {
				return err
			}
			f, err := l.one(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			switch o.output {
			case "json":
				f.image.SetGroupVersionKind(imagev1.GroupVersion.WithKind("Image"))
				return printJSON(cmd.OutOrStdout(), f.image)
			case "name":
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "image.%s/%s\n", imagev1.GroupName, printable.Line(f.image.Name, 0))
				return err
			}
			selector := fields.OneTermEqualSelector("metadata.name", f.image.Name)
			if f.image.Annotations[annotation.ArtifactType] != "" {
				selector = fields.AndSelectors(selector, ofArtifacts)
			}
			query := url.Values{"fieldSelector": {selector.String()}}
			return l.explain(printTable(cmd.Context(), cmd.OutOrStdout(), l.config, imagesPath, query, o.output == "wide"))
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "", "wide, name or json")
	o.addFlags(cmd)
	return cmd
}

// printJSON prints a document for programs.
func printJSON(w io.Writer, document any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "    ")
	return e.Encode(document)
}

// checkJSON refuses an unknown -o of the verbs with a page for people.
func checkJSON(output string) error {
	if output != "" && output != "json" {
		return misuse(fmt.Errorf("-o %s is not known", output), "-o json, or without -o a page")
	}
	return nil
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/nearest"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// exitAbsent is the exit code of verbs that look something up on a server, when the server does not
// know it. A reference that may mean several images is exitNone, like all other failures.
const exitAbsent = 1

// referenceHelp is the help on references of the verbs that look images up.
const referenceHelp = `REF is a tag (registry.example.com/team/app:v1; without a tag, latest), a digest
(sha256:9f86d0…, also after a repository and @), or the beginning of a digest, at
least four digits: sha256:9f86, 9f86d081884c. docker.io/library may be omitted, as
with Docker. If no docker.io tag is known here, team/app:v1 and app:v1 stand for the
tag in the one registry that has it; if several do, the command lists them.`

// looker looks images up on a server.
type looker struct {
	Server apiTarget
	Config *restclient.Config
	client *imageclient.Client
	// command and args are the verb that looks, and its arguments.
	command string
	args    []string
	// formerTags has the histories of tags searched for those that led to an image.
	formerTags bool
	// namespace is whose pods ask, if that was said.
	namespace string
	// local is the namespace whose pods are asked about if the caller may not ask about all images;
	// "" for none. isLocal is true once that was so.
	local   string
	isLocal bool
	// notes gets a line for people about each reference that has other meanings.
	notes io.Writer
	noted map[string]bool
}

// looker returns a looker at the server that the flags name. It prints the server's warnings.
func (o *clientOptions) looker(cmd *cobra.Command) (*looker, error) {
	server, err := o.running(cmd)
	if err != nil {
		return nil, err
	}
	config := restclient.CopyConfig(server.Config)
	config.WarningHandler = restclient.NewWarningWriter(cmd.ErrOrStderr(), restclient.WarningWriterOptions{Deduplicate: true})
	client, err := imageclient.New(config)
	return &looker{Server: server, Config: config, client: client, command: cmd.CommandPath(), args: cmd.Flags().Args(), notes: cmd.ErrOrStderr(), noted: map[string]bool{}}, err
}

// corrected is the command with another reference for one of its arguments.
func (l *looker) corrected(asked, meant string) string {
	line := []string{l.command}
	for _, arg := range l.args {
		if arg == asked {
			arg = meant
		}
		line = append(line, cli.Quote(arg))
	}
	return strings.Join(line, " ")
}

type getOptions struct {
	clientOptions
	local  localOptions
	output cli.Output
	base   string
	at     atFlag
}

func newGetCommand() *cobra.Command {
	o := &getOptions{}
	cmd := &cobra.Command{
		Use:        "get REF",
		SuggestFor: []string{"list", "ls", "image", "show"},
		Short:      "Show one image in one line: what a reference means; describe shows all of it",
		Long: `Show what a reference means, in one line: the image, repository and tag, the verdict
for exactly this reference, how many pods run the image, how many pods name the tag
but run a different image, and when the registry last confirmed the tag.

VERDICT is True, ByIndex, False, Unsigned (a policy demands a signature and there is
none), NoPolicy (no policy covers the reference), Excepted (an exception lets it
through, until the day shown), or Unknown with the reason.

` + referenceHelp + `

` + atHelp + `

` + localHelp + `

The exit code is 0 if the image was found, 1 if the server does not know it, and 2 if
REF is ambiguous or the server did not answer.`,
		Example: `  # By tag, and by the beginning of a digest
  tidewaiter get registry.example.com/team/app:v1
  tidewaiter get 9f86d081884c

  # For programs: the Image, or its name
  tidewaiter get -o yaml registry.example.com/team/app:v1
  tidewaiter get -o name registry.example.com/team/app:v1`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := o.looker(cmd)
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("base") {
				return o.builtOn(cmd, l, args[0])
			}
			o.local.apply(l, &o.clientOptions)
			if at, ok, err := o.at.time(time.Now()); err != nil {
				return err
			} else if ok {
				return l.printThen(cmd, &o.output, args[0], at, (*thenReport).line)
			}
			f, err := l.one(cmd.Context(), args[0], "")
			if err != nil && args[0] == "images" {
				return cli.WithHint(errors.New("get takes one reference"), "kubectl get images lists all, tidewaiter impact --base REF those that are built on one")
			}
			if err != nil {
				return err
			}
			warnUnknown(cmd.ErrOrStderr(), f.Unknowns) // the Image does not have it
			warnOverwritten(cmd.ErrOrStderr(), f.Checked.Overwritten)
			if o.output.ForPeople() {
				return printLine(cmd, o.output.Wide(), f.Answer)
			}
			if f.image, err = l.client.Get(cmd.Context(), f.Meaning.Digest, metav1.GetOptions{}); err != nil {
				return err
			}
			f.image.SetGroupVersionKind(imagev1.GroupVersion.WithKind("Image"))
			return o.output.Print(cmd.OutOrStdout(), cli.Document{Whole: f.image, Names: []string{imageName(f.Meaning.Digest)}})
		},
	}
	o.local.addFlag(cmd, "namespace whose pods ask (default: none")
	cmd.Flags().StringVar(&o.base, "base", "", "with images: list those that are built on this tag, repository or digest")
	if err := cmd.Flags().MarkHidden("base"); err != nil {
		panic(err) // there is no such flag
	}
	o.at.addFlag(cmd.Flags(), "show what was known at this time")
	cmd.MarkFlagsMutuallyExclusive("at", "base")
	o.output.AddFlag(cmd, "a line", append([]string{cli.Wide}, cli.ObjectFormats...)...)
	o.addFlags(cmd)
	o.completeNames(cmd)
	cmd.ValidArgsFunction = o.completeReferences(1)
	return cmd
}

// imagesPage is how many rows of a table are read at a time.
const imagesPage = 500

// wholeBase is the base by its whole name, where a short tag or the beginning of a digest is known
// to mean one. Of a repository, all revisions are meant.
func (o *getOptions) wholeBase(ctx context.Context, l *looker) (string, error) {
	if reference.NamesRegistry(o.base) || reference.IsDigest(o.base) {
		return o.base, nil
	}
	f, err := l.find(ctx, o.base, "")
	switch {
	case f == nil:
		return "", err
	case err != nil || f.Meaning.Tag != "" && !strings.HasSuffix(strings.TrimSpace(o.base), ":"+f.Meaning.Tag):
		return o.base, nil // images may name what is not known here
	}
	return cmp.Or(f.Meaning.Reference, f.Meaning.Digest), nil
}

// builtOn lists the images that are built on a base.
func (o *getOptions) builtOn(cmd *cobra.Command, l *looker, what string) error {
	if what != "images" {
		return cli.Misuse(errors.New("--base lists images"), "tidewaiter get images --base %s", cli.Quote(o.base))
	}
	base, err := o.wholeBase(cmd.Context(), l)
	if err != nil {
		return err
	}
	selector := fields.OneTermEqualSelector(selectors.Base, base).String()
	switch {
	case !o.output.ForPeople():
		return cli.Misuse(errors.New("--base prints a table"), "kubectl get images --field-selector %s -o yaml", cli.Quote(selector))
	case o.local.namespace != "":
		return cli.Misuse(errors.New("--base lists images of no namespace"), "leave out -n")
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "Warning: get images --base ends with the next release: tidewaiter impact --base %s also lists what runs\n", cli.Quote(o.base))
	all := &metav1.Table{}
	err = pages.Each(cmd.Context(), metav1.ListOptions{Limit: imagesPage}, func(ctx context.Context, options metav1.ListOptions) (*metav1.Table, error) {
		query := url.Values{"fieldSelector": {selector}, "includeObject": {string(metav1.IncludeNone)}, "limit": {fmt.Sprint(options.Limit)}}
		if options.Continue != "" {
			query.Set("continue", options.Continue)
		}
		return cli.GetTable(ctx, l.Config, "/apis/"+imagev1.GroupVersion.String()+"/images", query)
	}, func(page *metav1.Table) error {
		if all.ColumnDefinitions == nil {
			all.ColumnDefinitions = page.ColumnDefinitions
		}
		all.Rows = append(all.Rows, page.Rows...)
		return nil
	})
	if err != nil {
		return err
	}
	if len(all.Rows) == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "no image is known to be built on %s\n", base)
	} else if err := cli.WriteTable(cmd.OutOrStdout(), all, o.output.Wide()); err != nil {
		return err
	}
	f, err := l.find(cmd.Context(), base, "")
	switch {
	case f != nil && len(f.Meaning.KnownTags) > 0: // a repository
		return nil
	case err != nil:
		return err
	case f.State != answers.Found:
		return &cli.Exit{Code: exitAbsent, Err: errors.New(f.Message)}
	}
	return nil
}

// imageName is an Image's name with its resource, as kubectl takes it.
func imageName(digest string) string { return "image." + imagev1.GroupName + "/" + digest }

// someTags yields the references of known tags, up to the number on completionPages.
func (l *looker) someTags(ctx context.Context, yield func(reference.Reference)) error {
	options := metav1.ListOptions{Limit: completionPage}
	for range completionPages {
		list, err := l.client.ListTags(ctx, options)
		if err != nil {
			return err
		}
		for i := range list.Items {
			if ref, ok := tags.Reference(&list.Items[i]); ok {
				yield(ref)
			}
		}
		if options.Continue = list.Continue; options.Continue == "" {
			break
		}
	}
	return nil
}

// likely returns the reference that was asked for with the nearest path of a known repository; ""
// if none is near. It stays in the registry that was named, if one was.
func (l *looker) likely(ctx context.Context, asked string) string {
	ref, err := reference.Parse(asked)
	if err != nil {
		return ""
	}
	registry, path := "", strings.TrimPrefix(ref.Repository, "library/")
	if reference.NamesRegistry(asked) {
		registry, path = ref.Host+"/", ref.Repository
	}
	var known []string
	// A caller who may not list tags gets the answer without a suggestion.
	_ = l.someTags(ctx, func(tag reference.Reference) {
		if n := len(known); (registry == "" || tag.Host == ref.Host) && (n == 0 || known[n-1] != tag.Repository) {
			known = append(known, tag.Repository) // a repository's tags follow each other
		}
	})
	near := nearest.Likely(path, known)
	if near == "" || near == path {
		return ""
	}
	return printable.Line(registry+near+":"+ref.Pulled().Tag, 0)
}

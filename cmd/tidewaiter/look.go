package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	imagev1 "github.com/openshift/api/image/v1"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	tidewaiterserver "github.com/tidewaiter/tidewaiter/cmd/internal/server"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

// exitAbsent is the exit code of verbs that look something up on a server, when the server does not know it. A
// reference that may mean several images is exitNone, like all other failures.
const exitAbsent = 1

// referenceHelp is the help on references of the verbs that look images up.
const referenceHelp = `REF is a tag (registry.example.com/team/app:v1; without a tag, latest), a digest
(sha256:9f86d0…, also behind a repository and @), or the beginning of a digest, at
least four digits: sha256:9f86, 9f86d081884c. docker.io/library may be left out as
Docker has it. Where docker.io has no such tag here, team/app:v1 and app:v1 are
those of the one registry that has them; with several the command says which.`

// looker looks images up on a server.
type looker struct {
	Server apiTarget
	Config *restclient.Config
	client *imageclient.Client
	verb   string // the verb that looks
	// formerTags has the histories of tags searched for those that led to an image.
	formerTags bool
}

// looker returns a looker at the server that the flags name. It prints the server's warnings.
func (o *clientOptions) looker(cmd *cobra.Command) (*looker, error) {
	server, err := o.running(cmd)
	if err != nil {
		return nil, err
	}
	config := restclient.CopyConfig(server.Config)
	config.WarningHandler = restclient.NewWarningWriter(cmd.ErrOrStderr(), restclient.WarningWriterOptions{Deduplicate: true})
	client, err := tidewaiterserver.NewImageClient(config)
	return &looker{Server: server, Config: config, client: client, verb: cmd.CommandPath()}, err
}

// explain adds advice to an error of the server, or about a reference.
func (l *looker) explain(err error) error {
	var bad *reference.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &bad) && bad.Suggestion != "":
		return cli.WithHint(err, "%s %s", l.verb, bad.Suggestion)
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
		Short: "Show what a reference means in a line: repository, tag, verdict, pods",
		Long: `Show what a reference means, in a line: the image, repository and tag, the verdict
for that very reference, how many pods run the image, how many that name the tag run
something else than it leads to now, and when the registry last confirmed the tag.

VERDICT is True, ByIndex, False, Unsigned (a policy demands a signature and there is
none), NoPolicy (there is none, and no policy covers the reference), or Unknown and why.

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
				return cli.Misuse(fmt.Errorf("-o %s is not known", o.output), "-o wide, -o name, -o json, or without -o a line")
			}
			l, err := o.looker(cmd)
			if err != nil {
				return err
			}
			f, err := l.one(cmd.Context(), args[0], "")
			if err != nil {
				return err
			}
			switch o.output {
			case "json":
				if f.image, err = l.client.Get(cmd.Context(), f.Meaning.Digest, metav1.GetOptions{}); err != nil {
					return l.explain(err)
				}
				f.image.SetGroupVersionKind(imagev1.GroupVersion.WithKind("Image"))
				return printJSON(cmd.OutOrStdout(), f.image)
			case "name":
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "image.%s/%s\n", imagev1.GroupName, printable.Line(f.Meaning.Digest, 0))
				return err
			}
			return printLine(cmd, o.output == "wide", f.Answer)
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
		return cli.Misuse(fmt.Errorf("-o %s is not known", output), "-o json, or without -o a page")
	}
	return nil
}

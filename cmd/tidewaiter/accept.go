package main

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

func newAcceptCommand() *cobra.Command {
	o, reason, digest := &clientOptions{}, "", ""
	cmd := &cobra.Command{
		Use:   "accept REF",
		Short: "Accept that a tag which must not move has moved",
		Long: `Accept that a tag which must not move has moved: from now on it must lead where it
leads now. Until then a policy with the annotation tidewaiter.dev/immutable-tags says
"TagMoved" for what the tag leads to. The server records who accepted it, when, and
the reason; tidewaiter history shows that. It needs the role tidewaiter:tag-accepter in
the namespace default.

` + referenceHelp + `

The exit code is 0 if the move was accepted, 1 if the tag is not known or leads where
it must, and 2 if REF is ambiguous or not a tag, or the server refused.`,
		Example: `  # Who moved it, and from what?
  tidewaiter history registry.example.com/team/app:v1

  # The move is wanted
  tidewaiter accept registry.example.com/team/app:v1 --reason "rebuilt, the certificate had expired"

  # Only if it still leads to what was looked at
  tidewaiter accept registry.example.com/team/app:v1 --digest "$DIGEST"`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if digest != "" && !reference.IsDigest(digest) {
				return cli.Misuse(fmt.Errorf("--digest %q is not a whole digest", digest), "tidewaiter history %s shows it with -o json", cli.Quote(args[0]))
			}
			l, err := o.looker(cmd)
			if err != nil {
				return err
			}
			return l.accept(cmd, args[0], digest, reason)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why the move is accepted, for the record")
	cmd.Flags().StringVar(&digest, "digest", "", "the digest that the tag must lead to (default: what it leads to now)")
	cmd.ValidArgsFunction = o.completeReferences(1)
	o.addFlags(cmd)
	return cmd
}

// accept accepts where a tag leads.
func (l *looker) accept(cmd *cobra.Command, asked, digest, reason string) error {
	f, err := l.find(cmd.Context(), asked, "")
	if err != nil {
		return err
	}
	if f.Meaning.Tag == "" || f.Checked.Since == nil && f.State == answers.Found {
		return fmt.Errorf("%s is not a tag with a history", f.name())
	}
	tag, err := l.history(cmd.Context(), f)
	if err != nil {
		return err
	}
	ref, _ := tags.Reference(tag)
	move := tags.Overwritten(tag)
	if move == nil {
		return &cli.Exit{Code: exitAbsent, Err: fmt.Errorf("%s leads where it must, so there is no move to accept", ref)}
	}
	if digest != "" && digest != move.To {
		return cli.WithHint(fmt.Errorf("%s leads to %s", ref, move.To), "tidewaiter history %s", cli.Quote(asked))
	}
	annotations := map[string]string{tags.Accept: move.To}
	if reason != "" {
		annotations[tags.AcceptReason] = reason
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		return err
	}
	after, err := l.client.PatchTag(cmd.Context(), tag.Name, patch, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	all := tags.Acceptances(after)
	if len(all) == 0 || all[0].Digest != move.To {
		return errors.New("the server did not record it: it is an older one")
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s may lead to %s: accepted by %s\n", ref, reference.ShortDigest(move.To), all[0].By)
	return err
}

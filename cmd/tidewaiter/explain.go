package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/tidewaiter/tidewaiter/cmd/internal/meanings"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/nearest"
)

func newExplainCommand() *cobra.Command {
	var output cli.Output
	words := wordsOf(meanings.All())
	cmd := &cobra.Command{
		Use:   "explain [WORD]",
		Short: "Explain a verdict or a reason, and what to do about it",
		Long: `Explain a verdict or a reason, and what to do about it: the words in the columns
VERDICT and REASON, in conditions of signatures, in reports of imports and in the
console. Without a word it lists all. It asks no server.`,
		Example: `  # What does this verdict mean?
  tidewaiter explain Unsigned

  # Why is a signature not trusted, and what can I do?
  tidewaiter explain SignedIdentityMismatch

  # All words
  tidewaiter explain`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			all := meanings.All()
			if len(args) == 1 {
				all = nil
				// a verdict may stand with its reason, as in Unknown:SearchIncomplete
				for word := range strings.FieldsFuncSeq(args[0], func(r rune) bool { return strings.ContainsRune(": ,()", r) }) {
					known := meanings.Of(word)
					if len(known) == 0 {
						return unknownWord(word, words)
					}
					all = append(all, known...)
				}
			}
			if !output.ForPeople() {
				return output.Print(cmd.OutOrStdout(), cli.Document{Whole: map[string]any{"items": all}, Items: cli.ItemsOf(all), Names: wordsOf(all)})
			}
			if len(args) == 0 {
				return listMeanings(cmd.OutOrStdout(), all)
			}
			return printMeanings(cmd.OutOrStdout(), all)
		},
	}
	output.AddFlag(cmd, "text; name prints the words", cli.ListFormats...)
	return cmd
}

func wordsOf(all []meanings.Meaning) (words []string) {
	for _, m := range all {
		words = append(words, m.Word)
	}
	return words
}

// printMeanings prints a paragraph for each meaning.
func printMeanings(out io.Writer, all []meanings.Meaning) error {
	var b strings.Builder
	for i, m := range all {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s (%s)\n  %s\n", m.Word, m.Kind, m.Means)
		if m.Next != "" {
			fmt.Fprintf(&b, "  What to do: %s\n", m.Next)
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// listMeanings prints all words as a table.
func listMeanings(out io.Writer, all []meanings.Meaning) error {
	w := printers.GetNewTabWriter(out)
	fmt.Fprintln(w, "KIND\tWORD\tMEANING")
	for _, m := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\n", m.Kind, m.Word, m.Means)
	}
	return w.Flush()
}

// unknownWord is the error for a word that is neither a verdict nor a reason.
func unknownWord(word string, words []string) error {
	hint := "tidewaiter explain lists all words"
	if near := nearest.Likely(word, words); near != "" {
		hint = "did you mean " + near + "?"
	}
	return cli.Misuse(fmt.Errorf("%q is not a verdict or a reason", word), "%s", hint)
}

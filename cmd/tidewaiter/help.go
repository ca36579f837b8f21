package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The groups of verbs in the help, in their order.
const (
	groupAsk    = "ask"
	groupImport = "import"
	groupDecide = "decide"
	groupServe  = "serve"
	groupCare   = "care"
)

// groups are the titles of the groups, and the verbs in each.
var groups = []struct {
	id, title string
	verbs     []string
}{
	{groupAsk, "Ask:", []string{"get", "describe", "history", "diff", "images", "pods", "ran", "changes", "report", "console", "explain"}},
	{groupImport, "Import:", []string{"import", "spool"}},
	{groupDecide, "Decide:", []string{"verify", "accept", "impact", "policy"}},
	{groupServe, "Serve:", []string{"serve", "follow", "demo", "config"}},
	{groupCare, "Look after:", []string{"prune", "backup", "restore", "db", "credentials", "migrate", "version"}},
}

// group has the help list verbs by what people want to do.
func group(root *cobra.Command) {
	for _, g := range groups {
		root.AddGroup(&cobra.Group{ID: g.id, Title: g.title})
		for _, cmd := range root.Commands() {
			if slices.Contains(g.verbs, cmd.Name()) {
				cmd.GroupID = g.id
			}
		}
	}
	root.SetHelpCommandGroupID(groupCare)
	root.SetCompletionCommandGroupID(groupCare)
}

// commonFirst has the usage of a verb begin with the flags that most people need.
func commonFirst(cmd *cobra.Command, common ...string) {
	cmd.SetUsageFunc(func(cmd *cobra.Command) error {
		first, others := pflag.NewFlagSet("common", pflag.ContinueOnError), pflag.NewFlagSet("others", pflag.ContinueOnError)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if slices.Contains(common, f.Name) {
				first.AddFlag(f)
			} else {
				others.AddFlag(f)
			}
		})
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "Usage:\n  %s\n\nExamples:\n%s\n\nCommon flags:\n%s\nOther flags:\n%s\nGlobal flags:\n%s",
			cmd.UseLine(), cmd.Example, first.FlagUsages(), others.FlagUsages(), cmd.InheritedFlags().FlagUsages())
		return err
	})
}

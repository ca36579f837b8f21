package cli

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/spf13/cobra"
)

// Completing is true in a process that completes a command line for a shell. Cobra keeps the
// completions of flags, and all verbs with what they hold, until the process ends, so that no other
// process registers them. A process of tests has thousands of command lines.
var Completing atomic.Bool

// Completes reports whether arguments are those with which a shell asks for completions.
func Completes(args []string) bool {
	return len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd)
}

// Complete has shells complete the value of a flag.
func Complete(cmd *cobra.Command, flag string, values ...string) {
	CompleteBy(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// CompleteBy has shells complete the value of a flag by a function. It panics if the verb has no
// such flag.
func CompleteBy(cmd *cobra.Command, flag string, by cobra.CompletionFunc) {
	if cmd.Flag(flag) == nil {
		panic(fmt.Sprintf("%s has no flag %s", cmd.Name(), flag))
	}
	if !Completing.Load() {
		return
	}
	if err := cmd.RegisterFlagCompletionFunc(flag, by); err != nil {
		panic(err) // it was completed before
	}
}

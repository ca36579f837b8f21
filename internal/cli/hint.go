package cli

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// ofPlaces are the flags that say which server, which data directory and which registries a command
// is about. A command of another verb that is suggested is about the same.
var ofPlaces = []string{
	"server", "certificate-authority", "kubeconfig", "data-dir", "token", "token-file",
	"config", "authfile", "creds", "cert-dir", "tls-verify",
}

// secret are the flags whose values are not repeated.
var secret = []string{"token", "creds"}

// suggested finds the commands of a hint.
var suggested = regexp.MustCompile(`\btidewaiter( [a-z]+)+`)

// elsewhere is the annotation of the flags that Elsewhere marks.
const elsewhere = "tidewaiter/elsewhere"

// Elsewhere marks a flag of one verb that names another place than the flag of this name does for
// the other verbs, so that KeepFlags does not carry it from one to the other.
func Elsewhere(of *pflag.FlagSet, name string) {
	if err := of.SetAnnotation(name, elsewhere, []string{}); err != nil {
		panic(err) // there is no such flag
	}
}

// KeepFlags adds to the commands of a hint the flags that the command cmd was given, as far as they
// mean the same there. A flag that the hint names itself is about what was wrong, and is not added.
func KeepFlags(cmd *cobra.Command, hint string) string {
	return suggested.ReplaceAllStringFunc(hint, func(command string) string {
		words := strings.Fields(command)
		to, rest, err := cmd.Root().Find(words[1:])
		if err != nil || to == cmd.Root() {
			return command
		}
		line := []string{to.CommandPath()}
		if to != cmd && cmd.Root().DisplayName() == "kubectl" { // it is a plugin of one verb
			line = []string{words[0] + strings.TrimPrefix(line[0], "kubectl")}
		}
		cmd.Flags().Visit(func(f *pflag.Flag) {
			there := to.Flags().Lookup(f.Name)
			spellings := "--" + f.Name
			if f.Shorthand != "" {
				spellings += "|-" + f.Shorthand
			}
			named := regexp.MustCompile(`(^|[^\w-])(` + spellings + `)([^\w-]|$)`)
			if there == nil || to != cmd && !sharePlace(f, there) || named.MatchString(hint) {
				return
			}
			line = append(line, givenFlag(f))
		})
		return strings.Join(append(line, rest...), " ")
	})
}

// sharePlace reports whether a flag names the same place for two verbs.
func sharePlace(a, b *pflag.Flag) bool {
	_, aElsewhere := a.Annotations[elsewhere]
	_, bElsewhere := b.Annotations[elsewhere]
	return slices.Contains(ofPlaces, a.Name) && aElsewhere == bElsewhere
}

func givenFlag(f *pflag.Flag) string {
	switch values, isList := f.Value.(pflag.SliceValue); {
	case slices.Contains(secret, f.Name):
		return "--" + f.Name + " …"
	case f.Value.Type() == "bool" && f.Value.String() == "true":
		return "--" + f.Name
	case f.Value.Type() == "bool":
		return "--" + f.Name + "=" + f.Value.String()
	case isList:
		var all []string
		for _, value := range values.GetSlice() {
			all = append(all, "--"+f.Name+" "+Quote(value))
		}
		return strings.Join(all, " ")
	case f.Shorthand != "":
		return "-" + f.Shorthand + " " + Quote(f.Value.String())
	}
	return "--" + f.Name + " " + Quote(f.Value.String())
}

// Quote quotes a word for a shell, if that is needed.
func Quote(word string) string {
	if word == "" || strings.ContainsAny(word, " \t\n\\\"'`$*?;&|<>()[]{}#!~") {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	return word
}

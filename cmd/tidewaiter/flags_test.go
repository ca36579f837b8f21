package main

import (
	"flag"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

var writeFlags = flag.String("write-flags", "", "file to write the reference of all flags to")

const flagsDocument = "../../docs/reference/flags.md"

// TestFlagsDocument: docs/reference/flags.md has the flags that the program has. To write it again:
//
//	go test ./cmd/tidewaiter -run TestFlagsDocument -write-flags ../../docs/reference/flags.md
func TestFlagsDocument(t *testing.T) {
	t.Parallel()
	want := flagsReference(newRootCommand())
	if *writeFlags != "" {
		if err := os.WriteFile(*writeFlags, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(flagsDocument)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not up to date; run: go test ./cmd/tidewaiter -run TestFlagsDocument -write-flags %s", flagsDocument, flagsDocument)
	}
}

// upstream are the sections of serve whose flags are kube-apiserver's, which documents them.
var upstream = []string{"authentication", "authorization", "audit"}

// flagsReference is the document. It explains the flags that verbs share and those of serve, in the
// sections of its help. Of each other verb it names the flags.
func flagsReference(root *cobra.Command) string {
	var b, rest strings.Builder
	ofServer, ofRegistry := sharedFlags(root)
	b.WriteString("# Flags\n\n<!-- Written by TestFlagsDocument in cmd/tidewaiter. -->\n\n" +
		"`tidewaiter VERB --help` says what each flag means, with examples.\n\n## Of all verbs\n")
	writeList(&b, visibleFlags(root))
	b.WriteString("\n## For a server\n")
	writeList(&b, ofServer)
	b.WriteString("\n## For registries\n")
	writeList(&b, ofRegistry)
	b.WriteString("\n## Of one verb\n\n")
	for cmd := range verbs(root) {
		if cmd == root || !cmd.Runnable() {
			continue
		}
		flags, has := visibleFlags(cmd), []string(nil)
		for _, group := range []struct {
			flags []*pflag.Flag
			link  string
		}{{ofServer, "[a server's](#for-a-server)"}, {ofRegistry, "[registries'](#for-registries)"}} {
			n := len(flags)
			flags = slices.DeleteFunc(flags, func(f *pflag.Flag) bool { return slices.ContainsFunc(group.flags, same(f)) })
			if len(flags) < n {
				has = append(has, group.link)
			}
		}
		if cmd.Name() == "serve" {
			writeSections(&rest, new(serveOptions).flags())
			continue
		}
		if has = append(names(flags), has...); len(has) > 0 {
			fmt.Fprintf(&b, "- `%s`: %s\n", strings.TrimPrefix(cmd.CommandPath(), "tidewaiter "), strings.Join(has, ", "))
		}
	}
	return b.String() + "\n## Of serve\n" + rest.String()
}

// verbs are a command and all below it that are not hidden, in their order.
func verbs(cmd *cobra.Command) iter.Seq[*cobra.Command] {
	return func(yield func(*cobra.Command) bool) {
		if cmd.Hidden || !yield(cmd) {
			return
		}
		for _, c := range cmd.Commands() {
			for v := range verbs(c) {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// sharedFlags are the flags that several verbs have in the same words: those for a server, which
// more than three verbs have, and those for registries, which three have. Flags for etcd, which
// three have, too, are explained with serve's.
func sharedFlags(root *cobra.Command) (ofServer, ofRegistry []*pflag.Flag) {
	var all []*pflag.Flag
	for cmd := range verbs(root) {
		all = append(all, visibleFlags(cmd)...)
	}
	for i, f := range all {
		n := 0
		for _, other := range all {
			if same(f)(other) {
				n++
			}
		}
		switch {
		case slices.ContainsFunc(all[:i], same(f)): // it has been counted
		case strings.HasPrefix(f.Name, "etcd-"):
		case n > 3:
			ofServer = append(ofServer, f)
		case n == 3:
			ofRegistry = append(ofRegistry, f)
		}
	}
	return ofServer, ofRegistry
}

// same returns a function that reports whether a flag is documented as f is.
func same(f *pflag.Flag) func(*pflag.Flag) bool {
	return func(other *pflag.Flag) bool {
		return other.Name == f.Name && other.DefValue == f.DefValue && other.Usage == f.Usage
	}
}

func visibleFlags(cmd *cobra.Command) []*pflag.Flag { return visible(cmd.LocalFlags()) }

func visible(all *pflag.FlagSet) (flags []*pflag.Flag) {
	all.VisitAll(func(f *pflag.Flag) {
		if !f.Hidden && f.Deprecated == "" && f.Name != "help" {
			flags = append(flags, f)
		}
	})
	return flags
}

func writeSections(b *strings.Builder, sections *cliflag.NamedFlagSets) {
	for _, name := range sections.Order {
		flags := visible(sections.FlagSets[name])
		fmt.Fprintf(b, "\n### %s%s\n", strings.ToUpper(name[:1]), name[1:])
		if !slices.Contains(upstream, name) {
			writeList(b, flags)
			continue
		}
		fmt.Fprintf(b, "\n[kube-apiserver's](https://kubernetes.io/docs/reference/command-line-tools-reference/kube-apiserver/): %s.\n", strings.Join(names(flags), ", "))
	}
}

func names(flags []*pflag.Flag) (names []string) {
	for _, f := range flags {
		names = append(names, "`"+flagName(f)+"`")
	}
	return names
}

func writeList(b *strings.Builder, flags []*pflag.Flag) {
	if len(flags) == 0 {
		return
	}
	b.WriteString("\n")
	for _, f := range flags {
		_, usage := pflag.UnquoteUsage(f)
		usage, _, _ = strings.Cut(usage, " Values: ") // of a list that Kubernetes documents
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
			usage += fmt.Sprintf(" (default `%s`)", f.DefValue)
		}
		fmt.Fprintf(b, "- `%s`: %s\n", flagName(f), usage)
	}
}

// flagName is a flag as one types it.
func flagName(f *pflag.Flag) string {
	switch f.Shorthand {
	case "":
		return "--" + f.Name
	case f.Name:
		return "-" + f.Shorthand
	}
	return "-" + f.Shorthand + ", --" + f.Name
}

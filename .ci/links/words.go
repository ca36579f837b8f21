package main

import (
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

var (
	// command is a command line of ours: a line of an example, or all that is in backticks.
	command = regexp.MustCompile("(?m)(?:^[ $>]*|`)(?:/usr/bin/)?tidewaiter [a-z][^`\n|#]*")
	flag    = regexp.MustCompile(`\s--([a-z][a-z0-9-]*)`)
	// metric is the name of a metric of ours.
	metric = regexp.MustCompile(`\btidewaiter_[a-z_]+[a-z]\b`)
	// term is an annotation or a role of ours, or a reason, condition or kind in backticks.
	term = regexp.MustCompile("(?:^|[^.\\w])(tidewaiter(?:\\.dev/[a-z][a-z0-9-]*[a-z0-9]|:[a-z][a-z-]*[a-z]))|`([A-Z][a-z]+(?:[A-Z][a-z0-9]*)+)`")
)

const (
	flagsDocument   = "docs/reference/flags.md"   // tests compare it with the program,
	metricsDocument = "docs/reference/metrics.md" // and this one with a server
)

// unknown returns a line for each flag, metric, annotation, role and reason that a document of
// users names, and that the program does not have.
func unknown(repository fs.FS, files []string) (gone []string) {
	documents, program := map[string]string{}, strings.Builder{}
	for _, name := range files {
		data, err := fs.ReadFile(repository, name)
		switch {
		case err != nil, strings.HasPrefix(name, ".ci/links/"), strings.HasSuffix(name, "_test.go"):
		case strings.HasPrefix(name, "docs/") && strings.HasSuffix(name, ".md"), name == "README.md":
			documents[name] = string(data)
		case !strings.HasSuffix(name, ".md"):
			program.Write(data)
		}
	}
	has, all := map[string]bool{}, program.String()
	for name, text := range documents {
		said := metric.FindAllString(text, -1)
		for _, line := range command.FindAllString(text, -1) {
			for _, m := range flag.FindAllStringSubmatch(line, -1) {
				said = append(said, "--"+m[1])
			}
		}
		for _, m := range term.FindAllStringSubmatch(text, -1) {
			said = append(said, m[1]+m[2])
		}
		slices.Sort(said)
		for _, s := range slices.Compact(said) {
			known, ok := has[s]
			if !ok {
				switch {
				case strings.HasPrefix(s, "--"):
					known = strings.Contains(documents[flagsDocument], s)
				case strings.HasPrefix(s, "tidewaiter_"):
					known = strings.Contains(documents[metricsDocument], s)
				case strings.HasPrefix(s, "Test"), strings.HasPrefix(s, "Fuzz"), strings.HasPrefix(s, "Benchmark"):
					known = true // stale looks at these
				default:
					known = strings.Contains(all, s)
				}
				has[s] = known
			}
			if !known {
				gone = append(gone, fmt.Sprintf("%s names %s, which the program does not have", name, s))
			}
		}
	}
	slices.Sort(gone)
	return gone
}

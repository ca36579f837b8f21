package main

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

var (
	// member is what a package declares, with the package's name and no path: answers.Answerer.
	member = regexp.MustCompile("(?:^|[\\s`(])([a-z]\\w*)\\.([A-Z]\\w*)")
	// source is the name of a file of Go without a path.
	source = regexp.MustCompile(`(?:^|[^\w/.*-])([a-z0-9_]+\.go)\b`)
	// imported is an import of another module's package, by its last element.
	imported = regexp.MustCompile(`(?m)^\s+(?:\w+ )?"[^"\n]*\.[^"\n]*/([a-z]\w*)"$`)
	// documented is a comment with the function that follows, up to its brace.
	documented = regexp.MustCompile(`(?m)^((?://.*\n)+)func [^{\n]*(?:,\n[^{\n]*)*`)
	// subject is a name with which a comment, or a later sentence in it, begins.
	subject = regexp.MustCompile(`(?:^// ([a-z]+[A-Z]\w*) |\. ([a-z]\w*) (?:is|are|has|have|reports|returns) )`)
)

const module = "github.com/tidewaiter/tidewaiter"

// unnamed returns a line for each file of Go and each package's declaration that documents have in
// backticks, or comments name, without a path, and that does not exist; and one for each name with
// which the comment of a function begins a sentence, and which neither the function nor its package
// has. Tests may name what they like there.
func unnamed(repository fs.FS, files []string) (gone []string) {
	texts, names, packages := map[string]string{}, map[string]bool{}, map[string][]string{}
	for _, name := range files {
		data, err := fs.ReadFile(repository, name)
		if err != nil || strings.HasPrefix(name, ".ci/links/") {
			continue
		}
		switch dir := path.Dir(name); {
		case strings.HasSuffix(name, ".md") && name != "CHANGELOG.md":
			texts[name] = string(data)
		case strings.HasSuffix(name, ".go") && !strings.Contains(name, "generated"):
			texts[name] = string(data)
			if !slices.Contains(packages[path.Base(dir)], dir) {
				packages[path.Base(dir)] = append(packages[path.Base(dir)], dir)
			}
			for _, m := range declared.FindAllStringSubmatch(string(data), -1) {
				names[dir+"."+m[1]] = true
			}
			names[path.Base(name)] = true
		}
	}
	for name, text := range texts {
		isGo, others := strings.HasSuffix(name, ".go"), []string{}
		said := strings.Join(quoted.FindAllString(text, -1), "\n")
		if isGo {
			said = strings.Join(comment.FindAllString(text, -1), "\n")
			for _, m := range imported.FindAllStringSubmatch(text, -1) {
				if !strings.Contains(m[0], module) {
					others = append(others, m[1])
				}
			}
		}
		for _, m := range member.FindAllStringSubmatch(said, -1) {
			has := func(dir string) bool { return names[dir+"."+m[2]] }
			if in := packages[m[1]]; len(in) > 0 && !slices.Contains(others, m[1]) && !slices.ContainsFunc(in, has) {
				gone = append(gone, fmt.Sprintf("%s names %s.%s, which does not exist", name, m[1], m[2]))
			}
		}
		for _, m := range source.FindAllStringSubmatch(said, -1) {
			if !names[m[1]] {
				gone = append(gone, fmt.Sprintf("%s names %s, which does not exist", name, m[1]))
			}
		}
		if !isGo || strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, m := range documented.FindAllStringSubmatch(text, -1) {
			function := strings.TrimPrefix(m[0], m[1])
			sentences := strings.ReplaceAll(m[1], "\n// ", " ")
			for _, s := range subject.FindAllStringSubmatch(sentences, -1) {
				word := s[1] + s[2]
				if !names[path.Dir(name)+"."+word] && !regexp.MustCompile(`\b`+word+`\b`).MatchString(function) {
					gone = append(gone, fmt.Sprintf("%s: a comment is about %s, which %q does not have", name, word, strings.TrimSpace(function)))
				}
			}
		}
	}
	slices.Sort(gone)
	return gone
}

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
	// quoted is a name in a document.
	quoted = regexp.MustCompile("`[^`\n]+`")
	// comment is a line of a comment in Go.
	comment = regexp.MustCompile(`(?m)^\s*// .*$`)
	// placed is the path of a folder or file of ours, perhaps with something that a package declares.
	placed = regexp.MustCompile(`(?:^|[^\w./-])((?:cmd|imageapi|importer|signatures|coreapi|db|web|internal|deploy|e2e)/[a-z0-9_/]+)(\.(?:go|md|sh|yaml|sql|html|css|js|json)\b|\.[A-Z]\w*)?(?:[^\w/.-]|\.?$|\.\s)`)
	// test is the name of a test.
	test = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`)
	// declaration is a link of a comment in Go to what the package declares, or another of ours.
	declaration = regexp.MustCompile(`(?:^|[\s(])\[\*?(?:([a-z]\w*)\.)?([A-Z]\w*)(?:\.([A-Z]\w*))?\](?:[^(:\[\w]|$)`)
	// declared is a test, or something at the top of a file of Go or in a group of one.
	declared = regexp.MustCompile(`(?m)^(?:func (?:\([^)]*\) )?|type |var |const |\t)([A-Za-z_]\w*)`)
)

// stale returns a line for each path, package's declaration or test that a document has in
// backticks, or a comment in Go names or links to, and that does not exist.
func stale(repository fs.FS, files []string) (gone []string) {
	folders, names, tests := map[string]bool{}, map[string]bool{}, []string{}
	texts, packages := map[string]string{}, map[string][]string{} // folders, by their last part
	for _, name := range files {
		data, err := fs.ReadFile(repository, name)
		if err != nil || strings.HasPrefix(name, ".ci/links/") {
			continue
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			folders[dir] = true
		}
		switch {
		case strings.HasSuffix(name, ".md") && name != "CHANGELOG.md":
			texts[name] = strings.Join(quoted.FindAllString(string(data), -1), "\n")
		case strings.HasSuffix(name, ".go") && !strings.Contains(name, "generated"):
			texts[name] = strings.Join(comment.FindAllString(string(data), -1), "\n")
			for _, m := range declared.FindAllStringSubmatch(string(data), -1) {
				names[path.Dir(name)+"."+m[1]] = true
				if test.MatchString(m[1]) {
					tests = append(tests, m[1])
				}
			}
		}
	}
	for dir := range folders {
		packages[path.Base(dir)] = append(packages[path.Base(dir)], dir)
	}
	for name, text := range texts {
		for _, m := range placed.FindAllStringSubmatch(text, -1) {
			if at := strings.TrimSuffix(m[1], "/") + m[2]; !folders[at] && !names[at] && !slices.Contains(files, at) {
				gone = append(gone, fmt.Sprintf("%s names %s, which does not exist", name, at))
			}
		}
		if strings.HasSuffix(name, ".go") {
			for _, m := range declaration.FindAllStringSubmatch(text, -1) {
				in := []string{path.Dir(name)}
				if m[1] != "" {
					in = packages[m[1]]
				}
				if len(in) > 0 && !slices.ContainsFunc(in, func(dir string) bool { return names[dir+"."+m[2]] && (m[3] == "" || names[dir+"."+m[3]]) }) {
					gone = append(gone, fmt.Sprintf("%s links to %s, which does not exist", name, strings.Trim(m[0], " \t\n.,;)(")))
				}
			}
		}
		for _, t := range test.FindAllString(text, -1) {
			if !slices.ContainsFunc(tests, func(have string) bool { return strings.HasPrefix(have, t) }) {
				gone = append(gone, fmt.Sprintf("%s names %s, and no test is called so", name, t))
			}
		}
	}
	slices.Sort(gone)
	return gone
}

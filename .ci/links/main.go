// Command links checks that links in documents lead to existing files and headings; that the
// documents exist that code, charts and scripts name; that the folders, files, declarations and
// tests exist that documents and comments name, with or without a path; and that the program has
// the flags, metrics, annotations, roles and reasons that documents name. It reads the files that
// git knows, from the current folder.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
)

func main() {
	out, err := exec.Command("git", "ls-files").Output()
	if err != nil {
		fmt.Fprintln(os.Stderr, "links: git ls-files:", err)
		os.Exit(2)
	}
	files := strings.Fields(string(out))
	broken, links := check(os.DirFS("."), files)
	broken = append(broken, stale(os.DirFS("."), files)...)
	broken = append(broken, unnamed(os.DirFS("."), files)...)
	broken = append(broken, unknown(os.DirFS("."), files)...)
	for _, b := range broken {
		fmt.Println(b)
	}
	if len(broken) > 0 {
		os.Exit(1)
	}
	fmt.Printf("%d links\n", links)
}

var (
	// link finds [text](target) in a document.
	link = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	// named finds the name of one of our documents anywhere else.
	named = regexp.MustCompile(`(?:^|[\s"(]|\.\./|/tidewaiter/blob/main/)(docs/(?:[a-z0-9-]+/)*[A-Za-z0-9-]+\.md)`)
	// block is what no reader of Markdown sees as text, so neither its links nor its comments
	// count.
	block = regexp.MustCompile("(?ms)^[ ]*```.*?^[ ]*```[ ]*$|`[^`\n]+`")
)

// check returns a line for each link that leads nowhere, and the number of links it looked at.
func check(repository fs.FS, files []string) (broken []string, links int) {
	headings := map[string][]string{}
	for _, name := range files {
		data, err := fs.ReadFile(repository, name)
		if err != nil { // deleted, and git still knows it
			continue
		}
		if strings.HasPrefix(name, ".ci/links/") { // its test names what does not exist
			continue
		}
		if !strings.HasSuffix(name, ".md") {
			for _, m := range named.FindAllStringSubmatch(string(data), -1) {
				if _, err := fs.Stat(repository, m[1]); err != nil {
					broken = append(broken, fmt.Sprintf("%s names %s, which does not exist", name, m[1]))
				}
			}
			continue
		}
		for _, m := range link.FindAllStringSubmatch(block.ReplaceAllString(string(data), ""), -1) {
			target := m[1]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(target, "#")
			to := name
			if file != "" {
				to = path.Join(path.Dir(name), file)
			}
			if _, err := fs.Stat(repository, to); err != nil {
				broken = append(broken, fmt.Sprintf("%s links to %s, which does not exist", name, target))
				continue
			}
			if anchor == "" {
				continue
			}
			if headings[to] == nil {
				text, err := fs.ReadFile(repository, to)
				if err != nil {
					broken = append(broken, fmt.Sprintf("%s links to a heading of %s: %v", name, to, err))
					continue
				}
				headings[to] = anchors(string(text))
			}
			if !slices.Contains(headings[to], anchor) {
				broken = append(broken, fmt.Sprintf("%s links to %s, and %s has no such heading", name, target, to))
			}
		}
	}
	return broken, links
}

var fences = regexp.MustCompile("(?ms)^```.*?^```")

// anchors returns the anchors of a document's headings, as GitHub makes them.
func anchors(text string) []string {
	all := []string{}
	for line := range strings.Lines(fences.ReplaceAllString(text, "")) {
		level := len(line) - len(strings.TrimLeft(line, "#"))
		if level == 0 || !strings.HasPrefix(line[level:], " ") {
			continue
		}
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 127:
				return r
			}
			return -1
		}, strings.ToLower(strings.TrimSpace(line[level:])))
		n, base := 0, anchor
		for slices.Contains(all, anchor) {
			n++
			anchor = fmt.Sprintf("%s-%d", base, n)
		}
		all = append(all, anchor)
	}
	return all
}

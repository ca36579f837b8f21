package bulk

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/tidewaiter/tidewaiter/importer/archive"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

const (
	// maxReferenceLine bounds a line of a file of references, in bytes.
	maxReferenceLine = 4 << 10
	// MaxReferences bounds what one command imports.
	MaxReferences = 1_000_000
)

// In a file of references, these behind a repository and a registry stand for all their tags.
const (
	allTagsSuffix       = ":*"
	wholeRegistrySuffix = "/**"
)

// CollectJobs returns the jobs of the arguments and of the lines of files. It parses all of them,
// so that a misspelt one is found before any work. The file "-" is stdin.
func CollectJobs(args, files []string, stdin io.Reader, parse func(string) (Job, error)) ([]Job, error) {
	var out []Job
	for _, arg := range args {
		j, err := parse(arg)
		if err != nil {
			return nil, ExplainReference(err)
		}
		out = append(out, j)
	}
	for _, name := range files {
		listed, err := readReferences(name, stdin, parse)
		if err != nil {
			return nil, err
		}
		out = append(out, listed...)
		if len(out) > MaxReferences {
			return nil, fmt.Errorf("there are more than %d references: import them in parts", MaxReferences)
		}
	}
	return out, nil
}

func readReferences(name string, stdin io.Reader, parse func(string) (Job, error)) ([]Job, error) {
	r, display := stdin, "standard input"
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		r, display = f, name
	}
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, maxReferenceLine), maxReferenceLine)
	var out []Job
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), " #")
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if len(out) == MaxReferences {
			return nil, fmt.Errorf("%s lists more than %d references: import them in parts", display, MaxReferences)
		}
		j, err := parseLine(line, parse)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", display, n, ExplainReference(err))
		}
		out = append(out, j)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading %s: %w", display, err)
	}
	return out, nil
}

// parseLine parses a line of a file: REPOSITORY:*, HOST/**, or a form that parse accepts.
func parseLine(line string, parse func(string) (Job, error)) (Job, error) {
	if repository, ok := strings.CutSuffix(line, allTagsSuffix); ok {
		return ParseRepository(repository)
	}
	if host, ok := strings.CutSuffix(line, wholeRegistrySuffix); ok {
		return ParseRegistry(host)
	}
	return parse(line)
}

// ParseImage parses a reference, with or without docker://, containers/image's name for registries.
func ParseImage(s string) (Job, error) {
	s = strings.TrimPrefix(s, "docker://")
	if err := notAnImage(s); err != nil {
		return Job{}, err
	}
	ref, err := reference.Parse(s)
	return Job{Kind: ImportJob, Ref: ref}, err
}

// ParseRepository is ParseImage for a repository.
func ParseRepository(s string) (Job, error) {
	s = strings.TrimPrefix(s, "docker://")
	if err := notAnImage(s); err != nil {
		return Job{}, err
	}
	ref, err := reference.ParseRepository(s)
	return Job{Kind: ListJob, Ref: ref}, err
}

// ParseRegistry parses HOST or HOST/, for --catalog.
func ParseRegistry(s string) (Job, error) {
	s = strings.TrimPrefix(s, "docker://")
	if host, path, _ := strings.Cut(s, "/"); path != "" {
		return Job{}, cli.WithHint(fmt.Errorf("%q is a repository, but --catalog needs a registry", s), "tidewaiter import --catalog --include '%s/**' %s/", strings.TrimSuffix(path, "/"), host)
	}
	host, err := reference.ParseHost(strings.TrimSuffix(s, "/"))
	return Job{Kind: ListJob, Ref: reference.Reference{Host: host}}, err
}

// notAnImage returns an error if s looks like a registry or a file. By the grammar some of these
// are references to Docker Hub, but no repository there has a dot in its name.
func notAnImage(s string) error {
	if archive.Is(s) {
		return cli.WithHint(fmt.Errorf("%q is a file, and a list holds only references", s), "tidewaiter import %s", s)
	}
	if looksLikeFile(s) {
		name := s
		if info, err := os.Stat(s); err == nil && info.IsDir() {
			return cli.WithHint(fmt.Errorf("%q is a folder, not an image reference", s), "tidewaiter import oci:%s, or dir:%s", name, name)
		}
		return cli.WithHint(fmt.Errorf("%q is a file, not an image reference", s), "tidewaiter import oci-archive:%s, or docker-archive:%s", name, name)
	}
	host, path, _ := strings.Cut(s, "/")
	if path != "" || !isRegistry(host) {
		return nil
	}
	return cli.WithHint(fmt.Errorf("%q is a registry, not an image in one", s), "tidewaiter import --catalog %s/, or name a repository: %s/team/app:v1", host, host)
}

// isRegistry reports whether s can be a registry's host and is hardly a repository on Docker Hub.
func isRegistry(s string) bool {
	if _, err := reference.ParseHost(s); err != nil {
		return false
	}
	name, _, _ := strings.Cut(s, ":")
	return strings.Contains(name, ".") || name == "localhost" || strings.HasPrefix(name, "[")
}

// looksLikeFile reports whether s is written like a path, or ends like an archive and names no
// registry.
func looksLikeFile(s string) bool {
	for _, begin := range []string{"/", "./", "../", "~/"} {
		if strings.HasPrefix(s, begin) {
			return true
		}
	}
	host, path, below := strings.Cut(s, "/")
	if below && path != "" && isRegistry(host) {
		return false
	}
	for _, end := range []string{".tar", ".tar.gz", ".tgz"} {
		if strings.HasSuffix(s, end) {
			return true
		}
	}
	return s == "." || s == ".."
}

// ExplainReference adds the corrected command to an error about a reference.
func ExplainReference(err error) error {
	if bad, ok := errors.AsType[*reference.Error](err); ok && bad.Suggestion != "" {
		return cli.WithHint(err, "tidewaiter import %s", bad.Suggestion)
	}
	return err
}

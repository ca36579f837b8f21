package compare

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Build builds the tidewaiter of a commit in a work tree of its own, which it removes again.
func Build(repository, commit, program string) (err error) {
	parent, err := os.MkdirTemp("", "tidewaiter-compare-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(parent)
	tree := filepath.Join(parent, "tree")
	if _, err := run(repository, "git", "worktree", "add", "--quiet", "--detach", tree, commit); err != nil {
		return err
	}
	defer func() {
		if _, removeErr := run(repository, "git", "worktree", "remove", "--force", tree); err == nil {
			err = removeErr
		}
	}()
	_, err = run(tree, "go", "build", "-o", program, "./cmd/tidewaiter")
	return err
}

// describe names a commit in short; without one, the tree as it is.
func describe(repository string, commit ...string) (string, error) {
	args := []string{"describe", "--always", "--tags"}
	if len(commit) == 0 {
		args = append(args, "--dirty")
	}
	out, err := run(repository, "git", append(args, commit...)...)
	return strings.TrimSpace(out), err
}

func run(dir, name string, args ...string) (string, error) {
	command := exec.Command(name, args...)
	command.Dir = dir
	out, err := command.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return string(out), nil
}

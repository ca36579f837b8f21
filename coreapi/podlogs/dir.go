package podlogs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// maxRestarts is the largest restart count a log file's name may carry; the
// field in a pod's status is an int32.
const maxRestarts = 1<<31 - 1

// errNoLog means that a pod or a container has no log in the directory.
var errNoLog = errors.New("no log file")

// podDir is the name of a pod's log directory. The UID is the only part that
// may come from a client (by the annotation of mirror pods), and neither a
// namespace nor a pod name can hold an underscore, so a pod never names the
// directory of another.
func podDir(namespace, name, uid string) string {
	return namespace + "_" + name + "_" + uid
}

// logFile finds the newest log of a container below dir or, with previous, the one before
// it. It returns its path and its restart count. The error is errNoLog when the pod's
// directory, the container's or the file is missing.
func logFile(dir, pod, container string, previous bool) (path string, restarts int, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", 0, fmt.Errorf("pod log directory: %w", err)
	}
	defer root.Close()

	parent := ""
	for _, element := range []string{pod, container} {
		if parent, err = descend(root, parent, element, fs.FileMode.IsDir, "a directory"); err != nil {
			return "", 0, err
		}
	}
	newest, before, err := newestLogs(root, parent)
	if err != nil {
		return "", 0, err
	}
	restarts = newest
	if previous {
		restarts = before
	}
	if restarts < 0 {
		return "", 0, fmt.Errorf("container %s: %w", container, errNoLog)
	}
	path, err = descend(root, parent, strconv.Itoa(restarts)+".log", fs.FileMode.IsRegular, "a regular file")
	if err != nil {
		return "", 0, err
	}
	return filepath.Join(dir, path), restarts, nil
}

// descend goes from parent to its entry called element, which must be one plain name and
// no symbolic link.
func descend(root *os.Root, parent, element string, ok func(fs.FileMode) bool, kind string) (string, error) {
	if element == "" || element == "." || element == ".." || strings.ContainsAny(element, "/\\\x00") {
		return "", fmt.Errorf("log path element %q is not a plain name", element)
	}
	path := filepath.Join(parent, element)
	info, err := root.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s: %w", path, errNoLog)
	}
	if err != nil {
		return "", fmt.Errorf("pod log: %w", err)
	}
	if !ok(info.Mode()) {
		return "", fmt.Errorf("pod log %s is a %s, not %s; links are not followed", path, fileKind(info.Mode()), kind)
	}
	return path, nil
}

func fileKind(m fs.FileMode) string {
	switch {
	case m&fs.ModeSymlink != 0:
		return "symbolic link"
	case m.IsDir():
		return "directory"
	case m.IsRegular():
		return "file"
	default:
		return "special file"
	}
}

// newestLogs returns the highest and the second highest restart count among the entries
// <restarts>.log of a directory, -1 for none. Rotated files (<restarts>.log.<time>) are
// older parts of the same log, and are ignored.
func newestLogs(root *os.Root, dir string) (newest, before int, err error) {
	f, err := root.Open(dir)
	if err != nil {
		return 0, 0, fmt.Errorf("pod log: %w", err)
	}
	defer f.Close()
	newest, before = -1, -1
	for {
		names, err := f.Readdirnames(256)
		for _, name := range names {
			n, ok := restartCount(name)
			switch {
			case !ok:
			case n > newest:
				newest, before = n, newest
			case n > before:
				before = n
			}
		}
		if errors.Is(err, io.EOF) {
			return newest, before, nil
		}
		if err != nil {
			return 0, 0, fmt.Errorf("pod log: %w", err)
		}
	}
}

// restartCount parses the name <restarts>.log as the kubelet writes it: decimal, without
// sign or leading zeros.
func restartCount(name string) (int, bool) {
	digits, ok := strings.CutSuffix(name, ".log")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 0 || n > maxRestarts || strconv.Itoa(n) != digits {
		return 0, false
	}
	return n, true
}

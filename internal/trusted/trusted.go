// Package trusted opens the files that decide what the program does, and refuses
// those that another user owns, can write or, of a secret, can read.
//
// Who counts as another user:
//
//   - The user that the process runs as and root do not; everybody else does.
//   - A group does not if it is root's, or if the process is in it and neither
//     /etc/group nor /etc/passwd put anybody else in it. So the private group that
//     many systems give each user may write, and so may the fsGroup of a Kubernetes
//     pod.
//   - What is on a file system that is mounted read-only cannot be written, as
//     ConfigMaps and Secrets in a pod cannot, whatever its mode says.
//
// The open file is judged, and not its path, so nobody can exchange it between the look
// and the use. Symbolic links are followed, since Kubernetes makes a file of a volume
// one: the file at their end counts. The directories above are not judged: somebody who can
// write one can put another file there, but not one that is owned by the user or by root
// and that others cannot write.
package trusted

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Open opens a file for reading that nobody else may have written. Its errors are
// of the operating system or an [*Error].
func Open(path string) (*os.File, error) { return open(path, Check) }

// OpenSecret is Open for a file that nobody else may read, either.
func OpenSecret(path string) (*os.File, error) { return open(path, checkSecret) }

// ReadFile reads what Open opens: at most limit bytes, or it fails.
func ReadFile(path string, limit int64) ([]byte, error) { return read(path, limit, Open) }

// ReadSecret reads what OpenSecret opens: at most limit bytes, or it fails.
func ReadSecret(path string, limit int64) ([]byte, error) { return read(path, limit, OpenSecret) }

// Check fails with an [*Error] for an open file or directory that another user owns
// or can write.
func Check(f *os.File) error { return check(f, false) }

// checkSecret is Check, and fails for what another user can read, too.
func checkSecret(f *os.File) error { return check(f, true) }

// CheckDir is Check for the directory of a path.
func CheckDir(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|onlyDirectory|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return Check(f)
}

// CheckPath is Check for a file that must not be opened, because the program holds locks
// on it or hands its path to a library. It is safe only if the directory has passed
// CheckDir, since nobody else can then exchange the file.
func CheckPath(path string) error { return checkPath(path, false) }

// CheckSecretPath is CheckPath, and fails for what another user can read, too.
func CheckSecretPath(path string) error { return checkPath(path, true) }

func open(path string, check func(*os.File) error) (*os.File, error) {
	// Without O_NONBLOCK, a named pipe would have the caller wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if err := check(f); err != nil {
		f.Close()
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errors.New("it is not a regular file")}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func read(path string, limit int64, open func(string) (*os.File, error)) ([]byte, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fmt.Errorf("it is larger than %d bytes", limit)}
	}
	return data, nil
}

// unfinishedAge is the age after which no process can still be writing a temporary file of Replace.
const unfinishedAge = time.Minute

// RemoveUnfinished removes the temporary files that Replace left beside these files because its
// process was killed. They may hold secrets.
func RemoveUnfinished(now time.Time, paths ...string) error {
	var errs []error
	for _, path := range paths {
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, e := range entries {
			number, ok := strings.CutPrefix(e.Name(), unfinishedPrefix(path))
			if !ok || number == "" || strings.Trim(number, "0123456789") != "" {
				continue
			}
			info, err := e.Info()
			if err == nil && info.Mode().IsRegular() && now.Sub(info.ModTime()) > unfinishedAge {
				err = os.Remove(filepath.Join(filepath.Dir(path), e.Name()))
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func unfinishedPrefix(path string) string { return "." + filepath.Base(path) + "-" }

// Replace writes a file in one step, so that a crash leaves the old one or the new one; see
// [RemoveUnfinished].
func Replace(path string, data []byte, mode fs.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), unfinishedPrefix(path)+"*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	err = errors.Join(err, tmp.Chmod(mode), tmp.Sync(), tmp.Close())
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return os.Rename(tmp.Name(), path)
}

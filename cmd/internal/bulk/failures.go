package bulk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// failures is the file of --failures. It has a line, in the form of -f, for each reference to try
// again. The new file replaces an old one when the run ends. So a killed run leaves the old file,
// from which it may have read its references. A nil *failures discards everything.
type failures struct {
	path string
	file *os.File // beside path, or at it if that is not a regular file, such as a pipe
	err  error    // of writing
}

// CreateFailures begins a file of failures. Call it before any work, so that its error comes first.
func CreateFailures(path string) (*failures, error) {
	f := &failures{}
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		f.file, err = os.OpenFile(path, os.O_WRONLY, 0)
		return f, f.explain(err)
	}
	switch f.path, err = filepath.EvalSymlinks(path); {
	case errors.Is(err, fs.ErrNotExist):
		f.path = path
	case err != nil:
		return nil, f.explain(err)
	}
	// with mode 0600
	f.file, err = os.CreateTemp(filepath.Dir(f.path), "."+filepath.Base(f.path)+"-*")
	return f, f.explain(err)
}

func (*failures) explain(err error) error {
	if err != nil {
		err = fmt.Errorf("--failures: %w", err)
	}
	return err
}

// write adds a reference, or a pattern, and why it must be tried again.
func (f *failures) write(reference, reason string) { f.printf("%s # %s\n", reference, reason) }

// note adds a comment.
func (f *failures) note(format string, args ...any) { f.printf("# "+format+"\n", args...) }

func (f *failures) printf(format string, args ...any) {
	if f == nil || f.err != nil {
		return
	}
	_, f.err = fmt.Fprintf(f.file, format, args...)
}

// End moves the file to its place. Call it when the file has every reference that was not imported.
func (f *failures) End() error {
	switch {
	case f == nil:
		return nil
	case f.path == "":
		return f.explain(errors.Join(f.err, f.file.Close()))
	}
	if err := errors.Join(f.err, f.file.Sync(), f.file.Close()); err != nil {
		return f.explain(err)
	}
	return f.explain(os.Rename(f.file.Name(), f.path))
}

// Close removes the file, unless End has moved it.
func (f *failures) Close() {
	if f.path != "" {
		f.file.Close()
		os.Remove(f.file.Name()) // fails after End has moved it
	}
}

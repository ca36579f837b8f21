package hooks

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/db/trusted"
)

// A file that cannot be read for a moment is read again, although it does not change any more.
func TestSecretFileIsTriedAgain(t *testing.T) {
	dir := t.TempDir()
	file, replaced := filepath.Join(dir, "secret"), filepath.Join(dir, "replaced")
	const secret, other = "a-secret-of-a-receiver", "b-secret-of-a-receiver-of-another-length"
	write := func(name, content string) {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	now, full := time.Unix(1, 0), false
	opened := 0
	write(file, secret)
	open := func(path string) (*os.File, error) {
		opened++
		if full {
			return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EMFILE}
		}
		return trusted.OpenSecret(path)
	}
	c, err := newReloadedFile(file, open, parseSecrets, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	write(replaced, other)
	if err := os.Rename(replaced, file); err != nil {
		t.Fatal(err)
	}
	full = true
	for range 10 {
		if got := c.get(); !slices.Equal(got, []string{secret}) {
			t.Errorf("while it cannot be read: %q", got)
		}
	}
	if opened != 2 {
		t.Errorf("a file that cannot be read was opened %d times in a moment, want once", opened-1)
	}
	full, now = false, now.Add(retryFile)
	if got := c.get(); !slices.Equal(got, []string{other}) {
		t.Errorf("when it can be read again: %q", got)
	}
}

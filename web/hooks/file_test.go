package hooks

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// After a temporary read error, a file is read again even if it has not changed.
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
	if got := c.Get(); !slices.Equal(got, []string{secret}) || opened != 1 {
		t.Errorf("it may be half written, and was opened %d times: %q", opened-1, got)
	}
	full, now = true, now.Add(time.Second)
	for range 10 {
		if got := c.Get(); !slices.Equal(got, []string{secret}) {
			t.Errorf("while it cannot be read: %q", got)
		}
	}
	if opened != 2 {
		t.Errorf("a file that cannot be read was opened %d times in a moment, want once", opened-1)
	}
	full, now = false, now.Add(time.Second)
	if got := c.Get(); !slices.Equal(got, []string{other}) {
		t.Errorf("when it can be read again: %q", got)
	}
}

// The beginning of a secret is not a secret.
func TestHalfWrittenSecrets(t *testing.T) {
	const first, second = "a-secret-of-a-receiver", "b-secret-of-a-receiver-of-another-length"
	before, err := parseSecrets([]byte(first+"\n"+second+"\n"), nil)
	if err != nil {
		t.Fatal(err)
	}
	text := first + "\n" + second
	for n := range len(text) {
		got, err := parseSecrets([]byte(text[:n]), before)
		if whole := n == len(first) || n == len(first)+1; (err == nil) != whole || whole && !slices.Equal(got, []string{first}) {
			t.Errorf("%q: %q, %v", text[:n], got, err)
		}
	}
	// possible contents after a loss of power
	if got, err := parseSecrets(make([]byte, 300), before); err == nil {
		t.Errorf("a file of zeros has the secrets %q", got)
	}
	for _, text := range []string{second, first + "-longer", "another-secret-of-a-receiver"} {
		if _, err := parseSecrets([]byte(text), before); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A second secret is being added, as the documents describe, and its writer has stopped halfway.
func TestSecretThatIsBeingAdded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	const first = "a-secret-of-a-receiver"
	write := func(content string) {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(first + "\n")
	now := time.Now()
	c, err := newReloadedFile(file, trusted.OpenSecret, parseSecrets, func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	write(first + "\n7")
	now = now.Add(time.Minute)
	c.Get()
	now = now.Add(time.Minute)
	if got := c.Get(); slices.Contains(got, "7") {
		t.Errorf("the secrets are %q", got)
	}
}

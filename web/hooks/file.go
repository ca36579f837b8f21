package hooks

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// Bounds of the files a receiver reads.
const (
	maxFileBytes = 256 << 10
	maxSecrets   = 8
	// retryFile is how long a file that cannot be used is left alone before it is read again.
	retryFile = time.Second
)

// reloadedFile holds the parsed content of a file, and reads the file again when it has
// changed. If the file goes missing or bad later, the last good value stays in force, and the
// file is read again every second.
type reloadedFile[T any] struct {
	path  string
	open  func(path string) (*os.File, error)
	parse func([]byte) (T, error)
	now   func() time.Time
	fixed bool // there is no file

	mu     sync.Mutex
	value  T
	seen   os.FileInfo // the file when it was looked at, nil if it was not there
	failed string      // why it could not be used then, which is said once; empty if it could
	tried  time.Time   // when it failed
}

// newReloadedFile reads the file with open: trusted.OpenSecret or trusted.Open.
func newReloadedFile[T any](path string, open func(string) (*os.File, error), parse func([]byte) (T, error), now func() time.Time) (*reloadedFile[T], error) {
	c := &reloadedFile[T]{path: path, open: open, parse: parse, now: now}
	return c, c.load()
}

// get returns the current value.
func (c *reloadedFile[T]) get() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fixed {
		return c.value
	}
	now, err := os.Stat(c.path)
	if err != nil {
		now = nil
	}
	before := c.seen
	c.seen = now
	changed := (now == nil) != (before == nil) || now != nil && (!os.SameFile(now, before) || now.Size() != before.Size() || !now.ModTime().Equal(before.ModTime()))
	if !changed && (c.failed == "" || c.now().Sub(c.tried) < retryFile) {
		return c.value
	}
	if err == nil {
		err = c.load()
	}
	if err == nil {
		c.failed = ""
		return c.value
	}
	if changed || c.failed != err.Error() {
		slog.Error("Reading a webhook receiver's file failed, will retry; its previous content stays in force", "err", err)
	}
	c.failed, c.tried = err.Error(), c.now()
	return c.value
}

// load reads the file. Its errors name the file and never quote it.
func (c *reloadedFile[T]) load() error {
	f, err := c.open(c.path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return err
	}
	if len(b) > maxFileBytes {
		return fmt.Errorf("%s is over %d bytes", c.path, maxFileBytes)
	}
	v, err := c.parse(b)
	if err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	c.value, c.seen = v, fi
	return nil
}

// parseSecrets reads one secret a line; empty lines do not count.
func parseSecrets(b []byte) ([]string, error) {
	var secrets []string
	for line := range bytes.Lines(b) {
		if s := strings.TrimSpace(string(line)); s != "" {
			secrets = append(secrets, s)
		}
	}
	switch {
	case len(secrets) == 0:
		return nil, fmt.Errorf("the file holds no secret; write one, for example with: openssl rand -hex 32")
	case len(secrets) > maxSecrets:
		return nil, fmt.Errorf("the file has more than %d secrets, one per line", maxSecrets)
	}
	for _, s := range secrets {
		if len(s) < 16 {
			slog.Warn("A webhook receiver's secret is shorter than 16 characters and may be guessed; openssl rand -hex 32 makes a good one")
			break
		}
	}
	return secrets, nil
}

// parsePathTokens reads secrets that stand in a URL's path.
func parsePathTokens(b []byte) ([]string, error) {
	secrets, err := parseSecrets(b)
	for _, s := range secrets {
		for _, c := range []byte(s) {
			if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0) {
				return nil, fmt.Errorf("a secret that stands in a URL may have letters, digits, '-', '.', '_' and '~' only; openssl rand -hex 32 makes a good one")
			}
		}
	}
	return secrets, err
}

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
)

// reloadedFile holds the parsed content of a file, and reads the file again when it has
// changed. If the file goes missing or bad later, the last good value stays in force.
type reloadedFile[T any] struct {
	path  string
	open  func(path string) (*os.File, error)
	parse func([]byte) (T, error)
	fixed bool // there is no file

	mu      sync.Mutex
	value   T
	size    int64
	modTime time.Time
	missing bool // said once, not once a request
}

// newReloadedFile reads the file with open: trusted.OpenSecret or trusted.Open.
func newReloadedFile[T any](path string, open func(string) (*os.File, error), parse func([]byte) (T, error)) (*reloadedFile[T], error) {
	c := &reloadedFile[T]{path: path, open: open, parse: parse}
	return c, c.load()
}

// get returns the current value.
func (c *reloadedFile[T]) get() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fixed {
		return c.value
	}
	fi, err := os.Stat(c.path)
	switch {
	case err != nil:
		if !c.missing {
			slog.Error("Keeping what was read before from a webhook receiver's file", "err", err)
		}
		c.missing = true
	case c.missing || fi.Size() != c.size || !fi.ModTime().Equal(c.modTime):
		c.missing = false
		if err := c.load(); err != nil {
			slog.Error("Keeping what was read before from a webhook receiver's file", "err", err)
			c.size, c.modTime = fi.Size(), fi.ModTime()
		}
	}
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
	c.value, c.size, c.modTime = v, fi.Size(), fi.ModTime()
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
		return nil, fmt.Errorf("the file holds over %d secrets, one a line", maxSecrets)
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

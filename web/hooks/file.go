package hooks

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// Bounds of the files a receiver reads.
const (
	maxFileBytes = 256 << 10
	maxSecrets   = 8
	minSecret    = 16 // characters, that a secret cannot be guessed by trying
	// retryFile is how long a file that cannot be used is left alone before it is read again.
	retryFile = time.Second
	// settleFile is how long a file must stay unchanged before it is read.
	settleFile = time.Second
)

// reloadedFile holds the parsed content of a file, and reads the file again when it has
// changed. If the file goes missing or bad later, the last good value stays in force, and the
// file is read again every second.
type reloadedFile[T any] struct {
	path  string
	open  func(path string) (*os.File, error)
	parse func(content []byte, before T) (T, error) // before is zero at first
	now   func() time.Time

	mu    sync.Mutex
	value T
	file  *trusted.Followed // nil if there is no file
}

// newReloadedFile reads the file with open: trusted.OpenSecret or trusted.Open.
func newReloadedFile[T any](path string, open func(string) (*os.File, error), parse func([]byte, T) (T, error), now func() time.Time) (*reloadedFile[T], error) {
	c := &reloadedFile[T]{path: path, open: open, parse: parse, now: now}
	c.file = &trusted.Followed{Names: []string{path}, Load: c.load, Settle: settleFile, Retry: retryFile, Failed: func(err error) {
		slog.Error("Reading a webhook receiver's file failed, will retry; its previous content stays in force", "err", err)
	}}
	return c, c.file.Start(now())
}

// get returns the current value.
func (c *reloadedFile[T]) get() T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file != nil {
		c.file.Look(c.now())
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
	b, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return err
	}
	if len(b) > maxFileBytes {
		return fmt.Errorf("%s is over %d bytes", c.path, maxFileBytes)
	}
	v, err := c.parse(b, c.value)
	if err != nil {
		return fmt.Errorf("%s: %w", c.path, err)
	}
	c.value = v
	return nil
}

// parseSecrets reads one secret a line and skips empty lines. It refuses a secret that is only the
// beginning of one in force, because the file may be half written.
func parseSecrets(b []byte, before []string) ([]string, error) {
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
	for i, s := range secrets {
		if slices.ContainsFunc(before, func(old string) bool { return len(s) < len(old) && strings.HasPrefix(old, s) }) {
			return nil, fmt.Errorf("secret %d is only the beginning of one in force, as if it were half written; if it is meant, make another: openssl rand -hex 32", i+1)
		}
	}
	if last := secrets[len(secrets)-1]; len(before) > 0 && len(last) < minSecret && !slices.Contains(before, last) && !bytes.HasSuffix(b, []byte("\n")) {
		return nil, fmt.Errorf("secret %d is short and its line does not end, as if it were half written; if it is meant, end the line", len(secrets))
	}
	for _, s := range secrets {
		if len(s) < minSecret {
			slog.Warn("A webhook receiver's secret is shorter than 16 characters and may be guessed; openssl rand -hex 32 makes a good one")
			break
		}
	}
	return secrets, nil
}

// parsePathTokens reads secrets that stand in a URL's path.
func parsePathTokens(b []byte, before []string) ([]string, error) {
	secrets, err := parseSecrets(b, before)
	for _, s := range secrets {
		for _, c := range []byte(s) {
			if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0) {
				return nil, fmt.Errorf("a secret that stands in a URL may have letters, digits, '-', '.', '_' and '~' only; openssl rand -hex 32 makes a good one")
			}
		}
	}
	return secrets, err
}

package hooks

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// Bounds of the files a receiver reads.
const (
	maxFileBytes = 256 << 10
	maxSecrets   = 8
	minSecret    = 16 // characters, so that a secret cannot be guessed
)

// newReloadedFile reads the file with open: trusted.OpenSecret or trusted.Open.
func newReloadedFile[T any](path string, open func(string) (*os.File, error), parse func([]byte, T) (T, error), now func() time.Time) (*trusted.Reloaded[T], error) {
	return trusted.NewReloaded(trusted.Reading[T]{Path: path, Limit: maxFileBytes, Open: open, Parse: parse, Now: now, Failed: func(err error) {
		slog.Error("Reading a webhook receiver's file failed, will retry; its previous content stays in force", "err", err)
	}})
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
		if strings.ContainsFunc(s, unicode.IsControl) {
			return nil, fmt.Errorf("secret %d has a control character, as if the file were damaged; make another: openssl rand -hex 32", i+1)
		}
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

// parsePathTokens reads secrets for a URL's path.
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

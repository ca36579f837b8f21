package hooks

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
	"github.com/tidewaiter/tidewaiter/web/hooks/hookconfig"
)

// Receiver and OIDC are the configuration of a receiver. They have a package of their own, so that
// programs that only read the configuration do not link the handler.
type (
	Receiver = hookconfig.Receiver
	OIDC     = hookconfig.OIDC
)

// vendors is the table of values of Receiver.Type.
var vendors = map[string]vendor{
	"acr":          acr,
	"distribution": distribution,
	"dockerhub":    dockerHub,
	"ecr":          ecr,
	"gar":          gar,
	Generic:        generic,
	"gitea":        gitea,
	"github":       gitHub,
	"gitlab":       distribution, // GitLab's registry is distribution
	"harbor":       harbor,
	"jfrog":        jfrog,
	"quay":         quay,
	"zot":          zot,
}

// Generic is the type of receivers for scripts. All others are for registries.
const Generic = "generic"

// Types returns the values that Receiver.Type may have, sorted.
func Types() []string { return slices.Sorted(maps.Keys(vendors)) }

var receiverName = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$`)

// Validate returns all errors in the receiver's configuration. It reads no files.
func Validate(r Receiver) error {
	var errs []error
	add := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("receiver %q: "+format, append([]any{r.Name}, args...)...))
	}
	if !receiverName.MatchString(r.Name) {
		add("name must be 1 to 63 lower-case letters, digits, '-' or '.', and start and end with a letter or digit")
	}
	v, ok := vendors[r.Type]
	if !ok {
		add("type %q is not known; use one of %s", r.Type, strings.Join(Types(), ", "))
		return errors.Join(errs...)
	}
	if len(r.Hosts) == 0 {
		add("hosts is empty; list the registries that it may report, as in hosts: [registry.example.com:5000]")
	}
	for _, h := range r.Hosts {
		if _, err := reference.ParseHost(h); err != nil {
			add("hosts: %w", err)
		}
	}
	if v.oneHost && len(r.Hosts) > 1 {
		add("hosts must have one entry: events of type %s do not name their registry", r.Type)
	}
	for _, p := range r.Repositories {
		if err := reference.CheckPathPattern(p); err != nil {
			add("%w", err)
		}
	}
	if v.auth.oidc {
		if r.OIDC == nil || r.OIDC.KeysFile == "" || r.OIDC.Audience == "" || r.OIDC.Email == "" {
			add("type %s needs oidc with keysFile, audience and email", r.Type)
		}
		if r.SecretFile != "" {
			add("secretFile is not used by type %s, whose requests carry a signed token", r.Type)
		}
	} else {
		if r.SecretFile == "" {
			add("secretFile is empty; write a secret to a file, for example with: openssl rand -hex 32 >hook-secret")
		}
		if r.OIDC != nil {
			add("oidc is only for type gar")
		}
	}
	if r.Header != "" && v.header == "" {
		add("header is not used by type %s", r.Type)
	}
	if strings.ContainsFunc(r.Header, func(c rune) bool { return !(c == '-' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z') }) {
		add("header %q is not the name of an HTTP header", r.Header)
	}
	return errors.Join(errs...)
}

type receiver struct {
	Receiver
	declared Receiver // as in the configuration, without defaults
	vendor   vendor
	hosts    []string // canonical
	secret   *trusted.Reloaded[[]string]
	keys     *trusted.Reloaded[*keySet]
	now      func() time.Time

	// known are the bodies of authenticated senders. unknown are the bodies whose signatures are still
	// to be checked. Receivers that do not accept signatures share unknown with receivers that do not
	// exist.
	known, unknown *bodies

	heard heard
}

// newAbsent makes the receiver that stands for those that do not exist. No request authenticates to
// it.
func newAbsent(now func() time.Time) *receiver {
	return &receiver{
		vendor: vendor{auth: auth{secret: true}, header: "Authorization"}, Receiver: Receiver{Header: "Authorization"}, now: now,
		secret: trusted.Fixed([]string{rand.Text()}), known: newBodies(maxBodyBytes), unknown: newBodies(maxBodyBytes),
	}
}

// newReceiver validates the configuration and reads its files. Relative file names are relative to
// dir.
func newReceiver(r Receiver, dir string, now func() time.Time, shared *bodies) (*receiver, error) {
	if err := Validate(r); err != nil {
		return nil, err
	}
	rc := &receiver{Receiver: r, declared: r, vendor: vendors[r.Type], now: now, known: newBodies(cmp.Or(vendors[r.Type].maxBody, maxBodyBytes)), unknown: shared}
	if len(rc.vendor.auth.hmac) > 0 {
		rc.unknown = newBodies(maxBodyBytes)
	}
	for _, h := range r.Hosts {
		host, err := reference.ParseHost(h)
		if err != nil {
			return nil, err
		}
		rc.hosts = append(rc.hosts, host)
	}
	rc.Header = cmp.Or(rc.Header, rc.vendor.header)
	abs := func(file string) string {
		if filepath.IsAbs(file) {
			return file
		}
		return filepath.Join(dir, file)
	}
	var err error
	if rc.vendor.auth.oidc {
		rc.keys, err = newReloadedFile(abs(r.OIDC.KeysFile), trusted.Open, parseKeySet, now)
	} else {
		parse := parseSecrets
		if rc.vendor.auth.path {
			parse = parsePathTokens
		}
		rc.secret, err = newReloadedFile(abs(r.SecretFile), trusted.OpenSecret, func(b []byte, before []string) ([]string, error) {
			secrets, err := parse(b, before)
			if err == nil && len(secrets) < len(before) {
				slog.Warn("A webhook receiver has fewer secrets than before", "receiver", r.Name, "secrets", len(secrets), "before", len(before))
			}
			return secrets, err
		}, now)
	}
	if err != nil {
		return nil, fmt.Errorf("receiver %q: %w", r.Name, err)
	}
	return rc, nil
}

func (rc *receiver) allows(host string) bool { return slices.Contains(rc.hosts, host) }

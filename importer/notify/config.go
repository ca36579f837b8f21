// Package notify sends notifications: CloudEvents (structured mode, JSON) over HTTP, signed by the
// rules of Standard Webhooks (https://www.standardwebhooks.com). They have a queue of their own,
// which keeps them until they are delivered, with a quota, retries and dead jobs for each receiver.
package notify

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tidewaiter/tidewaiter/importer/guard"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// Receiver is where notifications are sent. The server sends to no other host, and follows no
// redirect.
type Receiver struct {
	// Name is a DNS label.
	Name string `yaml:"name" example:"ci"`
	// URL is where events are sent.
	URL string `yaml:"url" example:"https://ci.example.com/hooks/images"`
	// URLFile has a secret address, in place of URL.
	URLFile string `yaml:"urlFile" example:"ci.url"`
	// Format is cloudevents or slack.
	Format string `yaml:"format" example:"cloudevents"`
	// SecretFile has secrets for signatures, one a line: whsec_ and the base64 of 24 to 64 bytes.
	SecretFile string `yaml:"secretFile" example:"ci.secret"`
	// TokenFile has a token for Authorization: Bearer.
	TokenFile string `yaml:"tokenFile" example:"ci.token"`
	// Events are the kinds that are sent; by default all.
	Events []string `yaml:"events" example:"[tag.moved, verdict.turned]"`
	// Repositories are hosts, with or without the beginning of a path; by default all.
	Repositories []string `yaml:"repositories" example:"[registry.example.com/team]"`
	// CAFile has authorities beside the system's (PEM).
	CAFile string `yaml:"caFile" example:"ci-ca.crt"`
	// Insecure allows plain HTTP.
	Insecure bool `yaml:"insecure" example:"false"`
}

// Formats of what is sent.
const (
	CloudEvents = "cloudevents"
	Slack       = "slack"
)

// MaxReceivers bounds the receivers of a configuration.
const MaxReceivers = 32

const (
	maxSecretFile = 4 << 10
	maxSecrets    = 4
	maxCAFile     = 1 << 20
	secretPrefix  = "whsec_"
	secretHelp    = `make one with: echo "` + secretPrefix + `$(openssl rand -base64 32)"`
)

// target is a receiver with what it takes to send to it.
type target struct {
	Receiver
	client   *http.Client
	prefixes []reference.Reference

	address *trusted.Reloaded[string]
	secrets *trusted.Reloaded[[]string] // as in the file; none if there is no file
	token   *trusted.Reloaded[string]   // "" if there is no file
}

// newTarget checks a receiver and reads its files. before is the target of the same name in force,
// nil if there is none: it goes on reading the files of an unchanged receiver.
func newTarget(r Receiver, networks guard.Networks, before *target, now func() time.Time) (*target, error) {
	t := &target{Receiver: r}
	switch {
	case validation.IsDNS1123Label(r.Name) != nil:
		return nil, fmt.Errorf("name: %q is not a DNS label: lower-case letters, digits and dashes", r.Name)
	case (r.URL == "") == (r.URLFile == ""):
		return nil, errors.New("it needs one of url and urlFile")
	case r.Format != "" && r.Format != CloudEvents && r.Format != Slack:
		return nil, fmt.Errorf("format: %q is not %s or %s", r.Format, CloudEvents, Slack)
	case r.SecretFile == "" && r.Format != Slack:
		return nil, errors.New("secretFile: it is missing; " + secretHelp)
	}
	for i, kind := range r.Events {
		if !slices.Contains(Kinds, Kind(kind)) {
			return nil, fmt.Errorf("events[%d]: %q is not one of %v", i, kind, Kinds)
		}
	}
	for i, text := range r.Repositories {
		prefix, err := parsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("repositories[%d]: %w", i, err)
		}
		t.prefixes = append(t.prefixes, prefix)
	}
	by, err := r.tls()
	if err != nil {
		return nil, fmt.Errorf("caFile: %w", err)
	}
	if before != nil && reflect.DeepEqual(before.Receiver, r) {
		t.address, t.secrets, t.token = before.address, before.secrets, before.token
	} else if err := t.readFiles(now); err != nil {
		return nil, err
	}
	transport := guard.New(guard.Options{Networks: networks, TLS: by, MaxConnsPerHost: 2})
	t.client = &http.Client{Transport: transport.Named(true), Timeout: timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return t, nil
}

// timeout bounds a delivery.
const timeout = 10 * time.Second

// parsePrefix reads a host, or a host and the beginning of a path.
func parsePrefix(text string) (reference.Reference, error) {
	if !strings.Contains(text, "/") {
		host, err := reference.ParseHost(text)
		return reference.Reference{Host: host}, err
	}
	return reference.ParseRepository(text)
}

// readFiles reads the receiver's files, which are read again when they change.
func (t *target) readFiles(now func() time.Time) error {
	var urlErr, secretErr, tokenErr error
	if t.URLFile == "" {
		t.address = trusted.Fixed(t.URL)
		if urlErr = t.checkURL(t.URL); urlErr != nil {
			urlErr = fmt.Errorf("url: %w", urlErr)
		}
	} else {
		t.address, urlErr = follow("urlFile", t.URLFile, t.parseURL, now)
	}
	if t.secrets = trusted.Fixed[[]string](nil); t.SecretFile != "" {
		t.secrets, secretErr = follow("secretFile", t.SecretFile, parseSecrets, now)
	}
	if t.token = trusted.Fixed(""); t.TokenFile != "" {
		t.token, tokenErr = follow("tokenFile", t.TokenFile, parseToken, now)
	}
	return errors.Join(urlErr, secretErr, tokenErr)
}

// follow reads the file that a key names.
func follow[T any](key, path string, parse func([]byte, T) (T, error), now func() time.Time) (*trusted.Reloaded[T], error) {
	r, err := trusted.NewReloaded(trusted.Reading[T]{Path: path, Limit: maxSecretFile, Open: trusted.OpenSecret, Parse: parse, Now: now, Failed: func(err error) {
		slog.Error("Reading a file of a receiver of notifications failed, will retry; its previous content stays in force", "key", key, "err", err)
	}})
	if err != nil {
		err = fmt.Errorf("%s: %w", key, err)
	}
	return r, err
}

// checkURL checks a URL. Errors do not quote it, as it may have a secret.
func (r *Receiver) checkURL(text string) error {
	at, err := url.Parse(text)
	switch {
	case err != nil, at.Host == "", at.Scheme != "https" && at.Scheme != "http", at.User != nil, at.Fragment != "":
		return errors.New("it is not a URL such as https://ci.example.com/hooks/images, without a user name")
	case at.Scheme == "http" && !r.Insecure:
		return errors.New("http shows everybody what is sent: use https, or set insecure: true")
	}
	return nil
}

// parseURL reads the content of a file with a URL.
func (r *Receiver) parseURL(content []byte, before string) (string, error) {
	text := strings.TrimSpace(string(content))
	if err := r.checkURL(text); err != nil {
		return "", err
	}
	return text, trusted.CutLine(content, before)
}

// parseSecrets reads one secret a line. Errors quote nothing.
func parseSecrets(content []byte, before []string) (all []string, err error) {
	for line := range strings.Lines(string(content)) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if secret, err := decodeSecret(line); err != nil || len(secret) < 24 || len(secret) > 64 {
			return nil, errors.New("a secret is not " + secretPrefix + " and the base64 of 24 to 64 bytes; " + secretHelp)
		}
		all = append(all, line)
	}
	if len(all) == 0 || len(all) > maxSecrets {
		return nil, fmt.Errorf("it has %d secrets, and must have 1 to %d", len(all), maxSecrets)
	}
	return all, trusted.CutLine(content, before...)
}

// decodeSecret returns the bytes of a secret.
func decodeSecret(line string) ([]byte, error) {
	text, ok := strings.CutPrefix(line, secretPrefix)
	if !ok {
		return nil, errors.New("it has no prefix " + secretPrefix)
	}
	return base64.StdEncoding.DecodeString(text)
}

var isToken = regexp.MustCompile(`^[!-~]+$`).MatchString

// parseToken reads the content of a file with a token. Errors quote nothing.
func parseToken(content []byte, before string) (string, error) {
	text := strings.TrimSpace(string(content))
	if !isToken(text) {
		return "", errors.New("it is not one line with a token")
	}
	return text, trusted.CutLine(content, before)
}

// tls returns how the receiver's certificate is verified; nil is by the system's authorities.
func (r *Receiver) tls() (*tls.Config, error) {
	if r.CAFile == "" {
		return nil, nil
	}
	data, err := trusted.ReadFile(r.CAFile, maxCAFile)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("%s has no certificate as a PEM block", r.CAFile)
	}
	if err := trusted.WholePEM(data); err != nil {
		return nil, fmt.Errorf("%s: %w", r.CAFile, err)
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// wants reports whether a receiver gets an event.
func (t *target) wants(e *Event) bool {
	if e.Kind == Missed {
		return true
	}
	if len(t.Events) > 0 && !slices.Contains(t.Events, string(e.Kind)) {
		return false
	}
	return len(t.prefixes) == 0 || slices.ContainsFunc(e.In, func(in reference.Reference) bool {
		return slices.ContainsFunc(t.prefixes, in.Below)
	})
}

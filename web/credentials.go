package web

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// adminUser is the name of the administrator whose credential every data
// directory is born with.
const adminUser = "tidewaiter-admin"

// Credentials are the files by which a server proves who it is and knows its
// callers. They live in the data directory:
//
//	pki/ca.crt, ca.key            private certificate authority; trust ca.crt
//	pki/serving.crt, serving.key  the server's certificate
//	pki/ca.crl                    the certificates that the authority has revoked, if any
//	pki/tokens.csv                bearer tokens, in Kubernetes' token file format
//	pki/admin.crt, admin.key      the administrator's client certificate
//	pki/sa.key, sa.pub            what signs service accounts' tokens, and the keys that verify them
//	pki/local.json                the credential of verbs on this machine, see LocalConfig
//	pki/authentication-config.yaml  a copy of --authentication-config, as it was when it was last whole
//	admin.kubeconfig              the administrator's credential
//
// Keys, tokens and the kubeconfig are readable by their owner alone. What
// another user owns, can write or, of a secret, can read is refused. A server that runs
// reads tokens, revocations and the keys of service accounts again when they change.
type Credentials struct {
	// CAFile is the path of the certificate authority's certificate, CAKeyFile that of its key.
	CAFile, CAKeyFile string
	// Kubeconfig is the path of the administrator's kubeconfig.
	Kubeconfig string
	// TLS says how the server serves; set it before [New].
	TLS TLS

	tokenFile                   string
	localFile                   string
	adminCertFile, adminKeyFile string
	signFile, publicFile        string // of service accounts' tokens

	ca       *authority
	clientCA *authorities
	serving  *serving
	local    *localCredential
	tokens   *fileTokens
	revoked  *revocations
	reload   reloader
	hosts    []string
	isNew    bool
}

// LoadCredentials reads the credentials below dir and creates what is missing.
// The serving certificate is recreated when it does not cover one of hosts (IP
// addresses or DNS names), does not come from the authority, or ends within 30
// days of now; a running server looks after it once a day. Where the disk is full it is
// held in memory alone. A file that another user
// could have written, or a secret that one can read, gives a *trusted.Error.
func LoadCredentials(dir string, hosts []string, now time.Time) (*Credentials, error) {
	return loadFrom(dir, filepath.Join(dir, "pki"), hosts, now)
}

// LoadSharedCredentials is LoadCredentials for one of several servers that know the same callers:
// what they share is in the directory shared, and the serving certificate and the credential of
// this machine are below dir. Of servers that start at once, one makes what is missing.
func LoadSharedCredentials(dir, shared string, hosts []string, now time.Time) (*Credentials, error) {
	unlock, err := lockDir(shared)
	if err != nil {
		return nil, fmt.Errorf("the directory of shared credentials: %w", err)
	}
	defer unlock()
	return loadFrom(dir, shared, hosts, now)
}

func loadFrom(dir, shared string, hosts []string, now time.Time) (*Credentials, error) {
	pki := filepath.Join(dir, "pki")
	if err := os.MkdirAll(pki, 0o700); err != nil {
		return nil, fmt.Errorf("creating %s: %w", pki, err)
	}
	c := credentialsIn(shared)
	c.Kubeconfig, c.localFile = filepath.Join(dir, "admin.kubeconfig"), filepath.Join(pki, localName)
	c.serving = &serving{certFile: filepath.Join(pki, "serving.crt"), keyFile: filepath.Join(pki, "serving.key")}
	c.hosts = hosts
	err := c.checkTrusted(dir, pki, shared)
	if err != nil {
		return nil, err
	}
	c.removeUnfinished(now)
	if err := c.loadAuthority(now); err != nil {
		return nil, err
	}
	if err := c.ensureServing(now); err != nil {
		return nil, err
	}
	if err := c.loadCallers(now); err != nil {
		return nil, err
	}
	if c.local, err = loadOrCreateLocal(c.localFile); err != nil {
		return nil, err
	}
	return c, nil
}

// credentialsIn returns Credentials that have read nothing yet, with the files that servers may
// share.
func credentialsIn(shared string) *Credentials {
	return &Credentials{
		CAFile:    filepath.Join(shared, "ca.crt"),
		CAKeyFile: filepath.Join(shared, "ca.key"),
		tokenFile: filepath.Join(shared, "tokens.csv"),

		adminCertFile: filepath.Join(shared, "admin.crt"),
		adminKeyFile:  filepath.Join(shared, "admin.key"),
		signFile:      filepath.Join(shared, "sa.key"),
		publicFile:    filepath.Join(shared, "sa.pub"),
		revoked:       &revocations{file: filepath.Join(shared, "ca.crl")},
	}
}

// loadAuthority reads or makes the certificate authority.
func (c *Credentials) loadAuthority(now time.Time) (err error) {
	if c.ca, c.isNew, err = loadOrCreateAuthority(c.CAFile, c.CAKeyFile, now); err != nil {
		return err
	}
	if c.clientCA, err = c.followAuthorities("client-ca", c.CAFile); err != nil {
		return fmt.Errorf("reading the certificate authority: %w", err)
	}
	return nil
}

// loadCallers reads which tokens and certificates are good, and makes the administrator's.
func (c *Credentials) loadCallers(now time.Time) error {
	if err := c.ensureAdminToken(); err != nil {
		return err
	}
	c.tokens = &fileTokens{file: c.tokenFile}
	c.revoked.ca = c.ca
	if err := errors.Join(c.reload.watchFiles(c.tokens.load, c.tokenFile), c.reload.watchFiles(c.revoked.load, c.revoked.file)); err != nil {
		return err
	}
	return c.ensureAdminCertificate(now)
}

// loadShared reads what servers share alone.
func loadShared(shared string, now time.Time) (*Credentials, error) {
	c := credentialsIn(shared)
	if err := trusted.CheckDir(shared); err != nil {
		return nil, err
	}
	if err := c.checkShared(); err != nil {
		return nil, err
	}
	if err := c.loadAuthority(now); err != nil {
		return nil, err
	}
	return c, c.loadCallers(now)
}

// AuthorityMade reports whether the certificate authority was made just now: what an earlier
// one of the directory signed is worth nothing.
func (c *Credentials) AuthorityMade() bool { return c.isNew }

// checkTrusted fails with *trusted.Error for what another user could have written or,
// if it is to be secret, read.
func (c *Credentials) checkTrusted(dir, pki, shared string) error {
	if err := errors.Join(trusted.CheckDir(dir), trusted.CheckDir(pki), trusted.CheckDir(shared)); err != nil {
		return err
	}
	// The kubeconfig is a secret, too, but it is rewritten with its own mode.
	return errors.Join(c.checkShared(), checkFiles([]string{c.serving.certFile, c.Kubeconfig}, []string{c.serving.keyFile, c.localFile}))
}

// checkShared is the part of checkTrusted about files that servers may share.
func (c *Credentials) checkShared() error {
	return checkFiles([]string{c.CAFile, c.adminCertFile, c.publicFile}, []string{c.CAKeyFile, c.adminKeyFile, c.signFile, c.tokenFile})
}

// checkFiles checks files that are public and files that are secret, if they exist.
func checkFiles(public, secret []string) error {
	var errs []error
	check := func(err error) {
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for _, file := range public {
		check(trusted.CheckPath(file))
	}
	for _, file := range secret {
		check(trusted.CheckSecretPath(file))
	}
	return errors.Join(errs...)
}

// removeUnfinished removes what a server or a rotation that was killed has left beside the files.
func (c *Credentials) removeUnfinished(now time.Time) {
	err := trusted.RemoveUnfinished(now, c.CAFile, c.CAKeyFile, c.Kubeconfig, c.tokenFile, c.localFile, c.adminCertFile, c.adminKeyFile,
		c.signFile, c.publicFile, c.revoked.file, c.serving.certFile, c.serving.keyFile)
	if err != nil && !errors.Is(err, syscall.EROFS) { // of a mounted Secret
		slog.Warn("unfinished files of credentials, which may hold secrets, cannot be removed", "err", err)
	}
}

// ensureServing renews the serving certificate if it has to be. A server that runs
// serves the new one.
func (c *Credentials) ensureServing(now time.Time) error {
	return c.serving.ensure(c.ca, c.hosts, now)
}

// ensureAdminToken creates the token file with a fresh administrator token
// unless there is one.
func (c *Credentials) ensureAdminToken() error {
	if _, err := os.Stat(c.tokenFile); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	line := fmt.Sprintf("%s,%s,%s,%q\n", newToken(), adminUser, adminUser, user.SystemPrivilegedGroup)
	return trusted.Replace(c.tokenFile, []byte(line), 0o600)
}

// adminToken is the first token of a member of system:masters.
func (c *Credentials) adminToken() (string, error) {
	records, err := c.readTokens()
	if err != nil {
		return "", err
	}
	for _, rec := range records {
		if len(rec) < 4 || rec[0] == "" {
			continue
		}
		for g := range strings.SplitSeq(rec[3], ",") {
			if g == user.SystemPrivilegedGroup {
				return rec[0], nil
			}
		}
	}
	return "", fmt.Errorf("%s has no token of the group %s; remove the file to create a new one", c.tokenFile, user.SystemPrivilegedGroup)
}

// readTokens are the records of the token file.
func (c *Credentials) readTokens() ([][]string, error) {
	data, err := trusted.ReadSecret(c.tokenFile, maxTokenFile)
	if err != nil {
		return nil, err
	}
	r := csv.NewReader(bytes.NewReader(data))
	r.FieldsPerRecord = -1
	records, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", c.tokenFile, err)
	}
	return records, nil
}

// tokenBytes is the length of a token before it is encoded: 256 bits.
const tokenBytes = 32

// newToken is tokenBytes random bytes in base64url.
func newToken() string {
	b := make([]byte, tokenBytes)
	_, _ = rand.Read(b) // which never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// writeIfChanged is trusted.Replace with mode 0600, unless path has that mode and holds
// data already: a server can then start where the disk is full.
func writeIfChanged(path string, data []byte) error {
	const mode = 0o600
	if fi, err := os.Lstat(path); err == nil && fi.Mode() == mode && fi.Size() == int64(len(data)) {
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
			return nil
		}
	}
	return trusted.Replace(path, data, mode)
}

// ServingHosts are the names a server bound to ip answers to: localhost, the
// loopback addresses, and ip itself or, when ip is unspecified, every address
// of the machine and its host name.
func ServingHosts(ip net.IP) []string {
	hosts := []string{"localhost", "127.0.0.1", "::1"}
	if !ip.IsUnspecified() {
		return append(hosts, ip.String())
	}
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, name)
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return hosts
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			hosts = append(hosts, n.IP.String())
		}
	}
	return hosts
}

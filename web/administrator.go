package web

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	apix509 "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/authentication/user"
	certutil "k8s.io/client-go/util/cert"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

// The administrator's credential is a token, which admin.kubeconfig holds, and a client
// certificate for programs that have no place for a token. Both can be replaced while
// the server runs. Removing the line of a token revokes it. A certificate would stay valid
// until it ends, so the authority keeps a list of revoked certificates (RFC 5280). The list
// has the administrator's certificates and those that a person signed by hand.

const (
	// adminLifetime is how long an administrator's certificate is good for.
	adminLifetime = 365 * 24 * time.Hour
	// maxTokenFile and maxRevoked bound files, in bytes.
	maxTokenFile = 1 << 20
	maxRevoked   = 4 << 20
)

// fileTokens are the tokens of a file in Kubernetes' token file format.
type fileTokens struct {
	file    string
	current atomic.Pointer[tokenfile.TokenAuthenticator]
	lines   []string // those in force
}

func (f *fileTokens) load() error {
	data, err := trusted.ReadSecret(f.file, maxTokenFile)
	if err != nil {
		return err
	}
	tokens, err := tokenfile.NewCSV(f.file)
	if err != nil {
		return fmt.Errorf("reading bearer tokens: %w", err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return fmt.Errorf("%s is empty; if no old token is to be accepted, remove it and run tidewaiter credentials rotate, which makes a new one", f.file)
	}
	if err := trusted.CutLine(data, f.lines...); err != nil {
		return fmt.Errorf("%s: %w", f.file, err)
	}
	lines := strings.Split(text, "\n")
	if gone := slices.DeleteFunc(slices.Clone(f.lines), func(line string) bool { return slices.Contains(lines, line) }); len(gone) > 0 {
		slog.Warn("Tokens are no longer in the token file, or their lines have changed", "file", f.file, "tokens", len(gone), "left", len(lines))
	}
	f.lines = lines
	f.current.Store(tokens)
	return nil
}

// AuthenticateToken implements authenticator.Token.
func (f *fileTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return f.current.Load().AuthenticateToken(ctx, token)
}

// localToken is the token of verbs on this machine.
func (c *Credentials) localToken() authenticator.Token {
	return tokenfile.New(map[string]*user.DefaultInfo{
		c.local.Token: {Name: localUser, UID: localUser, Groups: []string{user.SystemPrivilegedGroup}},
	})
}

// revocations are the serial numbers of the certificates that the authority has revoked.
type revocations struct {
	file    string
	ca      *authority
	current atomic.Pointer[map[string]bool]
}

func (r *revocations) load() error {
	list, err := r.read()
	if err != nil {
		return err
	}
	serials := make(map[string]bool, len(list))
	for _, e := range list {
		serials[e.SerialNumber.String()] = true
	}
	if before := r.current.Load(); before != nil {
		for serial := range *before {
			if !serials[serial] {
				return fmt.Errorf("%s is gone, or is older than what is in force; if this is meant, start the server again", r.file)
			}
		}
	}
	r.current.Store(&serials)
	return nil
}

// read returns the entries of the file, none if there is no file.
func (r *revocations) read() ([]x509.RevocationListEntry, error) {
	der, err := trusted.ReadFile(r.file, maxRevoked)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := x509.ParseRevocationList(der)
	if err == nil {
		err = list.CheckSignatureFrom(r.ca.revoker())
	}
	if err != nil {
		return nil, fmt.Errorf("%s is not a list of revoked certificates of pki/ca.crt: %w", r.file, err)
	}
	return list.RevokedCertificateEntries, nil
}

// add revokes certificates.
func (r *revocations) add(now time.Time, certs ...*x509.Certificate) error {
	list, err := r.read()
	if err != nil {
		return err
	}
	for _, cert := range certs {
		if !slices.ContainsFunc(list, func(e x509.RevocationListEntry) bool { return e.SerialNumber.Cmp(cert.SerialNumber) == 0 }) {
			list = append(list, x509.RevocationListEntry{SerialNumber: cert.SerialNumber, RevocationTime: now})
		}
	}
	der, err := x509.CreateRevocationList(rand.Reader, &x509.RevocationList{
		RevokedCertificateEntries: list,
		Number:                    big.NewInt(now.UnixNano()),
		ThisUpdate:                now.Add(-clockSkew),
		NextUpdate:                r.ca.cert.NotAfter,
	}, r.ca.revoker(), r.ca.key)
	if err != nil {
		return err
	}
	if len(der) > maxRevoked {
		return fmt.Errorf("%s would be larger than %d bytes: remove pki/ca.crt and pki/ca.key to create a new authority, and have every client trust it", r.file, maxRevoked)
	}
	return trusted.Replace(r.file, der, 0o644)
}

// has reports whether a certificate has been revoked.
func (r *revocations) has(cert *x509.Certificate) bool {
	return (*r.current.Load())[cert.SerialNumber.String()]
}

// except is of, which says whose a certificate is, but with an error for a revoked one.
func (r *revocations) except(of apix509.UserConversion) apix509.UserConversion {
	return apix509.UserConversionFunc(func(chain []*x509.Certificate) (*authenticator.Response, bool, error) {
		if r.has(chain[0]) {
			return nil, false, fmt.Errorf("the certificate with the serial number %s was revoked", chain[0].SerialNumber)
		}
		return of.User(chain)
	})
}

// revoker is the authority as one that may sign lists. The certificates of older
// authorities do not say that they may, and nobody else reads the list.
func (a *authority) revoker() *x509.Certificate {
	cert := *a.cert
	cert.KeyUsage |= x509.KeyUsageCRLSign
	return &cert
}

// ensureAdminCertificate makes the administrator's certificate unless there is one that
// is good for a while.
func (c *Credentials) ensureAdminCertificate(now time.Time) error {
	cert, certErr := os.ReadFile(c.adminCertFile)
	key, keyErr := os.ReadFile(c.adminKeyFile)
	if certErr == nil && keyErr == nil && c.ca.usable(cert, key, nil, now) {
		if certs, err := certutil.ParseCertsPEM(cert); err == nil && !c.revoked.has(certs[0]) {
			return nil
		}
	}
	err := c.issueAdmin(now)
	if isFull(err) || errors.Is(err, syscall.EROFS) { // of a mounted Secret
		slog.Warn("the administrator's certificate cannot be written; retrying in a day and at the next start", "err", err)
		return nil
	}
	return err
}

// issueAdmin writes a new certificate and key of the administrator.
func (c *Credentials) issueAdmin(now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	cert, err := sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: adminUser, Organization: []string{user.SystemPrivilegedGroup}},
		NotBefore:   now.Add(-clockSkew),
		NotAfter:    now.Add(adminLifetime),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, c.ca.cert, key.Public(), c.ca.key)
	if err != nil {
		return err
	}
	if err := writeKey(c.adminKeyFile, key); err != nil {
		return err
	}
	return writeCert(c.adminCertFile, cert)
}

// CreateShared makes the credentials that several servers share in the directory shared, which it
// makes, too. It fails if the directory has an authority already.
func CreateShared(shared string, now time.Time) error {
	if err := os.MkdirAll(shared, 0o700); err != nil {
		return err
	}
	unlock, err := lockDir(shared)
	if err != nil {
		return err
	}
	defer unlock()
	c := credentialsIn(shared)
	if _, err := os.Lstat(c.CAKeyFile); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("%s has credentials already", shared), err)
	}
	if _, err := loadShared(shared, now); err != nil {
		return err
	}
	_, err = ensureSigningKey(c.signFile, c.publicFile)
	return err
}

// Rotation says what to replace besides the administrator's credential.
type Rotation struct {
	// SigningKey makes a new key for the tokens of service accounts. Tokens of the old
	// one stay good until they end.
	SigningKey bool
	// Revoke are files with client certificates of the data directory's authority. They
	// are to be refused from now on.
	Revoke []string
	// PKIDir is the directory of the credentials that several servers share; empty for pki in
	// the data directory.
	PKIDir string
}

// Rotate replaces the administrator's token and certificate in the data directory dir. A
// server that runs there takes the new ones, and refuses the old, within a second, and
// rewrites admin.kubeconfig. Rotate returns the new token. With Rotation.PKIDir it touches nothing
// in a data directory.
func Rotate(dir string, r Rotation, now time.Time) (token string, err error) {
	pki, load := filepath.Join(dir, "pki"), func() (*Credentials, error) { return LoadCredentials(dir, nil, now) }
	what := dir + " is not the data directory of a server that has its own credentials"
	if r.PKIDir != "" {
		pki, load = r.PKIDir, func() (*Credentials, error) { return loadShared(r.PKIDir, now) }
		what = r.PKIDir + " has no credentials that servers share"
	}
	if _, err := os.Stat(filepath.Join(pki, "ca.key")); err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	unlock, err := lockDir(pki)
	if err != nil {
		return "", err
	}
	defer unlock()
	c, err := load()
	if err != nil {
		return "", err
	}
	revoke, err := c.ownCertificates(append(slices.Clone(r.Revoke), c.adminCertFile))
	if err != nil {
		return "", err
	}
	// The old certificates go first: an interruption leaves one credential less, not
	// one more.
	if err := c.revoked.add(now, revoke...); err != nil {
		return "", err
	}
	if token, err = c.replaceAdminToken(); err != nil {
		return "", err
	}
	if err := c.issueAdmin(now); err != nil {
		return "", err
	}
	if r.SigningKey {
		if _, err := newSigningKey(c.signFile, c.publicFile); err != nil {
			return "", err
		}
	}
	return token, nil
}

// ownCertificates reads the first certificate of each file, which c's authority must
// have signed.
func (c *Credentials) ownCertificates(files []string) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for _, file := range files {
		certs, err := certutil.CertsFromFile(file)
		if err == nil {
			err = certs[0].CheckSignatureFrom(c.ca.cert)
		}
		if err != nil {
			return nil, fmt.Errorf("%s is not a certificate of %s: %w", file, c.CAFile, err)
		}
		all = append(all, certs[0])
	}
	return all, nil
}

// replaceAdminToken puts a new token in the administrator's line. Other lines stay.
func (c *Credentials) replaceAdminToken() (string, error) {
	old, err := c.adminToken()
	if err != nil {
		return "", err
	}
	records, err := c.readTokens()
	if err != nil {
		return "", err
	}
	token := newToken()
	var b strings.Builder
	w := csv.NewWriter(&b)
	for _, record := range records {
		if len(record) > 0 && record[0] == old {
			record[0] = token
		}
		if err := w.Write(record); err != nil {
			return "", err
		}
	}
	w.Flush()
	return token, errors.Join(w.Error(), trusted.Replace(c.tokenFile, []byte(b.String()), 0o600))
}

// lockDir waits until no other process holds dir, and then holds it.
func lockDir(dir string) (unlock func(), err error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", dir, err), d.Close())
	}
	return func() {
		// a child that is forked has it open, too, until it runs its program
		_ = syscall.Flock(int(d.Fd()), syscall.LOCK_UN)
		_ = d.Close()
	}, nil
}

package web

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

const (
	// localUser is the name of those who use the local credential. It is an
	// administrator.
	localUser = "tidewaiter-local"
	// localName is the file's name in the folder pki.
	localName = "local.json"
	// maxLocalFile bounds the file, in bytes.
	maxLocalFile = 64 << 10
)

// localCredential is what a verb on the server's machine needs to reach the server: an
// address, whom to trust and a token. It is not a kubeconfig, because that could also
// name a program to run, and clients such as oc rewrite it. This file has no place for
// a program, and only the server writes it.
type localCredential struct {
	// Server is https://IP:PORT.
	Server string `json:"server"`
	// CertificateAuthority is a certificate in PEM.
	CertificateAuthority string `json:"certificateAuthority"`
	// Token is a bearer token as newToken makes them.
	Token string `json:"token"`
}

// LocalConfig is the way of an administrator to the server that holds a data directory.
// The server writes the credential when it starts (see WriteLocal). A credential that
// another user could have written or can read gives a *trusted.Error.
func LocalConfig(dir string) (*restclient.Config, error) {
	pki := filepath.Join(dir, "pki")
	if err := errors.Join(trusted.CheckDir(dir), trusted.CheckDir(pki)); err != nil {
		return nil, err
	}
	l, err := readLocal(filepath.Join(pki, localName))
	if err != nil {
		return nil, err
	}
	return l.config(), nil
}

func (l *localCredential) config() *restclient.Config {
	return &restclient.Config{
		Host:            l.Server,
		BearerToken:     l.Token,
		TLSClientConfig: restclient.TLSClientConfig{CAData: []byte(l.CertificateAuthority)},
	}
}

// loadOrCreateLocal keeps the token of an earlier start, so that a start writes nothing
// if nothing has changed. If the file cannot be understood, it makes a new token.
func loadOrCreateLocal(file string) (*localCredential, error) {
	l, err := readLocal(file)
	var invalid *localError
	if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.As(err, &invalid) {
		return l, err
	}
	return &localCredential{Token: newToken()}, nil
}

// WriteLocal writes the credential with which verbs on this machine reach the server at
// url, for instance https://127.0.0.1:6443. See [LocalConfig].
func (c *Credentials) WriteLocal(url string) error {
	ca, err := os.ReadFile(c.CAFile)
	if err != nil {
		return err
	}
	c.local.Server, c.local.CertificateAuthority = url, string(ca)
	data, err := json.MarshalIndent(c.local, "", "  ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	if _, err := parseLocal(data); err != nil {
		return err
	}
	return writeIfChanged(c.localFile, data)
}

func readLocal(file string) (*localCredential, error) {
	data, err := trusted.ReadSecret(file, maxLocalFile)
	if err != nil {
		return nil, err
	}
	l, err := parseLocal(data)
	if err != nil {
		return nil, &localError{file: file, err: err}
	}
	return l, nil
}

// localError is the error for a local credential that cannot be parsed.
type localError struct {
	file string
	err  error
}

func (e *localError) Error() string {
	return fmt.Sprintf("%s: %v; restart the server to recreate it", e.file, e.err)
}

func (e *localError) Unwrap() error { return e.err }

// parseLocal accepts what WriteLocal writes and nothing else. Its errors do not quote
// the token.
func parseLocal(data []byte) (*localCredential, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	l := &localCredential{}
	if err := d.Decode(l); err != nil {
		return nil, fmt.Errorf("it is not a local credential: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is data after the local credential")
	}
	if !isAddress(l.Server) {
		return nil, fmt.Errorf("server %q is not https://IP:PORT", l.Server)
	}
	if block, rest := pem.Decode([]byte(l.CertificateAuthority)); block == nil || block.Type != "CERTIFICATE" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("certificateAuthority is not one certificate in PEM")
	} else if _, err := x509.ParseCertificate(block.Bytes); err != nil {
		return nil, fmt.Errorf("certificateAuthority: %w", err)
	}
	if b, err := base64.RawURLEncoding.DecodeString(l.Token); err != nil || len(b) != tokenBytes || base64.RawURLEncoding.EncodeToString(b) != l.Token {
		return nil, errors.New("token is not one that a server made")
	}
	return l, nil
}

// isAddress reports whether s is https://IP:PORT.
func isAddress(s string) bool {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || "https://"+u.Host != s {
		return false
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && port > 0 && net.ParseIP(u.Hostname()) != nil
}

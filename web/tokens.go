package web

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"gopkg.in/go-jose/go-jose.v2/jwt"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/kubernetes/pkg/routes"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/tidewaiter/tidewaiter/internal/trusted"
)

const (
	// maxKeyFile bounds a file of keys, in bytes.
	maxKeyFile = 256 << 10
	// keysAge is how long, in seconds, others may keep the keys that they were told.
	keysAge = 60
)

// Tokens signs the tokens of service accounts, and knows the keys that verify them. The
// files of the keys are read again when they change. An administrator who changes the signing key
// keeps the old one among those that verify, until the last token signed with it has
// ended.
type Tokens struct {
	issuer     string
	jwksURI    string // where others find the keys; empty for this server
	signFile   string
	verifyFile []string
	current    atomic.Pointer[tokenKeys]

	mu        sync.Mutex
	listeners []serviceaccount.Listener
}

// tokenKeys are the contents of the files of Tokens.
type tokenKeys struct {
	serviceaccount.TokenGenerator
	serviceaccount.PublicKeysGetter
}

var (
	_ serviceaccount.TokenGenerator   = (*Tokens)(nil)
	_ serviceaccount.PublicKeysGetter = (*Tokens)(nil)
)

// ServiceAccountTokens reads the keys that a names. If a names none, it reads those of
// the data directory, and makes them if there are none.
func (c *Credentials) ServiceAccountTokens(a *Authentication) (*Tokens, error) {
	t := &Tokens{issuer: a.issuers()[0], jwksURI: a.ServiceAccounts.JWKSURI, signFile: a.SigningKeyFile, verifyFile: a.ServiceAccounts.KeyFiles}
	if len(t.verifyFile) == 0 {
		t.verifyFile = []string{c.publicFile}
	}
	t.signFile = cmp.Or(t.signFile, c.signFile)
	if t.signFile == c.signFile || slices.Contains(t.verifyFile, c.publicFile) {
		key, err := ensureSigningKey(c.signFile, c.publicFile)
		if isFull(err) {
			slog.Warn("the disk is full: the new key for service account tokens cannot be written; tokens become invalid when the server stops", "err", err)
			return t, t.set(key, nil)
		}
		if err != nil {
			return nil, err
		}
	}
	return t, c.reload.watchFiles(t.load, append([]string{t.signFile}, t.verifyFile...)...)
}

// ensureSigningKey makes the key unless there is one, and makes sure that it is among
// those that verify. On an error it may still return the key.
func ensureSigningKey(signFile, publicFile string) (crypto.Signer, error) {
	key, err := readKey(signFile)
	if errors.Is(err, fs.ErrNotExist) {
		return newSigningKey(signFile, publicFile)
	}
	if err != nil {
		return nil, err
	}
	return key, addPublicKey(publicFile, key)
}

// newSigningKey replaces the key that signs. The new key is among those that verify
// before it signs.
func newSigningKey(signFile, publicFile string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if err := addPublicKey(publicFile, key); err != nil {
		return key, err
	}
	return key, writeKey(signFile, key)
}

// addPublicKey adds the public half of a key to a file, unless the file has it.
func addPublicKey(file string, key crypto.Signer) error {
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	have, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	block := pem.EncodeToMemory(&pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: der})
	if bytes.Contains(have, block) {
		return nil
	}
	if len(have)+len(block) > maxKeyFile {
		return fmt.Errorf("%s holds %d bytes of keys: remove those whose tokens have expired", file, len(have))
	}
	return trusted.Replace(file, append(have, block...), 0o644)
}

// load reads the files.
func (t *Tokens) load() error {
	data, err := trusted.ReadSecret(t.signFile, maxKeyFile)
	if err != nil {
		return err
	}
	private, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return fmt.Errorf("%s: %w", t.signFile, err)
	}
	key, ok := private.(crypto.Signer)
	if !ok {
		return fmt.Errorf("%s: a %T cannot sign", t.signFile, private)
	}
	var public []any
	for _, file := range t.verifyFile {
		data, err := trusted.ReadFile(file, maxKeyFile)
		if err != nil {
			return err
		}
		keys, err := keyutil.ParsePublicKeysPEM(data)
		if err == nil {
			err = trusted.WholePEM(data)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		public = append(public, keys...)
	}
	return t.set(key, public)
}

// set signs with key, and verifies with it and with others.
func (t *Tokens) set(key crypto.Signer, others []any) error {
	generator, err := serviceaccount.JWTTokenGenerator(t.issuer, key)
	if err != nil {
		return fmt.Errorf("%s: %w", t.signFile, err)
	}
	keys := []any{key.Public()}
	for _, other := range others {
		if private, ok := other.(crypto.Signer); ok {
			other = private.Public()
		}
		if known, ok := other.(interface{ Equal(crypto.PublicKey) bool }); !ok || !known.Equal(key.Public()) {
			keys = append(keys, other)
		}
	}
	getter, err := serviceaccount.StaticPublicKeysGetter(keys)
	if err != nil {
		return err
	}
	t.current.Store(&tokenKeys{generator, getter})
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.listeners {
		l.Enqueue()
	}
	return nil
}

// GenerateToken implements serviceaccount.TokenGenerator.
func (t *Tokens) GenerateToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	return t.current.Load().GenerateToken(ctx, claims, private)
}

// AddListener implements serviceaccount.PublicKeysGetter.
func (t *Tokens) AddListener(l serviceaccount.Listener) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listeners = append(t.listeners, l)
}

// GetCacheAgeMaxSeconds implements serviceaccount.PublicKeysGetter.
func (t *Tokens) GetCacheAgeMaxSeconds() int { return keysAge }

// GetPublicKeys implements serviceaccount.PublicKeysGetter.
func (t *Tokens) GetPublicKeys(ctx context.Context, id string) []serviceaccount.PublicKey {
	return t.current.Load().GetPublicKeys(ctx, id)
}

// serveDiscovery serves the keys, by the rules of OpenID Connect, to other servers that
// trust the tokens. It does so only if the issuer is an address.
func (t *Tokens) serveDiscovery(api *genericapiserver.GenericAPIServer, address string) {
	if t == nil {
		return
	}
	metadata, err := serviceaccount.NewOpenIDMetadataProvider(t.issuer, t.jwksURI, address, t)
	if err != nil {
		slog.Info("the keys of service accounts' tokens are not served", "issuer", t.issuer, "err", err)
		return
	}
	routes.NewOpenIDMetadataServer(metadata).Install(api.Handler.GoRestfulContainer)
}

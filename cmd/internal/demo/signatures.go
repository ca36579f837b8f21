package demo

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/tidewaiter/tidewaiter/internal/payload"
)

// Signer signs as cosign does, with a key that exists only during the demo.
type Signer struct{ key *ecdsa.PrivateKey }

// NewSigner returns a signer with a new key.
func NewSigner() (*Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return &Signer{key}, err
}

// WritePolicy writes a policy that trusts the signer for all images of a scope into dir,
// and returns its path.
func (s *Signer) WritePolicy(dir, scope string) (string, error) {
	public, err := cryptoutils.MarshalPublicKeyToPEM(s.key.Public())
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "harbour-master.pub"), public, 0o600); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "policy.yaml")
	return path, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: config.openshift.io/v1
kind: ClusterImagePolicy
metadata:
  name: harbour-master
spec:
  scopes: [%q]
  policy:
    rootOfTrust:
      policyType: PublicKey
      publicKey: {keyPath: harbour-master.pub}
    signedIdentity: {matchPolicy: MatchRepository}
`, scope), 0o600)
}

// Sign signs a digest and stores the signature where clients look for it beside image: under the
// tag sha256-<hex>.sig. If signed is not the digest of image, the image looks as if it was changed
// after it was signed.
func (s *Signer) Sign(repository name.Repository, signed, image v1.Hash) error {
	signer, err := signature.LoadECDSASigner(s.key, crypto.SHA256)
	if err != nil {
		return err
	}
	doc, err := payload.MarshalSimpleSigning(payload.TypeCosign, signed.String(), repository.Name(), nil)
	if err != nil {
		return err
	}
	sig, err := signer.SignMessage(bytes.NewReader(doc))
	if err != nil {
		return err
	}
	manifest := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	artifact, err := mutate.Append(manifest, mutate.Addendum{
		Layer:       static.NewLayer(doc, payload.MediaTypeSimpleSigning),
		Annotations: map[string]string{payload.AnnotationSignature: base64.StdEncoding.EncodeToString(sig)},
	})
	if err != nil {
		return err
	}
	return remote.Write(repository.Tag(strings.Replace(image.String(), ":", "-", 1)+".sig"), artifact)
}

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/tidewaiter/tidewaiter/cmd/internal/demo"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
)

// underPolicy is a registry, a signer, and a folder with the policy that all images of the registry
// are signed by the signer.
type underPolicy struct {
	*registrytest.Registry
	t           testing.TB
	signer      *demo.Signer
	dir, policy string // the policy's file
}

func newUnderPolicy(t testing.TB) *underPolicy {
	t.Helper()
	signer, err := demo.NewSigner()
	if err != nil {
		t.Fatal(err)
	}
	s := &underPolicy{Registry: registrytest.New(t), t: t, signer: signer, dir: t.TempDir()}
	if s.policy, err = signer.WritePolicy(s.dir, s.Host); err != nil {
		t.Fatal(err)
	}
	return s
}

// push pushes an image, and signs it if it is to be signed.
func (s *underPolicy) push(called, tag string, isSigned bool) (digest string) {
	s.t.Helper()
	image, err := sample.New(sample.Spec{Name: called})
	if err != nil {
		s.t.Fatal(err)
	}
	digest = s.Push(tag, image)
	if isSigned {
		s.sign(tag, digest)
	}
	return digest
}

// sign signs a digest in the repository of a tag.
func (s *underPolicy) sign(tag, digest string) {
	s.t.Helper()
	repository, _, _ := strings.Cut(tag, ":")
	of, err := name.NewRepository(s.Host + "/" + repository)
	if err != nil {
		s.t.Fatal(err)
	}
	hash, err := v1.NewHash(digest)
	if err == nil {
		err = s.signer.Sign(of, hash, hash)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// policyText is the policy as it is in its file.
func (s *underPolicy) policyText() string {
	s.t.Helper()
	text, err := os.ReadFile(s.policy)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// write writes files into the folder, and returns the path of config.yaml.
func (s *underPolicy) write(files map[string]string) (config string) {
	s.t.Helper()
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(s.dir, file), []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	return filepath.Join(s.dir, "config.yaml")
}

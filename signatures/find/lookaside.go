package find

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"sigs.k8s.io/yaml"

	"tidewaiter/signatures"
	"tidewaiter/signatures/payload"
	"tidewaiter/signatures/policy"
)

// lookasides is what registries.d files say: where signatures of which images are kept.
type lookasides struct {
	fallback string            // of default-docker
	byScope  map[string]string // base URL by scope
}

const (
	maxRegistriesFiles = 256
	maxRegistriesSize  = 1 << 20
)

// DefaultRegistriesDirs are the folders that containers/image reads: the user's own, then the system's.
func DefaultRegistriesDirs() []string {
	dirs := []string{"/etc/containers/registries.d"}
	if home, err := os.UserHomeDir(); err == nil {
		dirs = append([]string{filepath.Join(home, ".config/containers/registries.d")}, dirs...)
	}
	return dirs
}

// namespace is an entry of a registries.d file (containers-registries.d(5)). Keys for writing are read over.
type namespace struct {
	Lookaside string `json:"lookaside"`
	Sigstore  string `json:"sigstore"` // the older name
}

// loadLookasides reads every *.yaml file of the first folder that exists.
func loadLookasides(dirs []string) (*lookasides, error) {
	l := &lookasides{byScope: map[string]string{}}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(entries) > maxRegistriesFiles {
			return nil, fmt.Errorf("%s: %d files, at most %d are read", dir, len(entries), maxRegistriesFiles)
		}
		origin := map[string]string{}
		for _, e := range entries {
			if !strings.HasSuffix(e.Name(), ".yaml") {
				continue
			}
			file := filepath.Join(dir, e.Name())
			if err := l.load(file, origin); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
		return l, nil
	}
	return l, nil
}

func (l *lookasides) load(file string, origin map[string]string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxRegistriesSize+1))
	if err != nil {
		return err
	}
	if len(data) > maxRegistriesSize {
		return fmt.Errorf("larger than %d bytes", maxRegistriesSize)
	}
	var content struct {
		Default *namespace           `json:"default-docker"`
		Docker  map[string]namespace `json:"docker"`
	}
	if err := yaml.Unmarshal(data, &content); err != nil {
		return err
	}
	claim := func(key string, n namespace) (string, error) {
		if other, ok := origin[key]; ok {
			return "", fmt.Errorf("%s is configured in %s already", key, other)
		}
		origin[key] = file
		base := firstOf(n.Lookaside, n.Sigstore)
		if base == "" {
			return "", nil
		}
		u, err := url.Parse(base)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "file" {
			return "", fmt.Errorf("%s: lookaside %q is not an http, https or file URL", key, base)
		}
		return base, nil
	}
	if content.Default != nil {
		if l.fallback, err = claim("default-docker", *content.Default); err != nil {
			return err
		}
	}
	for scope, n := range content.Docker {
		base, err := claim(scope, n)
		if err != nil {
			return err
		}
		if base != "" {
			l.byScope[scope] = base
		}
	}
	return nil
}

// base returns the base URL for an image, "" if none is configured. The most specific scope with a URL wins.
func (l *lookasides) base(r policy.Reference) string {
	for _, scope := range r.Scopes() {
		if b := l.byScope[scope]; b != "" {
			return b
		}
	}
	return l.fallback
}

// lookaside reads <base>/<path>@sha256=<hex>/signature-1, -2, … until there is no next.
func (f *Finder) lookaside(ctx context.Context, s *search, repo name.Repository) error {
	ref, err := policy.ParseReference(repo.Name() + "@" + s.digest)
	if err != nil {
		return err
	}
	base := f.lookasides.base(ref)
	if base == "" {
		return nil
	}
	_, path, _ := strings.Cut(ref.Repository, "/")
	u, err := url.Parse(base)
	if err != nil {
		return err
	}
	u = u.JoinPath(path+"@"+strings.Replace(s.digest, ":", "=", 1), "signature-")
	store := &client{base: u.Scheme + "://" + u.Host, http: &http.Client{Transport: f.transport}}
	for n := 1; n <= MaxLooked; n++ {
		one := *u
		one.Path += fmt.Sprint(n)
		var content []byte
		status := http.StatusOK
		if u.Scheme == "file" {
			content, status, err = readSignatureFile(one.Path)
		} else {
			content, status, _, err = store.get(ctx, one.RequestURI(), "", MaxSignature, http.StatusNotFound)
		}
		if status == http.StatusNotFound || !s.look() {
			return nil
		}
		if s.leftOut(err, fmt.Sprintf("lookaside signature-%d", n)) {
			continue
		}
		if err != nil {
			return err
		}
		typ := signatures.TypeAtomic
		if payload.IsBlob(content) {
			typ = signatures.TypeSimpleSigning
		}
		s.add(typ, content)
	}
	return nil
}

func readSignatureFile(path string) ([]byte, int, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, http.StatusNotFound, nil
	}
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxSignature+1))
	if err != nil {
		return nil, 0, err
	}
	if len(data) > MaxSignature {
		return nil, 0, unusable("more than %d bytes", MaxSignature)
	}
	return data, http.StatusOK, nil
}

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
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/tidewaiter/tidewaiter/internal/oci"
	"github.com/tidewaiter/tidewaiter/internal/payload"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
)

// lookaside reads <base>/<path>@sha256=<hex>/signature-1, -2, … until one is missing.
func (f *Finder) lookaside(ctx context.Context, s *search, repo name.Repository) error {
	ref, err := reference.Parse(repo.Name() + "@" + s.digest)
	if err != nil {
		return err
	}
	base := f.lookasides.base(ref)
	if base == "" {
		return nil
	}
	path := ref.Repository
	u, err := url.Parse(base)
	if err != nil {
		return err
	}
	if u.Scheme != "file" && f.transport == nil {
		return fmt.Errorf("%s cannot be reached", base)
	}
	u = u.JoinPath(path+"@"+strings.Replace(s.digest, ":", "=", 1), "signature-")
	store := &client{Client: oci.New(u.Scheme, u.Host, "", f.transport)}
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
		if status == http.StatusNotFound || !s.countCandidate() {
			return nil
		}
		if s.lost(err, fmt.Sprintf("lookaside signature-%d", n)) {
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

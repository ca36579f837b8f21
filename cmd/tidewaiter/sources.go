package main

import (
	"errors"
	"fmt"

	"github.com/tidewaiter/tidewaiter/cmd/internal/bulk"
	"github.com/tidewaiter/tidewaiter/cmd/internal/cli"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/archive"
)

// openSources opens the arguments that are files, and returns the others.
func (o *importOptions) openSources(args []string) (opened bulk.Sources, others []string, err error) {
	defer func() {
		if err != nil {
			opened.Close()
		}
	}()
	var as reference.Reference
	if o.storeAs != "" {
		if as, err = reference.Parse(o.storeAs); err != nil {
			return nil, nil, fmt.Errorf("--store-as: %w", err)
		}
		if as.Digest != "" {
			return nil, nil, errors.New("--store-as: the image determines the digest: give a repository or a tag")
		}
	}
	for _, arg := range args {
		if !archive.Is(arg) {
			others = append(others, arg)
			continue
		}
		source, err := archive.Open(arg, as)
		var unsupported *archive.UnsupportedError
		if errors.As(err, &unsupported) {
			err = cli.WithHint(err, "%s", unsupported.Instead)
		}
		if err != nil {
			return opened, nil, err
		}
		opened = append(opened, source)
	}
	switch {
	case o.storeAs != "" && (len(opened) != 1 || len(others) > 0):
		return opened, nil, cli.WithHint(errors.New("--store-as names one image that comes from a file"), "tidewaiter import oci-archive:app.tar --store-as registry.example.com/team/app:v1")
	case len(opened) > 0 && (o.allTags || o.catalog):
		return opened, nil, cli.WithHint(fmt.Errorf("%s is not a repository or a registry; all images of a file are imported if none is named", opened[0]), "omit --all-tags and --catalog")
	}
	return opened, others, nil
}

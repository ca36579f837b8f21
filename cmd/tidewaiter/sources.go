package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tidewaiter/tidewaiter/imageapi/reference"
	"github.com/tidewaiter/tidewaiter/importer/archive"
)

// sources are files with images.
type sources []*archive.Source

func (s sources) close() {
	for _, source := range s {
		source.Close() // it was only read
	}
}

// openSources opens the arguments that are files, and returns the others.
func (o *importOptions) openSources(args []string) (opened sources, others []string, err error) {
	defer func() {
		if err != nil {
			opened.close()
		}
	}()
	var as reference.Reference
	if o.storeAs != "" {
		if as, err = reference.Parse(o.storeAs); err != nil {
			return nil, nil, fmt.Errorf("--store-as: %w", err)
		}
		if as.Digest != "" {
			return nil, nil, errors.New("--store-as: the digest is that of the image: give a repository, or a tag in one")
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
			err = withHint(err, "%s", unsupported.Instead)
		}
		if err != nil {
			return opened, nil, err
		}
		opened = append(opened, source)
	}
	switch {
	case o.storeAs != "" && (len(opened) != 1 || len(others) > 0):
		return opened, nil, withHint(errors.New("--store-as is the name of one image that comes from a file"), "tidewaiter import oci-archive:app.tar --store-as registry.example.com/team/app:v1")
	case len(opened) > 0 && (o.allTags || o.catalog):
		return opened, nil, withHint(fmt.Errorf("%s is not a repository or a registry; all images of a file are imported if none is named", opened[0]), "leave --all-tags and --catalog out")
	}
	return opened, others, nil
}

// importSources imports the images of files that the batch's selection chooses.
func (b *batch) importSources(ctx context.Context, from sources) {
	for _, source := range from {
		for _, image := range source.Images() {
			if !b.selection.has(image.Reference) {
				continue
			}
			b.progress.started(job{ref: image.Reference})
			if ctx.Err() != nil {
				b.report.fromFile(source.String(), image.Reference.String(), nil, ctx.Err())
				continue
			}
			result, err := b.importer.ImportFrom(ctx, image.Reference, source, b.images())
			if result != nil && image.Made {
				result.Warnings = append(result.Warnings, "the archive has no manifest, so one was made of its config and its layers: in a registry the image may have another digest")
			}
			b.events.imported(image.Reference.String(), result, err)
			b.report.fromFile(source.String(), image.Reference.String(), result, err)
		}
	}
}

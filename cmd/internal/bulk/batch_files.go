package bulk

import (
	"context"

	"github.com/tidewaiter/tidewaiter/importer/archive"
)

// Sources are files with images.
type Sources []*archive.Source

// Close closes the files.
func (s Sources) Close() {
	for _, source := range s {
		source.Close() // it was only read
	}
}

// ImportSources imports the images of files that the batch's selection chooses.
func (b *batch) ImportSources(ctx context.Context, from Sources) {
	for _, source := range from {
		for _, image := range source.Images() {
			if !b.selection.Has(image.Reference) {
				continue
			}
			b.progress.Started(Job{Ref: image.Reference})
			if ctx.Err() != nil {
				b.report.fromFile(source.String(), image.Reference.String(), nil, ctx.Err())
				continue
			}
			result, err := b.importer.ImportFrom(ctx, image.Reference, source, b.images())
			if result != nil && image.Made {
				result.Warnings = append(result.Warnings, "the archive has no manifest, so one was built from its config and layers; in a registry the image may have a different digest")
			}
			b.Events.Imported(image.Reference.String(), result, err)
			b.report.fromFile(source.String(), image.Reference.String(), result, err)
		}
	}
}

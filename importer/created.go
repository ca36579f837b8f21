package importer

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// undated is the latest date that is no real date: reproducible builds write the year 1, 1970, or
// 1980 (the first that a ZIP file can have), with or without a second more.
var undated = time.Date(1980, 1, 1, 0, 0, 1, 0, time.UTC)

// Created returns the date in an image's config; for an index, its first image's. It returns zero
// if there is no date, or one that reproducible builds write. It sends one request for a stored
// image, and up to four for others. It returns the errors of Import; for an artifact the reason is
// NotAnImage.
func (im *Importer) Created(ctx context.Context, ref reference.Reference, images Images) (created time.Time, err error) {
	ref, err = pulled(ref)
	if err != nil {
		return created, err
	}
	ctx, done := im.InJob(ctx)
	defer done()
	err = im.Reach(ctx, ref, func(s *pull.Session) error {
		n, err := findRoot(ctx, s, ref, true)
		if err != nil {
			return err
		}
		if found, err := images.Get(ctx, n.digest, metav1.GetOptions{}); err == nil {
			if meta, err := manifest.Metadata(found); err == nil && !meta.Created.IsZero() {
				created = meta.Created.Time
				return nil
			}
		}
		created, err = readCreated(ctx, s, n, 0)
		return err
	})
	if !created.After(undated) {
		created = time.Time{}
	}
	return created, err
}

func readCreated(ctx context.Context, s *pull.Session, n node, depth int) (time.Time, error) {
	if n.unread != nil {
		return time.Time{}, nil
	}
	m := n.known
	if m == nil {
		var err error
		if m, err = fetchManifest(ctx, s, n.digest, n.digest); err != nil {
			if asUnread(err) != nil {
				err = nil
			}
			return time.Time{}, err
		}
	}
	switch m.Kind {
	case manifest.KindIndex:
		children := m.ImageChildren()
		if len(children) == 0 || depth == maxDepth {
			return time.Time{}, nil
		}
		return readCreated(ctx, s, node{digest: children[0].Digest}, depth+1)
	case manifest.KindImage:
		if m.Config.Size > manifest.MaxConfigSize {
			return time.Time{}, nil
		}
		raw, err := fetchConfig(ctx, s, m)
		if err != nil {
			return time.Time{}, err
		}
		if c, err := manifest.ParseConfig(raw); err == nil && c.Created != nil {
			return *c.Created, nil
		}
	case manifest.KindSchema1:
	default:
		return time.Time{}, &pull.Error{Reason: pull.NotAnImage, Message: artifact(m.Manifest)}
	}
	return time.Time{}, nil
}

package importer

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	godigest "github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/importer/pull"
)

// maxZstdWindow bounds the memory that a zstd layer can ask for. RFC 8878 §3.1.1.1.2 recommends
// decoders to support 8 MiB; builders of images use up to 32 MiB (klauspost/compress, best
// compression).
const maxZstdWindow = 32 << 20

// verifyLayers streams the layers of m and checks them against m and config. It keeps nothing. It
// reads layers in parallel, as far as room has bytes for them: a larger layer takes all of room. It
// calls done with each layer's digest, maybe concurrently.
func verifyLayers(ctx context.Context, s *pull.Session, m *manifest.Manifest, config *manifest.Config, room *semaphore.Weighted, done func(digest string)) (err error) {
	if len(config.RootFS.DiffIDs) != len(m.Layers) {
		return &pull.Error{Reason: pull.InvalidImage, Message: fmt.Sprintf("the manifest has %d layers, the config has %d diff IDs", len(m.Layers), len(config.RootFS.DiffIDs))}
	}
	verified := map[string]string{} // digest → diff ID
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(s.Limits.Concurrency)
	defer func() {
		if e := group.Wait(); err == nil {
			err = e
		}
	}()
	for i, layer := range m.Layers {
		diffID := config.RootFS.DiffIDs[i]
		if known, ok := verified[layer.Digest]; ok {
			if known != diffID {
				return &pull.Error{Reason: pull.DigestMismatch, Message: fmt.Sprintf("layer %s has the diff IDs %s and %s", layer.Digest, known, pull.Clean(diffID))}
			}
			continue
		}
		if !types.MediaType(layer.MediaType).IsDistributable() {
			continue // the registry does not have its bytes: see the descriptor's urls
		}
		verified[layer.Digest] = diffID
		weight := max(0, min(layer.Size, s.Limits.LayerBytes))
		if err := room.Acquire(ctx, weight); err != nil {
			return context.Cause(ctx)
		}
		group.Go(func() error {
			defer room.Release(weight)
			if err := verifyLayer(ctx, s, layer, diffID); err != nil {
				return pull.PartFailed("layer "+layer.Digest, err)
			}
			done(layer.Digest)
			return nil
		})
	}
	return nil
}

func verifyLayer(ctx context.Context, s *pull.Session, layer manifest.Descriptor, diffID string) error {
	if err := manifest.ValidDigest(diffID); err != nil {
		return fmt.Errorf("its diff ID: %w", err)
	}
	ctx = pull.WithBudget(ctx, layer.Size, s.Limits.Layer, nil)
	resp, err := s.Registry.Do(ctx, http.MethodGet, s.Registry.Path("blobs/"+layer.Digest), "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	size, err := verifyStream(ctx, resp.Body, layer.Digest, diffID, pull.JobOf(ctx).Layers)
	if err != nil {
		return err
	}
	if size != layer.Size {
		return &pull.Error{Reason: pull.DigestMismatch, Message: fmt.Sprintf("layer %s has %d bytes, the manifest says %d", layer.Digest, size, layer.Size)}
	}
	return nil
}

// verifyStream reads r to its end and checks both digests. It returns how many
// bytes r had.
func verifyStream(ctx context.Context, r io.Reader, digest, diffID string, room *pull.Unpacked) (int64, error) {
	whole, content := godigest.Digest(digest).Verifier(), godigest.Digest(diffID).Verifier()
	counted := &counter{r: io.TeeReader(r, whole), packed: room}
	buffered := bufio.NewReaderSize(counted, 64<<10)
	plain, err := decompress(buffered)
	if err == nil {
		unpacking := &unpacking{ctx: ctx, r: plain, room: room}
		_, err = io.Copy(content, unpacking)
		plain.Close()
		if unpacking.err != nil {
			return 0, unpacking.err
		}
	}
	if counted.err != nil {
		return 0, counted.err // the registry failed, and not the compression
	}
	// Data after the compressed content belongs to the blob, too.
	if _, copyErr := io.Copy(io.Discard, buffered); copyErr != nil {
		return 0, copyErr
	}
	switch {
	case !whole.Verified():
		return 0, &pull.Error{Reason: pull.DigestMismatch, Message: "the registry sent the wrong bytes for layer " + digest}
	case err != nil:
		return 0, pull.CausedBy(pull.InvalidImage, fmt.Sprintf("layer %s cannot be decompressed: %s", digest, pull.Clean(err.Error())), err)
	case !content.Verified():
		return 0, &pull.Error{Reason: pull.DigestMismatch, Message: fmt.Sprintf("the content of layer %s is not %s, which the config names", digest, diffID)}
	}
	return counted.n, nil
}

// decompress goes by the first bytes and not by the media type, as container runtimes do.
func decompress(r *bufio.Reader) (io.ReadCloser, error) {
	magic, err := r.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(r)
	case bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}),
		len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18}):
		// a skippable frame
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return io.NopCloser(r), nil
}

// counter counts bytes, and remembers the error of reading.
type counter struct {
	r      io.Reader
	n      int64
	packed *pull.Unpacked // counts, too
	err    error
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.packed.Read(n)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

// unpacking stops a decompression that goes on long after its input has come, or that gives too
// much. It remembers why.
type unpacking struct {
	ctx  context.Context
	r    io.Reader
	room *pull.Unpacked
	err  error
}

func (u *unpacking) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		u.err = context.Cause(u.ctx)
		return 0, u.err
	}
	n, err := u.r.Read(p)
	if over := u.room.Add(int64(n)); over != nil {
		u.err = over
		return 0, over
	}
	return n, err
}

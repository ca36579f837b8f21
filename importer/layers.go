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

	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/room"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// maxZstdWindow bounds the memory that a zstd layer can ask for. RFC 8878 §3.1.1.1.2 recommends
// decoders to support 8 MiB; builders of images use up to 32 MiB (klauspost/compress, best
// compression).
const maxZstdWindow = 32 << 20

// verifyLayers streams the layers of m and checks them against m and config. It keeps nothing, and
// reads layers in parallel. It calls done with each layer's digest, maybe concurrently.
func (r *run) verifyLayers(ctx context.Context, s *pull.Session, m *manifest.Manifest, config *manifest.Config, done func(digest string)) (err error) {
	if len(config.RootFS.DiffIDs) != len(m.Layers) {
		return &pull.Error{Reason: pull.InvalidImage, Message: fmt.Sprintf("the manifest has %s, the config has %s", table.Quantity(len(m.Layers), "layer"), table.Quantity(len(config.RootFS.DiffIDs), "diff ID"))}
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
			continue // its bytes are not in the registry: see the descriptor's urls
		}
		verified[layer.Digest] = diffID
		group.Go(func() error {
			if err := untilKept(ctx, r.Clock, func(before int) error { return r.verifyLayer(ctx, s, layer, diffID, before) }); err != nil {
				return pull.PartFailed("layer "+layer.Digest, err)
			}
			done(layer.Digest)
			return nil
		})
	}
	return nil
}

// verifyLayer checks one layer. It takes memory for a zstd decoder only if the layer needs one. If
// others need that memory first, the error is room.ErrGaveWay. before counts the earlier calls for
// this layer that have returned that.
func (r *run) verifyLayer(ctx context.Context, s *pull.Session, layer manifest.Descriptor, diffID string, before int) error {
	if err := manifest.ValidDigest(diffID); err != nil {
		return fmt.Errorf("its diff ID: %w", err)
	}
	ctx, cancel := context.WithCancelCause(pull.WithBudget(ctx, layer.Size, s.Limits.Layer, nil))
	defer cancel(nil)
	resp, err := s.Registry.Do(ctx, http.MethodGet, s.Registry.Path("blobs/"+layer.Digest), "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	buffered := bufio.NewReaderSize(resp.Body, 64<<10)
	var window *room.Piece
	if isZstd(buffered) {
		if window, err = r.windows.Begin(ctx, s.Repository.RegistryStr(), maxZstdWindow, before, func() { cancel(room.ErrGaveWay) }); err != nil {
			return err
		}
		defer window.Release()
		if err := window.Take(maxZstdWindow); err != nil {
			return err
		}
	}
	size, err := verifyStream(ctx, buffered, layer.Digest, diffID, pull.JobOf(ctx).Layers, window)
	if err != nil {
		return err
	}
	if size != layer.Size {
		return &pull.Error{Reason: pull.DigestMismatch, Message: fmt.Sprintf("layer %s has %d bytes, the manifest says %d", layer.Digest, size, layer.Size)}
	}
	return nil
}

// verifyStream reads r to its end and checks both digests. It returns the number of bytes read, and
// reports them to window.
func verifyStream(ctx context.Context, r io.Reader, digest, diffID string, unpacked *pull.Unpacked, window *room.Piece) (int64, error) {
	whole, content := godigest.Digest(digest).Verifier(), godigest.Digest(diffID).Verifier()
	counted := &counter{r: io.TeeReader(r, whole), packed: unpacked, window: window}
	buffered := bufio.NewReaderSize(counted, 64<<10)
	plain, err := decompress(buffered)
	if err == nil {
		unpacking := &unpacking{ctx: ctx, r: plain, room: unpacked}
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

// decompress chooses the decoder by the first bytes, as container runtimes do, not by the media
// type.
func decompress(r *bufio.Reader) (io.ReadCloser, error) {
	magic, err := r.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		return gzip.NewReader(r)
	case isZstd(r):
		d, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxZstdWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return io.NopCloser(r), nil
}

// isZstd reports whether r begins with a zstd frame or a skippable frame.
func isZstd(r *bufio.Reader) bool {
	magic, _ := r.Peek(4)
	return bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}) ||
		len(magic) == 4 && magic[0]&0xf0 == 0x50 && bytes.Equal(magic[1:], []byte{0x2a, 0x4d, 0x18})
}

// counter counts bytes, and remembers the error of reading.
type counter struct {
	r      io.Reader
	n      int64
	packed *pull.Unpacked // counts, too, as does window
	window *room.Piece
	err    error
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.packed.Read(n)
	c.window.Came(n)
	if err != nil && err != io.EOF {
		c.err = err
	}
	return n, err
}

// unpacking stops a decompression that runs long after its input has ended, or whose output is too
// large. It remembers why.
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

package importer_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	godigest "github.com/opencontainers/go-digest"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
)

func TestVerifyLayers(t *testing.T) {
	for name, spec := range map[string]sample.Spec{
		"gzip":         {Packing: sample.Gzip, Layers: 4},
		"zstd":         {Packing: sample.Zstd, Layers: 4},
		"not packed":   {Packing: sample.None, Layers: 4},
		"Docker, gzip": {Format: sample.Docker, Layers: 4},
		"foreign":      {Foreign: true, Layers: 4},
	} {
		t.Run(name, func(t *testing.T) {
			registry, images := registrytest.New(t), &registrytest.Images{}
			registry.Push("app:v1", newImage(t, spec))
			var verified atomic.Int64 // layers are verified side by side
			im := newImporter(t, importer.Options{Layers: importer.LayersVerify, Progress: func(e importer.Event) {
				if e.Kind == importer.EventVerified {
					verified.Add(1)
				}
			}})
			result := mustImport(t, im, registry.Host+"/app:v1", images)
			if result.Images[0].Image.Annotations[annotation.Layers] != "verified" || verified.Load() != 4 {
				t.Errorf("%d layers verified, annotations %v", verified.Load(), result.Images[0].Image.Annotations)
			}
			if n := registry.Count("/blobs/"); n != 5 {
				t.Errorf("%d blobs were read, want config and 4 layers: %v", n, requests(registry))
			}
			registry.Reset()
			mustImport(t, im, registry.Host+"/app:v1", images)
			if n := len(registry.Requests()); n != 1 {
				t.Errorf("verified layers are read again: %v", requests(registry))
			}
		})
	}
}

func TestVerifyLayersOfAStoredImage(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:v1", images)
	registry.Reset()
	result := mustImport(t, newImporter(t, importer.Options{Layers: importer.LayersVerify}), registry.Host+"/app:v1", images)
	if result.Images[0].Action != importer.Updated || result.Images[0].Image.Annotations[annotation.Layers] != "verified" {
		t.Errorf("result is %+v", result.Images[0])
	}
	if n := len(registry.Requests()); n != 1+3 {
		t.Errorf("want HEAD and 3 layers: %v", requests(registry))
	}
}

func TestVerifyLayersFindsWhatIsWrong(t *testing.T) {
	for _, tc := range []struct {
		name  string
		fault registrytest.Fault
		want  pull.Reason
	}{
		{"other bytes", registrytest.Corrupt(), pull.DigestMismatch},
		{"a tail", registrytest.Append(1, false), pull.TooLarge},
		{"cut short", registrytest.Truncate(), pull.Unreachable},
		{"missing", registrytest.Status(404, "BLOB_UNKNOWN"), pull.Incomplete},
		{"stalls", registrytest.StallBody(), pull.Timeout},
	} {
		t.Run(tc.name, func(t *testing.T) {
			registry, images := registrytest.New(t), &registrytest.Images{}
			image := newImage(t, sample.Spec{})
			registry.Push("app:v1", image)
			m, _ := image.Manifest()
			registry.Inject("/blobs/"+m.Layers[1].Digest.String(), 0, tc.fault)
			o := importer.Options{Layers: importer.LayersVerify}
			if tc.want == pull.Timeout {
				o.Limits = short
			}
			_, err := newImporter(t, o).Import(t.Context(), parse(t, registry.Host+"/app:v1"), images)
			wantReason(t, err, tc.want)
			if len(images.Writes()) != 0 {
				t.Errorf("stored %v", images.Writes())
			}
		})
	}
}

func TestVerifyLayersAgainstTheConfig(t *testing.T) {
	image := newImage(t, sample.Spec{})
	file, _ := image.ConfigFile()
	swapped, short := file.DeepCopy(), file.DeepCopy()
	ids := swapped.RootFS.DiffIDs
	ids[0], ids[1] = ids[1], ids[0]
	short.RootFS.DiffIDs = short.RootFS.DiffIDs[:2]

	registry := registrytest.New(t)
	im := newImporter(t, importer.Options{Layers: importer.LayersVerify})
	lying, err := mutate.ConfigFile(image, swapped)
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("app:swapped", lying)
	_, err = im.Import(t.Context(), parse(t, registry.Host+"/app:swapped"), &registrytest.Images{})
	wantReason(t, err, pull.DigestMismatch)

	lacking, err := mutate.ConfigFile(image, short)
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("app:short", lacking)
	_, err = im.Import(t.Context(), parse(t, registry.Host+"/app:short"), &registrytest.Images{})
	wantReason(t, err, pull.InvalidImage)

	// Without verification nobody looks.
	mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:swapped", &registrytest.Images{})
}

func TestVerifyStream(t *testing.T) {
	content := bytes.Repeat([]byte("some content "), 1000)
	zipped, zstandard := pack(t, content)
	skippable := append([]byte{0x51, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 'x'}, zstandard...)
	for _, tc := range []struct {
		name    string
		blob    []byte
		content []byte
		want    pull.Reason
	}{
		{"gzip", zipped, content, ""},
		{"two gzip members", append(bytes.Clone(zipped), zipped...), append(bytes.Clone(content), content...), ""},
		{"zstd", zstandard, content, ""},
		{"zstd behind a skippable frame", skippable, content, ""},
		{"plain", content, content, ""},
		{"empty", nil, nil, ""},
		{"short", []byte{0x1f}, []byte{0x1f}, ""},
		{"gzip cut short", zipped[:len(zipped)-4], content, pull.InvalidImage},
		{"zstd cut short", zstandard[:len(zstandard)-4], content, pull.InvalidImage},
		{"gzip in name only", []byte{0x1f, 0x8b, 0, 0}, nil, pull.InvalidImage},
		{"other content", zipped, []byte("x"), pull.DigestMismatch},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := importer.VerifyStream(t.Context(), bytes.NewReader(tc.blob), godigest.FromBytes(tc.blob).String(), godigest.FromBytes(tc.content).String(), 1<<30)
			if pull.ReasonOf(err) != tc.want || (err == nil) != (tc.want == "") {
				t.Fatalf("%v, want %q", err, tc.want)
			}
			if err == nil && n != int64(len(tc.blob)) {
				t.Errorf("counted %d of %d bytes", n, len(tc.blob))
			}
			_, err = importer.VerifyStream(t.Context(), bytes.NewReader(tc.blob), godigest.FromString("another").String(), godigest.FromBytes(tc.content).String(), 1<<30)
			if pull.ReasonOf(err) != pull.DigestMismatch {
				t.Errorf("with another digest: %v", err)
			}
		})
	}
}

func pack(t testing.TB, content []byte) (zipped, zstandard []byte) {
	t.Helper()
	var g, z bytes.Buffer
	gw := gzip.NewWriter(&g)
	zw, err := zstd.NewWriter(&z)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []io.WriteCloser{gw, zw} {
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return g.Bytes(), z.Bytes()
}

// A layer is never in memory, neither as it comes nor unpacked.
func TestVerifyStreamNeedsLittleMemory(t *testing.T) {
	size := int64(256 << 20)
	if testing.Short() {
		size = 64 << 20
	}
	diffID := godigest.SHA256.Digester()
	if _, err := io.Copy(diffID.Hash(), io.LimitReader(zeros{}, size)); err != nil {
		t.Fatal(err)
	}
	for _, packing := range []sample.Compression{sample.Gzip, sample.Zstd, sample.None} {
		t.Run(string(packing), func(t *testing.T) {
			var blob bytes.Buffer // small: zeros pack well
			var stream io.Reader = &blob
			digester := godigest.SHA256.Digester()
			switch packing {
			case sample.Gzip:
				blob.Write(gzipZeros(t, size))
				digester.Hash().Write(blob.Bytes())
			case sample.Zstd:
				w, err := zstd.NewWriter(&blob)
				if err != nil {
					t.Fatal(err)
				}
				copyClose(t, w, io.LimitReader(zeros{}, size))
				digester.Hash().Write(blob.Bytes())
			case sample.None:
				stream, digester = io.LimitReader(zeros{}, size), diffID
			}
			digest := digester.Digest().String()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := importer.VerifyStream(t.Context(), stream, digest, diffID.Digest().String(), 1<<30)
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			if took := after.TotalAlloc - before.TotalAlloc; took > 24<<20 {
				t.Errorf("%d MiB were allocated for %d MiB", took>>20, size>>20)
			}
		})
	}
}

func copyClose(t testing.TB, w io.WriteCloser, r io.Reader) {
	t.Helper()
	if _, err := io.Copy(w, r); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// gzipZeros are so many megabytes of zeros, each packed by itself, which is quick.
func gzipZeros(t testing.TB, size int64) []byte {
	t.Helper()
	var one bytes.Buffer
	copyClose(t, gzip.NewWriter(&one), io.LimitReader(zeros{}, 1<<20))
	return bytes.Repeat(one.Bytes(), int(size>>20))
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A few kilobytes can unpack to more than anybody waits for.
func TestVerifyStreamStopsWithItsContext(t *testing.T) {
	var blob bytes.Buffer
	w, err := zstd.NewWriter(&blob)
	if err != nil {
		t.Fatal(err)
	}
	copyClose(t, w, io.LimitReader(zeros{}, 64<<20))
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	_, err = importer.VerifyStream(ctx, &blob, godigest.FromBytes(blob.Bytes()).String(), godigest.FromString("x").String(), 1<<30)
	if !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

// A megabyte of zstd that unpacked to 32 GiB kept a job busy for two minutes, four
// megabytes of gzip for half a minute.
func TestLayersThatUnpackToTooMuch(t *testing.T) {
	bomb := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x38} // a frame with a window of 128 KiB
	for range 4096 {
		bomb = append(bomb, 0x02, 0x00, 0x10, 0x00) // a block of 128 KiB that repeats one byte
	}
	for name, blob := range map[string][]byte{"zstd": bomb, "gzip": gzipZeros(t, 64<<20)} {
		_, err := importer.VerifyStream(t.Context(), bytes.NewReader(blob), godigest.FromBytes(blob).String(), godigest.FromString("x").String(), 1<<20)
		if pull.ReasonOf(err) != pull.OverBudget || !strings.Contains(err.Error(), "budget") {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Zeros are allowed within the budget.
	content := make([]byte, 1<<20)
	packed, _ := pack(t, content)
	if _, err := importer.VerifyStream(t.Context(), bytes.NewReader(packed), godigest.FromBytes(packed).String(), godigest.FromBytes(content).String(), 1<<20); err != nil {
		t.Error(err)
	}
}

// A frame says how much memory its reader needs.
func TestZstdLayerWithAGreatWindow(t *testing.T) {
	for exponent, want := range map[byte]pull.Reason{15: pull.DigestMismatch, 16: pull.InvalidImage, 17: pull.InvalidImage, 31: pull.InvalidImage} {
		// 32 MiB, 64 MiB, 128 MiB, 2 TiB
		// the last block of 128 KiB
		blob := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, exponent << 3, 0x03, 0x00, 0x10, 0x00}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := importer.VerifyStream(t.Context(), bytes.NewReader(blob), godigest.FromBytes(blob).String(), godigest.FromString("x").String(), 1<<30)
		runtime.ReadMemStats(&after)
		if pull.ReasonOf(err) != want {
			t.Errorf("a window of %d bytes: %v, want %s", 1<<(10+exponent), err, want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 96<<20 {
			t.Errorf("a window of %d bytes took %d MiB", 1<<(10+exponent), took>>20)
		}
	}
}

// The layers of one job share its budget, and the import says so.
func TestImportOfLayersThatUnpackToTooMuch(t *testing.T) {
	registry := registrytest.New(t)
	registry.Push("app:v1", newImage(t, sample.Spec{}))
	im := newImporter(t, importer.Options{Layers: importer.LayersVerify, Limits: pull.Limits{JobContent: 1}})
	// nothing in it packs 50 times
	mustImport(t, im, registry.Host+"/app:v1", &registrytest.Images{})
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(io.LimitReader(zeros{}, 1<<20)), nil })
	if err != nil {
		t.Fatal(err)
	}
	bomb, err := mutate.AppendLayers(newImage(t, sample.Spec{}), layer)
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("app:bomb", bomb)
	_, err = im.Import(t.Context(), parse(t, registry.Host+"/app:bomb"), &registrytest.Images{})
	wantReason(t, err, pull.OverBudget)
}

// Whatever the bytes: no panic, and a digest that does not fit is never
// accepted.
func FuzzVerifyStream(f *testing.F) {
	zipped, zstandard := pack(f, []byte("some content"))
	for _, seed := range [][]byte{zipped, zstandard, []byte("plain"), nil, {0x1f, 0x8b}, zipped[:12], zstandard[:8], {0x50, 0x2a, 0x4d, 0x18, 0xff, 0xff, 0xff, 0xff}} {
		f.Add(seed)
	}
	wrong := godigest.FromString("nothing that is tried").String()
	f.Fuzz(func(t *testing.T, blob []byte) {
		digest := godigest.FromBytes(blob).String()
		if n, err := importer.VerifyStream(t.Context(), bytes.NewReader(blob), digest, wrong, 1<<30); err == nil {
			t.Fatalf("%d bytes of %q have the content of another", n, blob)
		}
		if n, err := importer.VerifyStream(t.Context(), bytes.NewReader(blob), wrong, digest, 1<<30); err == nil {
			t.Fatalf("%d bytes of %q have the digest of another", n, blob)
		}
	})
}

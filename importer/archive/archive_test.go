package archive_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/archive"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures/find"
)

var getOptions metav1.GetOptions

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newImage(t *testing.T, spec sample.Spec) v1.Image {
	t.Helper()
	image, err := sample.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return image
}

func digestOf(t *testing.T, of interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	d, err := of.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

// newLayout writes images, by their names, and a multi-platform one into a layout.
func newLayout(t *testing.T, dir string, named map[string]v1.Image, index v1.ImageIndex) string {
	t.Helper()
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	for n, image := range named {
		if err := path.AppendImage(image, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": n})); err != nil {
			t.Fatal(err)
		}
	}
	if index != nil {
		if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": "multi"})); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// pack writes a folder into a tar file.
func pack(t *testing.T, dir, file string) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func open(t *testing.T, name string) *archive.Source {
	t.Helper()
	s, err := archive.Open(name, reference.Reference{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func newImporter(t *testing.T, finder importer.SignatureFinder) *importer.Importer {
	t.Helper()
	im, err := importer.New(importer.Options{Keychain: authn.NewMultiKeychain(), Layers: importer.LayersVerify, Signatures: finder})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(im.Close)
	return im
}

// imported imports all of a source, with all layers read, and returns "reference digest" of each.
func imported(t *testing.T, s *archive.Source) (out []string, images *registrytest.Images) {
	t.Helper()
	images = &registrytest.Images{}
	for _, i := range s.Images() {
		result, err := newImporter(t, nil).ImportFrom(t.Context(), i.Reference, s, images)
		if err != nil {
			t.Errorf("%s: %v", i.Reference, err)
			continue
		}
		out = append(out, i.Reference.String()+" "+result.Digest)
	}
	slices.Sort(out)
	return out, images
}

// What is in a layout is imported with the digests and the bytes that it has there, as is what is
// in one in a tar file.
func TestLayouts(t *testing.T) {
	t.Parallel()
	a, b := newImage(t, sample.Spec{Name: "a"}), newImage(t, sample.Spec{Name: "b", Packing: sample.Zstd})
	index, err := sample.MultiPlatform(sample.Spec{Name: "c"}, true, "linux/amd64", "linux/arm64")
	if err != nil {
		t.Fatal(err)
	}
	dir := newLayout(t, filepath.Join(t.TempDir(), "App"), map[string]v1.Image{"v1": a, "quay.io/acme/web:v2": b}, index)
	file := pack(t, dir, filepath.Join(t.TempDir(), "app.tar"))
	want := []string{
		"localhost/app:multi " + digestOf(t, index),
		"localhost/app:v1 " + digestOf(t, a),
		"quay.io/acme/web:v2 " + digestOf(t, b),
	}
	for _, name := range []string{"oci:" + dir, "oci-archive:" + file} {
		got, images := imported(t, open(t, name))
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		stored, err := images.Get(t.Context(), digestOf(t, a), getOptions)
		if err != nil || stored.DockerImageManifest != string(must(a.RawManifest())) || stored.DockerImageConfig != string(must(a.RawConfigFile())) {
			t.Errorf("%s: other bytes are stored, %v", name, err)
		}
		if n := len(images.Names()); n != 5 {
			t.Errorf("%s: %d images are stored, want 5", name, n)
		}
	}
	for wanted, want := range map[string]string{
		"v1": "localhost/app:v1", "quay.io/acme/web:v2": "quay.io/acme/web:v2", digestOf(t, b): "quay.io/acme/web:v2",
	} {
		s, err := archive.Open("oci:"+dir+":"+wanted, reference.Reference{})
		if err != nil {
			t.Errorf("%s: %v", wanted, err)
			continue
		}
		s.Close()
		if got := s.Images(); len(got) != 1 || got[0].Reference.String() != want {
			t.Errorf("%s: %+v", wanted, got)
		}
	}
	as := must(reference.Parse("registry.example.com/team/app"))
	s, err := archive.Open("oci:"+dir+":v1", as)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got, _ := imported(t, s); !slices.Equal(got, []string{as.WithDigest(digestOf(t, a)).String() + " " + digestOf(t, a)}) {
		t.Errorf("by another name: %v", got)
	}
}

// What was signed as cosign does by default, by a manifest that has the image as its subject, is
// found in a layout.
func TestReferrersInALayout(t *testing.T) {
	t.Parallel()
	image := newImage(t, sample.Spec{Name: "a"})
	dir := newLayout(t, filepath.Join(t.TempDir(), "App"), map[string]v1.Image{"v1": image}, empty.Index)
	signature := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","artifactType":"application/vnd.dev.sigstore.bundle.v0.3+json",`+
		`"config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","size":2},"layers":[],`+
		`"subject":{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":1},"annotations":{"a":"b"}}`, digestOf(t, image))
	digest := manifest.Digest(signature)
	index := filepath.Join(dir, "index.json")
	listed := strings.Replace(string(must(os.ReadFile(index))), `"manifests": [`, fmt.Sprintf(`"manifests": [{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"size":%d},`, digest, len(signature)), 1)
	if err := errors.Join(os.WriteFile(index, []byte(listed), 0o600), os.WriteFile(filepath.Join(dir, "blobs/sha256", strings.TrimPrefix(digest, "sha256:")), signature, 0o600)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(listed, digest) {
		t.Fatalf("index.json has another form: %s", listed)
	}
	s := open(t, "oci:"+dir+":v1")
	for of, want := range map[string][]string{digestOf(t, image): {digest}, digest: nil} {
		resp, err := s.RoundTrip(must(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/v2/app/referrers/"+of, nil)))
		if err != nil {
			t.Fatal(err)
		}
		var answer v1.IndexManifest
		if err := errors.Join(json.NewDecoder(resp.Body).Decode(&answer), resp.Body.Close()); err != nil || answer.Manifests == nil {
			t.Fatalf("%s: %d, %+v, %v", of, resp.StatusCode, answer, err)
		}
		var got []string
		for _, d := range answer.Manifests {
			got = append(got, d.Digest.String())
			if d.ArtifactType != "application/vnd.dev.sigstore.bundle.v0.3+json" || d.Annotations["a"] != "b" || d.Size != int64(len(signature)) {
				t.Errorf("%+v", d)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("of %s: %q, want %q", of, got, want)
		}
	}
}

// What docker save wrote before version 25 has no manifest; the one that is made has the config and
// the layers that are there.
func TestDockerArchives(t *testing.T) {
	t.Parallel()
	image := newImage(t, sample.Spec{Name: "a", Format: sample.Docker, Packing: sample.None})
	file := filepath.Join(t.TempDir(), "saved.tar")
	if err := tarball.MultiRefWriteToFile(file, map[name.Reference]v1.Image{must(name.NewTag("busybox:1.36")): image, must(name.NewTag("quay.io/acme/web:v1")): image}); err != nil {
		t.Fatal(err)
	}
	s := open(t, "docker-archive:"+file)
	got, images := imported(t, s)
	if len(got) != 2 || !strings.HasPrefix(got[0], "docker.io/library/busybox:1.36 sha256:") || !strings.HasPrefix(got[1], "quay.io/acme/web:v1 sha256:") {
		t.Fatalf("%v", got)
	}
	if !s.Images()[0].Made {
		t.Error("it is not said that the manifest was made")
	}
	stored, err := images.Get(t.Context(), images.Names()[0], getOptions)
	if err != nil || stored.DockerImageConfig != string(must(image.RawConfigFile())) || manifest.Digest([]byte(stored.DockerImageManifest)) != stored.Name {
		t.Errorf("%v", err)
	}
	if got := open(t, "docker-archive:"+file+":busybox:1.36").Images(); len(got) != 1 || got[0].Reference.String() != "docker.io/library/busybox:1.36" {
		t.Errorf("%+v", got)
	}

	// Since version 25 it is a layout, too, whose manifests count.
	dir := newLayout(t, t.TempDir(), map[string]v1.Image{"quay.io/acme/web:v1": image}, nil)
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), []byte(`[{"Config":"x","RepoTags":["quay.io/acme/web:v1"],"Layers":[]}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, "docker-archive:"+pack(t, dir, filepath.Join(t.TempDir(), "new.tar")))
	if got, _ := imported(t, s); !slices.Equal(got, []string{"quay.io/acme/web:v1 " + digestOf(t, image)}) || s.Images()[0].Made {
		t.Errorf("%v", got)
	}
}

// A layer that is there twice is a link in archives of docker save.
func TestDockerArchiveWithLinks(t *testing.T) {
	t.Parallel()
	layer := []byte("a layer")
	config := []byte(fmt.Sprintf(`{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[%[1]q,%[1]q]}}`, manifest.Digest(layer)))
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(h tar.Header, content []byte) {
		h.Size, h.Mode = int64(len(content)), 0o600
		if err := errors.Join(w.WriteHeader(&h), func() error { _, err := w.Write(content); return err }()); err != nil {
			t.Fatal(err)
		}
	}
	add(tar.Header{Name: "a/layer.tar"}, layer)
	add(tar.Header{Name: "b/layer.tar", Typeflag: tar.TypeSymlink, Linkname: "../a/layer.tar"}, nil)
	add(tar.Header{Name: "round", Typeflag: tar.TypeSymlink, Linkname: "round"}, nil)
	add(tar.Header{Name: "c.json"}, config)
	add(tar.Header{Name: "manifest.json"}, []byte(`[{"Config":"c.json","RepoTags":["app:v1"],"Layers":["a/layer.tar","b/layer.tar"]}]`))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "saved.tar")
	if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, _ := imported(t, open(t, "docker-archive:"+file)); len(got) != 1 || !strings.HasPrefix(got[0], "docker.io/library/app:v1 ") {
		t.Errorf("%v", got)
	}
	bad := bytes.Replace(out.Bytes(), []byte(`"b/layer.tar"`), []byte(`"round"      `), 1)
	if err := os.WriteFile(file, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.Open("docker-archive:"+file, reference.Reference{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link to itself: %v", err)
	}
}

// extension finds what OpenShift's signature extension has.
type extension struct{}

func (extension) Find(ctx context.Context, digest name.Digest, _ reference.Reference, transport http.RoundTripper, _ time.Time, _ bool) ([]imagev1.ImageSignature, map[string]string, []string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+digest.RegistryStr()+"/extensions/v2/"+digest.RepositoryStr()+"/signatures/"+digest.DigestStr(), nil)
	if err != nil {
		return nil, nil, nil, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, nil, nil, err
	}
	defer resp.Body.Close()
	var list struct {
		Signatures []struct {
			Name, Type string
			Content    []byte
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return nil, nil, nil, err
	}
	var out []imagev1.ImageSignature
	for _, s := range list.Signatures {
		signature := imagev1.ImageSignature{Type: s.Type, Content: s.Content}
		signature.Name = s.Name
		out = append(out, signature)
	}
	return out, nil, nil, nil
}

func (extension) Forget(name.Repository)                      {}
func (extension) Listed(name.Repository, []string, time.Time) {}

// A folder of skopeo's has the manifest, what it lists, and simple signatures beside them.
func TestDir(t *testing.T) {
	t.Parallel()
	index, err := sample.MultiPlatform(sample.Spec{Name: "c"}, false, "linux/amd64")
	if err != nil {
		t.Fatal(err)
	}
	children, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	child, err := index.Image(children.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "copied")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hex := strings.TrimPrefix(digestOf(t, child), "sha256:")
	write("version", []byte("Directory Transport Version: 1.1\n"))
	write("manifest.json", must(index.RawManifest()))
	write(hex+".manifest.json", must(child.RawManifest()))
	config := must(child.RawConfigFile())
	write(strings.TrimPrefix(manifest.Digest(config), "sha256:"), config)
	for _, layer := range must(child.Layers()) {
		write(strings.TrimPrefix(digestOf(t, layer), "sha256:"), must(io.ReadAll(must(layer.Compressed()))))
	}
	write("signature-1", []byte("\x94 of the index"))
	write("signature-2", []byte("\x00sigstore-json\n{}"))
	write("signature-3", []byte("\x94 another"))
	write(hex+".signature-1", []byte("\x94 of the image"))

	s := open(t, "dir:"+dir)
	if got, want := s.Images()[0].Reference.String(), "localhost/copied@"+digestOf(t, index); len(s.Images()) != 1 || got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	images := &registrytest.Images{}
	if _, err := newImporter(t, extension{}).ImportFrom(t.Context(), s.Images()[0].Reference, s, images); err != nil {
		t.Fatal(err)
	}
	for digest, want := range map[string][]string{digestOf(t, index): {"\x94 another", "\x94 of the index"}, digestOf(t, child): {"\x94 of the image"}} {
		stored, err := images.Get(t.Context(), digest, getOptions)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range stored.Signatures {
			if s.Type == "dir:sigstore-json" {
				continue // of a type that the search for signatures warns of
			}
			got = append(got, string(s.Content))
		}
		if n := len(stored.Signatures) - len(got); n != strings.Count(want[0], "another") {
			t.Errorf("%s: %d signatures of another format are told of", digest, n)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s has the signatures %q", digest, got)
		}
	}

	// The search tells of what it does not read, and the image is not taken for one without
	// signatures: of a sigstore signature, which is in no form that a registry has, and of files
	// that are empty or too large.
	write(hex+".signature-1", []byte("\x00sigstore-json\n{}"))
	write("signature-4", nil)
	write("signature-5", make([]byte, 1<<20+1))
	finder, err := find.New(find.Options{RegistriesDirs: []string{t.TempDir()}, Storage: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	images = &registrytest.Images{}
	result, err := newImporter(t, finder).ImportFrom(t.Context(), s.Images()[0].Reference, s, images)
	if err != nil {
		t.Fatal(err)
	}
	said := fmt.Sprint(result.Warnings)
	for text, times := range map[string]int{`unknown type "dir:sigstore-json"`: 2, `unknown type "dir:empty file"`: 1, `unknown type "dir:file of 1048577 bytes"`: 1} {
		if n := strings.Count(said, text); n != times {
			t.Errorf("it warns %d times of %s, want %d: %s", n, text, times, said)
		}
	}
	stored, err := images.Get(t.Context(), digestOf(t, child), getOptions)
	if err != nil {
		t.Fatal(err)
	}
	if found := annotation.Found(stored.Annotations); len(found) != 1 {
		t.Errorf("found %v", found)
	}
	for _, r := range annotation.Found(stored.Annotations) {
		if !strings.Contains(r.Unusable, "dir:sigstore-json") {
			t.Errorf("an image with a signature that is not read seems to have none: %+v", r)
		}
	}
}

// Files are not trusted more than registries.
func TestFilesThatLie(t *testing.T) {
	t.Parallel()
	image := newImage(t, sample.Spec{})
	damage := func(of func(dir string) string, to string) *archive.Source {
		t.Helper()
		dir := newLayout(t, t.TempDir(), map[string]v1.Image{"v1": image}, nil)
		path := of(dir)
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		if to == "" {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		} else if err := os.WriteFile(path, []byte(to), 0o600); err != nil {
			t.Fatal(err)
		}
		return open(t, "oci:"+dir)
	}
	blob := func(digest string) func(string) string {
		return func(dir string) string {
			return filepath.Join(dir, "blobs", strings.Replace(digest, ":", "/", 1))
		}
	}
	layer := digestOf(t, must(image.Layers())[0])
	for name, tc := range map[string]struct {
		source *archive.Source
		want   pull.Reason
		text   string
	}{
		"another manifest": {damage(blob(digestOf(t, image)), `{"schemaVersion":2,"config":{},"layers":[]}`), pull.DigestMismatch, ""},
		"no manifest":      {damage(blob(digestOf(t, image)), ""), pull.NotFound, ""},
		"another config":   {damage(blob(must(image.ConfigName()).String()), `{}`), pull.DigestMismatch, ""},
		"no layer":         {damage(blob(layer), ""), pull.Incomplete, layer},
	} {
		images, ref := &registrytest.Images{}, tc.source.Images()[0].Reference
		for _, stored := range []bool{false, true} {
			_, err := newImporter(t, nil).ImportFrom(t.Context(), ref, tc.source, images)
			if pull.ReasonOf(err) != tc.want || !strings.Contains(fmt.Sprint(err), tc.text) {
				t.Errorf("%s, stored %t: %v", name, stored, err)
			}
			// The same once the image is known by that name.
			whole := open(t, "oci:"+newLayout(t, t.TempDir(), map[string]v1.Image{"v1": image}, nil))
			if _, err := newImporter(t, nil).ImportFrom(t.Context(), ref, whole, images); err != nil {
				t.Fatal(err)
			}
		}
	}

	// A link out of a layout is not followed.
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, must(image.RawManifest()), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := newLayout(t, t.TempDir(), map[string]v1.Image{"v1": image}, nil)
	path := blob(digestOf(t, image))(dir)
	if err := errors.Join(os.Remove(path), os.Symlink(secret, path)); err != nil {
		t.Fatal(err)
	}
	s := open(t, "oci:"+dir)
	if _, err := newImporter(t, nil).ImportFrom(t.Context(), s.Images()[0].Reference, s, &registrytest.Images{}); err == nil {
		t.Error("a link out of the folder was followed")
	}
}

func TestWhatCannotBeOpened(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	two := newLayout(t, filepath.Join(dir, "two"), map[string]v1.Image{"a": newImage(t, sample.Spec{Name: "a"}), "b": newImage(t, sample.Spec{Name: "b"})}, nil)
	as := must(reference.Parse("registry.example.com/app:v1"))
	for name, want := range map[string]string{
		"docker-daemon:app:v1":              "docker-daemon: is not supported; docker://, oci:, oci-archive:, docker-archive: and dir: are",
		"containers-storage:app":            "containers-storage: is not supported",
		"oci:":                              "does not name a file",
		"oci:" + filepath.Join(dir, "none"): "no such file",
		"oci:" + dir:                        "it has no index.json",
		"dir:" + dir:                        "it has no manifest.json",
		"oci-archive:" + dir:                "oci: and dir: are for folders",
		"oci-archive:" + write("gz.tar", "\x1f\x8b\x08\x00"):                 "it is compressed with gzip: unpack it first",
		"docker-archive:" + write("text.tar", strings.Repeat("text", 1000)):  "it is not a tar file",
		"docker-archive:" + write("empty.tar", strings.Repeat("\x00", 1024)): "not an archive of docker save",
		"oci:" + two + ":c": `there is no image "c"; there are ["a" "b"]`,
		"oci:" + two:        "there are 2 images but only one name",
	} {
		if _, err := archive.Open(name, as); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
	if archive.Is("docker://x") || archive.Is("busybox:1") || archive.Is("localhost:5000/x") || !archive.Is("oci:x") || !archive.Is("docker-daemon:x") {
		t.Error("transports are not told from references")
	}
}

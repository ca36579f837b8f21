package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	restclient "k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/server"
	"github.com/tidewaiter/tidewaiter/internal/server/servertest"
)

// oldImage is an Image as importers stored it when Docker Hub was index.docker.io.
func oldImage(digit, host string) *imagev1.Image {
	digest := "sha256:" + strings.Repeat(digit, 64)
	return &imagev1.Image{
		ObjectMeta: metav1.ObjectMeta{Name: digest, Annotations: map[string]string{
			annotation.References: `["` + host + `/library/busybox:` + digit + `","quay.io/team/app:1"]`,
			annotation.Gone:       `{"` + host + `/library/busybox:old":"2026-01-01T00:00:00Z"}`,
		}},
		DockerImageReference: host + "/library/busybox@" + digest,
	}
}

func selected(t *testing.T, images *imageclient.Client, selector string) (names []string) {
	t.Helper()
	list, err := images.List(t.Context(), metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range list.Items {
		names = append(names, image.Name[len("sha256:"):][:1])
	}
	return names
}

// serveIdle serves without what a server does by itself.
func serveIdle(t *testing.T, dir string) *restclient.Config {
	t.Helper()
	s, err := server.Open(t.Context(), server.Options{DataDir: dir}, listen(t))
	if err != nil {
		t.Fatal(err)
	}
	s.Tasks = nil
	return runServer(t, s)
}

// A database that was written when Docker Hub was index.docker.io is brought to the
// canonical form when a server starts over it: what is stored, and what is found.
func TestStoredReferencesAreMigrated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	t.Run("written before", func(t *testing.T) {
		images, err := imageclient.New(serveIdle(t, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, image := range []*imagev1.Image{oldImage("1", "index.docker.io"), oldImage("2", "Index.Docker.IO"), oldImage("3", "docker.io")} {
			if _, err := images.Create(t.Context(), image, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if got := selected(t, images, "warnings=OldReferences"); !slices.Equal(got, []string{"1", "2"}) {
			t.Fatalf("in an old form are %v", got)
		}
		// An old name finds what is stored by a new one, and a new one what is stored by an old
		// one.
		for _, name := range []string{"docker.io", "index.docker.io"} {
			if got := selected(t, images, "references="+name+"/library/busybox"); !slices.Equal(got, []string{"1", "2", "3"}) {
				t.Errorf("%s found %v", name, got)
			}
		}
	})
	images, err := imageclient.New(serveOn(t, dir, listen(t)))
	if err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "no image in an old form", func() bool { return len(selected(t, images, "warnings=OldReferences")) == 0 })
	for _, digit := range []string{"1", "2", "3"} {
		want := oldImage(digit, "docker.io")
		got, err := images.Get(t.Context(), want.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.DockerImageReference != want.DockerImageReference || got.Annotations[annotation.References] != want.Annotations[annotation.References] || got.Annotations[annotation.Gone] != want.Annotations[annotation.Gone] {
			t.Errorf("%s: %s, %v", digit, got.DockerImageReference, got.Annotations)
		}
		if found := selected(t, images, "dockerImageReference="+want.DockerImageReference); !slices.Equal(found, []string{digit}) {
			t.Errorf("by its reference, %s found %v", digit, found)
		}
	}
}

// interrupted ends the work when the first Image was changed.
type interrupted struct {
	*imageclient.Client
	stop context.CancelFunc
}

func (i interrupted) Update(ctx context.Context, image *imagev1.Image, options metav1.UpdateOptions) (*imagev1.Image, error) {
	defer i.stop()
	return i.Client.Update(ctx, image, options)
}

// A migration that was killed goes on where it was.
func TestMigrationIsResumed(t *testing.T) {
	t.Parallel()
	images, err := imageclient.New(serveIdle(t, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	for _, digit := range []string{"1", "2", "3"} {
		if _, err := images.Create(t.Context(), oldImage(digit, "index.docker.io"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	if n, err := importer.Renew(ctx, interrupted{images, stop}); n != 1 || err == nil {
		t.Errorf("renewed %d, %v; want one, and that it was stopped", n, err)
	}
	if got := selected(t, images, "warnings=OldReferences"); len(got) != 2 {
		t.Errorf("left are %v", got)
	}
	if n, err := importer.Renew(t.Context(), images); n != 2 || err != nil {
		t.Errorf("renewed %d, %v; want the two that were left", n, err)
	}
	if n, err := importer.Renew(t.Context(), images); n != 0 || err != nil {
		t.Errorf("renewed %d, %v of nothing", n, err)
	}
}

// Images that were stored when text of strangers became fields as it is, and configs were kept that
// YAML cannot hold, break the YAML of every list they are in. A start of the server mends them.
func TestAttackStoredTextIsMadePrintable(t *testing.T) {
	t.Parallel()
	digest := func(text string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(text))) }
	config := "{\"architecture\":\"amd64\",\"os\":\"linux\",\"author\":\"said \u009b\"}"
	app := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},"layers":[]}`,
		manifest.MediaTypeOCIManifest, digest(config), len(config))
	index := fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d,"platform":{"os":"said \u009b","architecture":"\u202e"}}]}`,
		manifest.MediaTypeOCIIndex, manifest.MediaTypeOCIManifest, digest(app), len(app))
	// As they were stored: no index of that time has entries for what is looked for now.
	metadata := func(more string) runtime.RawExtension {
		return runtime.RawExtension{Raw: []byte(`{"kind":"DockerImage","apiVersion":"image.openshift.io/1.0",` + more + `"Created":null,"ContainerConfig":{}}`)}
	}
	old := []imagev1.Image{
		{DockerImageManifest: index, DockerImageManifestMediaType: manifest.MediaTypeOCIIndex, DockerImageMetadata: metadata(fmt.Sprintf(`"Id":%q,`, digest(index))),
			DockerImageManifests: []imagev1.ImageManifest{{Digest: digest(app), MediaType: manifest.MediaTypeOCIManifest, ManifestSize: int64(len(app)), OS: "said \u009b", Architecture: "\u202e"}}},
		{DockerImageManifest: app, DockerImageConfig: config, DockerImageManifestMediaType: manifest.MediaTypeOCIManifest,
			ObjectMeta:          metav1.ObjectMeta{Annotations: map[string]string{annotation.Platform: "said \u009b", imagev1.DockerImageLayersOrderAnnotation: "ascending"}},
			DockerImageMetadata: metadata(fmt.Sprintf(`"Id":%q,"Author":"said \u009b","Architecture":"amd64",`, digest(config)))},
		{ObjectMeta: metav1.ObjectMeta{Name: digest("no manifest")}, DockerImageMetadata: metadata(`"Author":"said \u0007","Size":9007199254740993,`)},
	}
	dir := t.TempDir()
	d, err := db.Open(db.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range old {
		if image.DockerImageManifest != "" {
			image.Name = digest(image.DockerImageManifest)
		}
		image.TypeMeta = metav1.TypeMeta{Kind: "Image", APIVersion: "image.openshift.io/v1"}
		image.UID, image.CreationTimestamp = types.UID(image.Name), metav1.Now()
		image.DockerImageReference, image.DockerImageMetadataVersion = "quay.io/team/app@"+image.Name, "1.0"
		b, err := json.Marshal(image)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Put(t.Context(), "/image.openshift.io/images/"+image.Name, 0, b, db.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}

	images, err := imageclient.New(serveOn(t, dir, listen(t)))
	if err != nil {
		t.Fatal(err)
	}
	servertest.Eventually(t, "no image that is not printable", func() bool { return len(selected(t, images, "unprintable=true")) == 0 })
	list, err := images.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != len(old) {
		t.Fatalf("%d images, %v", len(list.Items), err)
	}
	for _, image := range list.Items {
		said := image.Annotations[annotation.Platform] + string(image.DockerImageMetadata.Raw)
		for _, m := range image.DockerImageManifests {
			said += m.OS + m.Architecture
		}
		wantPrintable(t, image.Name, said)
		if _, err := yaml.Marshal(image); err != nil {
			t.Errorf("%s as YAML: %v", image.Name, err)
		}
		switch image.Name {
		case digest(index):
			if image.DockerImageManifest != index {
				t.Errorf("the manifest of the index is %q", image.DockerImageManifest)
			}
		case digest(app):
			if left, err := manifest.LeftOutOf(&image); err != nil || image.DockerImageConfig != "" || left.Config == nil || left.Config.Reason != manifest.LeftOutUnprintable {
				t.Errorf("left out of the image is %+v, %v", left, err)
			}
		default:
			if !strings.Contains(said, "9007199254740993") {
				t.Errorf("the metadata is %s", image.DockerImageMetadata.Raw)
			}
		}
	}
}

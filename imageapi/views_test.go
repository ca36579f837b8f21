package imageapi_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	_ "github.com/mattn/go-sqlite3" // the driver of a reader as any other program is one
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/imageapi"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Get, Create and Update make storages what an importer writes to.
func (s storages) Get(_ context.Context, name string, options metav1.GetOptions) (*imagev1.Image, error) {
	obj, err := s.images.Get(requestContext(), name, &options)
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.Image), nil
}

func (s storages) Create(_ context.Context, image *imagev1.Image, options metav1.CreateOptions) (*imagev1.Image, error) {
	obj, err := s.images.Create(requestContext(), image, rest.ValidateAllObjectFunc, &options)
	if err != nil {
		return nil, err
	}
	return obj.(*imagev1.Image), nil
}

func (s storages) Update(_ context.Context, image *imagev1.Image, _ metav1.UpdateOptions) (*imagev1.Image, error) {
	return s.update(image)
}

// Imported images can be read as tables, by a program that knows SQL only.
func TestViews(t *testing.T) {
	d := dbtest.Open(t, func(o *db.Options) {
		for name, text := range imageapi.Views() {
			o.Views = append(o.Views, datafile.View{Name: name, SQL: text})
		}
	})
	s := newStoragesOn(t, d, imageapi.Options{})
	registry := registrytest.New(t)
	im, err := importer.New(importer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer im.Close()
	for _, spec := range []struct {
		reference string
		sample.Spec
	}{
		{"team/web:1", sample.Spec{Name: "web", Layers: 2}},
		{"team/old:1", sample.Spec{Name: "old", Layers: 1, Format: sample.Docker, Platform: "linux/arm64", Created: time.Date(2025, 2, 3, 4, 5, 6, 0, time.UTC)}},
	} {
		image, err := sample.New(spec.Spec)
		if err != nil {
			t.Fatal(err)
		}
		registry.Push(spec.reference, image)
		for _, tag := range []string{"", "2"} { // team/web:1 and team/web:12 are one image
			registry.Push(spec.reference+tag, image)
			ref, err := reference.Parse(registry.Host + "/" + spec.reference + tag)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := im.Import(t.Context(), ref, s); err != nil {
				t.Fatal(err)
			}
		}
	}
	signIt := s.only(t, registry.Host+"/team/web")
	now := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	good, bad := signature(signIt.Name, "good", "atomic", "x"), signature(signIt.Name, "bad", "atomic", "y")
	good.IssuedTo = &imagev1.SignatureSubject{PublicKeyID: "0123456789ABCDEF"}
	good.IssuedBy = &imagev1.SignatureIssuer{SignatureGenericEntity: imagev1.SignatureGenericEntity{CommonName: "ann"}}
	good.Conditions = []imagev1.SignatureCondition{
		{Type: "Trusted", Status: corev1.ConditionTrue, Reason: "Verified", Message: "policy p", LastTransitionTime: now, LastProbeTime: now},
		{Type: "ForImage", Status: corev1.ConditionTrue},
	}
	signIt.Signatures = []imagev1.ImageSignature{good, bad}
	if _, err := s.update(signIt); err != nil {
		t.Fatal(err)
	}
	broken := plainImage() // what anybody may have written
	broken.Annotations = map[string]string{"tidewaiter.dev/references": "{not JSON"}
	s.mustCreate(t, broken)

	reader, err := sql.Open("sqlite3", "file:"+d.Path()+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	web, old := signIt.Name, s.only(t, registry.Host+"/team/old").Name
	for query, want := range map[string][]string{
		"SELECT name, reference, platform, media_type, created, layers, manifests, signatures, size > 0, stored <> '' FROM images ORDER BY created DESC": {
			web + "|" + registry.Host + "/team/web@" + web + "|linux/amd64|application/vnd.oci.image.manifest.v1+json|2026-01-01T00:00:00Z|2|0|2|1|1",
			old + "|" + registry.Host + "/team/old@" + old + "|linux/arm64|application/vnd.docker.distribution.manifest.v2+json|2025-02-03T04:05:06Z|1|0|0|1|1",
			"plain|registry.example.com/acme/plain:1|<nil>|<nil>|<nil>|0|0|0|<nil>|1",
		},
		"SELECT image, position, digest LIKE 'sha256:%', size > 0, media_type FROM layers ORDER BY media_type DESC, position": {
			web + "|0|1|1|application/vnd.oci.image.layer.v1.tar+gzip", web + "|1|1|1|application/vnd.oci.image.layer.v1.tar+gzip",
			old + "|0|1|1|application/vnd.docker.image.rootfs.diff.tar.gzip",
		},
		"SELECT image, reference FROM image_references ORDER BY reference": {
			old + "|" + registry.Host + "/team/old:1", old + "|" + registry.Host + "/team/old:12", old + "|" + registry.Host + "/team/old@" + old,
			web + "|" + registry.Host + "/team/web:1", web + "|" + registry.Host + "/team/web:12", web + "|" + registry.Host + "/team/web@" + web,
			"plain|registry.example.com/acme/plain:1",
		},
		"SELECT image, name, type, trusted, for_image, signer, issuer, identity, created FROM signatures ORDER BY name": {
			web + "|" + web + "@bad|atomic|Unknown|Unknown|<nil>|<nil>|<nil>|<nil>",
			web + "|" + web + "@good|atomic|True|True|0123456789ABCDEF|ann|<nil>|<nil>",
		},
		"SELECT image, signature, type, status, reason, message, since, probed FROM signature_conditions": {
			web + "|" + web + "@good|Trusted|True|Verified|policy p|2026-01-02T03:04:05Z|2026-01-02T03:04:05Z",
			web + "|" + web + "@good|ForImage|True|<nil>|<nil>|<nil>|<nil>",
		},
	} {
		if diff := cmp.Diff(want, queried(t, reader, query)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
	}
}

// only is the image whose reference begins so.
func (s storages) only(t *testing.T, reference string) *imagev1.Image {
	t.Helper()
	obj, err := s.images.List(requestContext(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range obj.(*imagev1.ImageList).Items {
		if strings.HasPrefix(image.DockerImageReference, reference) {
			return &image
		}
	}
	t.Fatalf("no image is known as %s", reference)
	return nil
}

// queried are the rows of a query, columns joined by |.
func queried(t *testing.T, reader *sql.DB, query string) (found []string) {
	t.Helper()
	rows, err := reader.Query(query)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		values, into := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		texts := make([]string, len(values))
		for i, v := range values {
			texts[i] = fmt.Sprint(v)
		}
		found = append(found, strings.Join(texts, "|"))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return found
}

// The queries in docs/reference/sql.md and docs/reference/coreapi.md run as they stand there.
func TestDocumentedQueries(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/sql.md")
	if err != nil {
		t.Fatal(err)
	}
	core, err := os.ReadFile("../docs/reference/coreapi.md")
	if err != nil {
		t.Fatal(err)
	}
	d := dbtest.Open(t, func(o *db.Options) {
		for name, text := range imageapi.Views() {
			o.Views = append(o.Views, datafile.View{Name: name, SQL: text})
		}
		files, err := filepath.Glob("../coreapi/views/*.sql")
		if err != nil || len(files) == 0 {
			t.Fatal(err, "no views of the core kinds")
		}
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			o.Views = append(o.Views, datafile.View{Name: strings.TrimSuffix(filepath.Base(f), ".sql"), SQL: string(text)})
		}
	})
	s := newStoragesOn(t, d, imageapi.Options{})
	s.mustCreate(t, ociImage(t))
	reader, err := sql.Open("sqlite3", "file:"+d.Path()+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	rows, blocks := 0, regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text)+string(core), -1)
	for _, block := range blocks {
		for query := range strings.SplitSeq(block[1], ";\n") {
			// the driver runs the last of several alone
			rows += len(queried(t, reader, query))
		}
	}
	if len(blocks) < 10 || rows < 5 {
		t.Errorf("%d queries found %d rows", len(blocks), rows)
	}
	for name := range imageapi.Views() {
		if !strings.Contains(string(text), "\n| `"+name+"` |") {
			t.Errorf("the view %s is not in the table", name)
		}
	}
}

// The JSON in the documents is what the annotations hold, field by field.
func TestDocumentedAnnotations(t *testing.T) {
	for file, kinds := range map[string][]any{
		"images.md":     {&manifest.LeftOut{}},
		"signatures.md": {&map[string]annotation.Repository{}, &map[string]annotation.Verdict{}},
	} {
		text, err := os.ReadFile("../docs/reference/" + file)
		if err != nil {
			t.Fatal(err)
		}
		blocks := regexp.MustCompile("(?s)```json\n(.*?)```").FindAllStringSubmatch(string(text), -1)
		if len(blocks) != len(kinds) {
			t.Fatalf("%s has %d blocks of JSON, want %d", file, len(blocks), len(kinds))
		}
		for i, kind := range kinds {
			d := json.NewDecoder(strings.NewReader(blocks[i][1]))
			d.DisallowUnknownFields()
			if err := d.Decode(kind); err != nil || reflect.ValueOf(kind).Elem().IsZero() {
				t.Errorf("%s: %s is no %T: %v", file, blocks[i][1], kind, err)
			}
		}
	}
}

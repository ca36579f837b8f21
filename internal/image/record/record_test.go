package record_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/image/record"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

const digest = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"

func TestValidate(t *testing.T) {
	t.Parallel()
	image := func(change func(*record.Image)) record.Item {
		i := &record.Image{Name: digest, Repository: "registry.example.com/team/app", Annotations: map[string]string{"tidewaiter.dev/references": `["registry.example.com/team/app:v1"]`}}
		change(i)
		return record.Item{Image: i}
	}
	tag := func(change func(*record.Tag)) record.Item {
		i := &record.Tag{Reference: "registry.example.com/team/app:v1", Digest: digest}
		change(i)
		return record.Item{Tag: i}
	}
	for name, tc := range map[string]struct {
		items []record.Item
		wrong string // the field; "" is none
	}{
		"an image":                   {[]record.Item{image(func(*record.Image) {})}, ""},
		"a tag":                      {[]record.Item{tag(func(*record.Tag) {})}, ""},
		"a tag that is gone":         {[]record.Item{tag(func(t *record.Tag) { t.Digest, t.Absent = "", true })}, ""},
		"nothing":                    {nil, "spec.items"},
		"too many":                   {make([]record.Item, record.MaxItems+1), "spec.items"},
		"an empty item":              {[]record.Item{{}}, "spec.items[0]"},
		"both":                       {[]record.Item{{Image: &record.Image{}, Tag: &record.Tag{}}}, "spec.items[0]"},
		"a repository":               {[]record.Item{{Repository: &record.Repository{Name: "registry.example.com/team/app"}}}, ""},
		"a short repository":         {[]record.Item{{Repository: &record.Repository{Name: "team/app"}}}, "spec.items[0].repository.name"},
		"a tag and a repository":     {[]record.Item{{Tag: &record.Tag{}, Repository: &record.Repository{}}}, "spec.items[0]"},
		"no digest":                  {[]record.Item{image(func(i *record.Image) { i.Name = "latest" })}, "spec.items[0].image.name"},
		"a repository with a tag":    {[]record.Item{image(func(i *record.Image) { i.Repository, i.Annotations = i.Repository+":v1", nil })}, "spec.items[0].image.repository"},
		"a reference of another":     {[]record.Item{image(func(i *record.Image) { i.Repository = "registry.example.com/other" })}, "spec.items[0].image.annotations[tidewaiter.dev/references]"},
		"a short name":               {[]record.Item{tag(func(t *record.Tag) { t.Reference = "team/app:v1" })}, "spec.items[0].tag.reference"},
		"a tag that is a digest":     {[]record.Item{tag(func(t *record.Tag) { t.Reference = "registry.example.com/team/app@" + digest })}, "spec.items[0].tag.reference"},
		"a tag that is gone and not": {[]record.Item{tag(func(t *record.Tag) { t.Absent = true })}, "spec.items[0].tag.absent"},
	} {
		errs := (&record.ImageRecordSpec{Items: tc.items}).Validate()
		if tc.wrong == "" && len(errs) > 0 || tc.wrong != "" && (len(errs) != 1 || errs[0].Field != tc.wrong) {
			t.Errorf("%s: %v, want %q", name, errs, tc.wrong)
		}
	}
}

// A valid record names images by their digests, in one repository, and tags in canonical form. The
// audit's text about a record is bounded and on one line.
func FuzzImageRecord(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"spec":{"items":[{}]}}`,
		`{"spec":{"items":[{"repository":{"name":"registry.example.com/team/app"}}]}}`,
		`{"spec":{"items":[{"tag":{"reference":"registry.example.com/team/app:v1","digest":"` + digest + `"}}]}}`,
		`{"spec":{"items":[{"image":{"name":"` + digest + `","repository":"registry.example.com/team/app","annotations":{"tidewaiter.dev/references":"[\"registry.example.com/team/app:v1\"]"},"signatures":[{"name":"a@b","type":"cosign","content":"AA=="}]}}]}}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var r record.ImageRecord
		if json.Unmarshal([]byte(text), &r) != nil {
			return
		}
		audited := r.Audited()
		if all := strings.Join(audited, " "); len(audited) > record.MaxItems || strings.ContainsAny(all, "\n\x1b") {
			t.Errorf("the audit has %d names: %.200q", len(audited), all)
		}
		if len(r.Spec.Validate()) > 0 {
			return
		}
		for _, item := range r.Spec.Items {
			if item.Tag != nil {
				if ref, err := item.Tag.Parse(); err != nil || ref.String() != item.Tag.Reference {
					t.Errorf("%q: %v", item.Tag.Reference, err)
				}
				continue
			}
			if item.Repository != nil {
				if repository, err := item.Repository.Parse(); err != nil || repository.String() != item.Repository.Name {
					t.Errorf("%q: %v", item.Repository.Name, err)
				}
				continue
			}
			fresh := item.Image.Fresh()
			repository, err := reference.ParseRepository(item.Image.Repository)
			if err != nil || !reference.IsDigest(fresh.Name) {
				t.Fatal(err, fresh.Name)
			}
			again := record.OfImage(nil, fresh, repository, item.Image.Searched)
			again.Image.Stored = item.Image.Stored
			if len(again.Image.Signatures) == 0 {
				again.Image.Signatures, item.Image.Signatures = nil, nil
			}
			if !reflect.DeepEqual(again.Image, item.Image) {
				t.Errorf("%+v is taken for %+v", item.Image, again.Image)
			}
		}
	})
}

// The API machinery computes managed fields for objects with metadata. For a record, that would
// take a tenth of the time, for nothing.
func TestARecordHasNoManagedFields(t *testing.T) {
	if _, err := meta.Accessor(&record.ImageRecord{}); err == nil {
		t.Error("a record has metadata of its own")
	}
}

// An answer has what is known, and its size is bounded.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	repository, err := reference.ParseRepository("registry.example.com/team/app")
	if err != nil {
		t.Fatal(err)
	}
	item := &record.Image{Name: digest, Known: true}
	for name, tt := range map[string]struct {
		manifest, signatures int
		told                 bool
	}{
		"a small index": {64 << 10, 0, true}, "a large index": {64<<10 + 1, 0, false}, "signatures": {1, 256, true}, "many signatures": {1, 257, false},
	} {
		stored := &imagev1.Image{
			ObjectMeta: metav1.ObjectMeta{Name: digest}, DockerImageReference: repository.Name() + "@" + digest,
			DockerImageManifest: strings.Repeat(" ", tt.manifest), DockerImageManifests: []imagev1.ImageManifest{{Digest: digest}}, Signatures: make([]imagev1.ImageSignature, tt.signatures),
		}
		if got := item.Answer(stored, repository); got.Unread == tt.told || tt.told && len(got.Manifest) != tt.manifest {
			t.Errorf("%s: %t, %d bytes", name, got.Unread, len(got.Manifest))
		}
	}
}

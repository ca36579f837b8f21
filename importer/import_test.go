package importer_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

func TestImportImage(t *testing.T) {
	for name, spec := range map[string]sample.Spec{
		"OCI":           {},
		"Docker":        {Format: sample.Docker},
		"zstd":          {Packing: sample.Zstd},
		"not packed":    {Packing: sample.None},
		"foreign layer": {Foreign: true, Format: sample.Docker, Platform: "windows/amd64"},
		"12 layers":     {Layers: 12},
	} {
		t.Run(name, func(t *testing.T) {
			registry, images := registrytest.New(t), &registrytest.Images{}
			image := newImage(t, spec)
			digest := registry.Push("team/app:v1", image)
			reference := registry.Host + "/team/app:v1"

			result := mustImport(t, newImporter(t, importer.Options{}), reference, images)

			if result.Reference != reference || result.Digest != digest || len(result.Images) != 1 {
				t.Fatalf("result is %+v", result)
			}
			if r := result.Images[0]; r.Action != importer.Created || (spec.Platform != "" && r.Platform != spec.Platform) {
				t.Errorf("result is %s of %s", r.Action, r.Platform)
			}
			stored, err := images.Get(t.Context(), digest, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			raw, _ := image.RawManifest()
			config, _ := image.RawConfigFile()
			mediaType, _ := image.MediaType()
			want := &imagev1.Image{
				ObjectMeta: metav1.ObjectMeta{
					Name: digest, ResourceVersion: "1",
					Annotations: map[string]string{annotation.References: `["` + reference + `"]`},
				},
				DockerImageReference:         registry.Host + "/team/app@" + digest,
				DockerImageManifest:          string(raw),
				DockerImageConfig:            string(config),
				DockerImageManifestMediaType: string(mediaType),
			}
			if diff := cmp.Diff(want, stored); diff != "" {
				t.Errorf("stored image (-want +got):\n%s", diff)
			}
			if err := manifest.Derive(stored); err != nil {
				t.Errorf("nothing can be derived from it: %v", err)
			}
			wantRequests := []string{
				"GET /v2/team/app/manifests/v1",
				"GET /v2/team/app/blobs/" + configDigest(t, image),
			}
			if diff := cmp.Diff(wantRequests, requests(registry)); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func configDigest(t testing.TB, image v1.Image) string {
	t.Helper()
	h, err := image.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func TestImportSchema1KeepsItRawAndMarked(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	raw, digest, layers, err := sample.Schema1(sample.Spec{Name: "team/old"})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		registry.PushLayer("team/old", l)
	}
	registry.PushManifest("team/old:v1", manifest.MediaTypeSchema1Signed, digest, raw)

	result := mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/team/old:v1", images)

	image := result.Images[0].Image
	if image.Name != digest || image.DockerImageManifest != string(raw) || image.DockerImageManifestMediaType != manifest.MediaTypeSchema1Signed {
		t.Errorf("stored %s of type %s, want %s raw", image.Name, image.DockerImageManifestMediaType, digest)
	}
	if image.Annotations[annotation.Limited] != "docker-schema1" || len(result.Warnings) != 1 || !strings.Contains(result.Warnings[0], "schema 1") {
		t.Errorf("it is not marked: %v, %v", image.Annotations, result.Warnings)
	}
	if err := manifest.Derive(image); err != nil || len(image.DockerImageLayers) != len(layers) {
		t.Errorf("derived %d layers, want %d: %v", len(image.DockerImageLayers), len(layers), err)
	}
	if n := len(registry.Requests()); n != 1 {
		t.Errorf("%d requests, want a GET: %v", n, requests(registry))
	}
}

func TestImportIndexWithItsChildren(t *testing.T) {
	platforms := []string{"linux/amd64", "linux/arm64/v8", "linux/s390x"}
	for _, format := range []sample.Format{sample.OCI, sample.Docker} {
		t.Run(string(format), func(t *testing.T) {
			registry, images := registrytest.New(t), &registrytest.Images{}
			attested := format == sample.OCI
			index := newIndex(t, sample.Spec{Format: format}, attested, platforms...)
			digest := registry.PushIndex("team/app:v1", index)
			im := newImporter(t, importer.Options{})

			result := mustImport(t, im, registry.Host+"/team/app:v1", images)

			if result.Digest != digest || len(result.Images) != 1+len(platforms) || result.Images[0].Platform != "" {
				t.Fatalf("result is %+v", result)
			}
			for i, p := range platforms {
				if r := result.Images[i+1]; r.Platform != p || r.Action != importer.Created {
					t.Errorf("child %d is %s of %s, want %s", i, r.Action, r.Platform, p)
				}
			}
			if diff := cmp.Diff(sorted(digests(result)), images.Names()); diff != "" {
				t.Errorf("stored (-result +stored):\n%s", diff)
			}
			if writes := images.Writes(); writes[len(writes)-1] != "create "+digest {
				t.Errorf("the index is not stored last: %v", writes)
			}
			if child := result.Images[1].Image; !slices.Equal(known(child), []string{registry.Host + "/team/app@" + child.Name}) {
				t.Errorf("the child is known as %v", known(child))
			}
			if attested {
				if len(result.Skipped) != len(platforms) || result.Skipped[0].Reason != importer.SkippedAttestation {
					t.Errorf("skipped %+v, want %d attestations", result.Skipped, len(platforms))
				}
			}
			// Index, and manifest and config of each child; nothing of the attestations.
			if n := len(registry.Requests()); n != 1+2*len(platforms) {
				t.Errorf("%d requests, want %d: %v", n, 1+2*len(platforms), requests(registry))
			}

			registry.Reset()
			again := mustImport(t, im, registry.Host+"/team/app:v1", images)
			if diff := cmp.Diff(digests(result), digests(again)); diff != "" {
				t.Errorf("the second import differs:\n%s", diff)
			}
			if diff := cmp.Diff([]string{"HEAD /v2/team/app/manifests/v1"}, requests(registry)); diff != "" {
				t.Errorf("requests of the second import (-want +got):\n%s", diff)
			}
		})
	}
}

func TestImportMakesUpForAMissingChild(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	registry.PushIndex("app:v1", newIndex(t, sample.Spec{}, true, "linux/amd64", "linux/arm64"))
	im := newImporter(t, importer.Options{})
	result := mustImport(t, im, registry.Host+"/app:v1", images)
	child := result.Images[2].Image.Name
	images.Delete(child)
	registry.Reset()

	again := mustImport(t, im, registry.Host+"/app:v1", images)

	if again.Images[2].Action != importer.Created || again.Images[0].Action != importer.Unchanged {
		t.Errorf("result is %+v", again)
	}
	if n := len(registry.Requests()); n != 3 {
		t.Errorf("want HEAD, manifest and config, got %v", requests(registry))
	}
}

// Children of one platform are told apart by the version of Windows, and chosen by the beginning of
// it.
func TestVersionsOfWindowsChooseChildren(t *testing.T) {
	t.Parallel()
	const old, recent = "windows/amd64:10.0.17763.6532", "windows/amd64:10.0.20348.2849"
	registry := registrytest.New(t)
	registry.PushIndex("app:v1", newIndex(t, sample.Spec{}, false, "linux/amd64", old, recent))
	for wanted, want := range map[string][]string{
		"windows/amd64":                {old, recent},
		"windows/amd64:10.0.20348":     {recent},
		recent:                         {recent},
		"windows/amd64:10.0.2034":      nil,
		"windows/amd64:10.0.17763.653": nil,
	} {
		images := &registrytest.Images{}
		result, err := newImporter(t, importer.Options{Platforms: []string{wanted}}).Import(t.Context(), parse(t, registry.Host+"/app:v1"), images)
		if len(want) == 0 {
			if e := wantReason(t, err, pull.NotFound); !strings.Contains(e.Message, old) || !strings.Contains(e.Message, recent) {
				t.Errorf("%s: %v does not say what there is", wanted, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, i := range result.Images[1:] {
			got = append(got, i.Platform)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", wanted, diff)
		}
		if len(result.Skipped) != 3-len(want) {
			t.Errorf("%s: skipped %+v", wanted, result.Skipped)
		}
	}
}

func TestPlatformsChooseChildren(t *testing.T) {
	registry := registrytest.New(t)
	registry.PushIndex("app:v1", newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm/v6", "linux/arm/v7", "windows/amd64"))
	for _, tc := range []struct{ want, got []string }{
		{[]string{"linux/amd64"}, []string{"linux/amd64"}},
		{[]string{"linux/arm"}, []string{"linux/arm/v6", "linux/arm/v7"}},
		{[]string{"linux/arm/v7", "windows/amd64"}, []string{"linux/arm/v7", "windows/amd64"}},
	} {
		images := &registrytest.Images{}
		result := mustImport(t, newImporter(t, importer.Options{Platforms: tc.want}), registry.Host+"/app:v1", images)
		var got []string
		for _, i := range result.Images[1:] {
			got = append(got, i.Platform)
		}
		if diff := cmp.Diff(tc.got, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tc.want, diff)
		}
		if len(result.Skipped) != 4-len(tc.got) || result.Skipped[0].Reason != importer.SkippedPlatform {
			t.Errorf("%v: skipped %+v", tc.want, result.Skipped)
		}
	}
	images := &registrytest.Images{}
	_, err := newImporter(t, importer.Options{Platforms: []string{"linux/riscv64"}}).Import(t.Context(), parse(t, registry.Host+"/app:v1"), images)
	if e := wantReason(t, err, pull.NotFound); !strings.Contains(e.Message, "windows/amd64") {
		t.Errorf("%v does not say what there is", err)
	}
	if names := images.Names(); len(names) != 0 {
		t.Errorf("stored %v", names)
	}
	// More platforms later: the rest comes, the index is not read again.
	images = &registrytest.Images{}
	mustImport(t, newImporter(t, importer.Options{Platforms: []string{"linux/amd64"}}), registry.Host+"/app:v1", images)
	registry.Reset()
	mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:v1", images)
	if n := len(registry.Requests()); len(images.Names()) != 5 || n != 1+3*2 {
		t.Errorf("stored %d with %d requests", len(images.Names()), n)
	}
}

func TestChildWithoutPlatformIsChosenByItsConfig(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	index := sample.Index(sample.OCI,
		mutate.IndexAddendum{Add: newImage(t, sample.Spec{Platform: "linux/amd64"})},
		mutate.IndexAddendum{Add: newImage(t, sample.Spec{Platform: "linux/arm64"})})
	registry.PushIndex("app:v1", index)
	result := mustImport(t, newImporter(t, importer.Options{Platforms: []string{"linux/arm64"}}), registry.Host+"/app:v1", images)
	if len(result.Images) != 2 || result.Images[1].Platform != "linux/arm64" || len(result.Skipped) != 1 || result.Skipped[0].Reason != importer.SkippedPlatform {
		t.Errorf("result is %+v", result)
	}
}

func TestNestedIndex(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	inner := newIndex(t, sample.Spec{Name: "inner"}, true, "linux/amd64", "linux/arm64")
	image := newImage(t, sample.Spec{Name: "outer"})
	outer := sample.Index(sample.OCI,
		mutate.IndexAddendum{Add: inner}, mutate.IndexAddendum{Add: image}, mutate.IndexAddendum{Add: image})
	registry.PushIndex("app:v1", outer)
	result := mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:v1", images)
	if len(result.Images) != 5 || len(result.Skipped) != 2 {
		t.Fatalf("result is %+v", result)
	}
	var names []string
	for _, i := range result.Images {
		names = append(names, i.Platform)
	}
	if diff := cmp.Diff([]string{"", "", "linux/amd64", "linux/arm64", "linux/amd64"}, names); diff != "" {
		t.Error(diff)
	}

	deep := mutate.IndexAddendum{Add: image}
	for range 5 {
		deep = mutate.IndexAddendum{Add: sample.Index(sample.OCI, deep)}
	}
	registry.PushIndex("app:deep", deep.Add.(v1.ImageIndex))
	_, err := newImporter(t, importer.Options{}).Import(t.Context(), parse(t, registry.Host+"/app:deep"), &registrytest.Images{})
	wantReason(t, err, pull.TooLarge)
}

func TestArtifactIsNotAnImage(t *testing.T) {
	const helm = "application/vnd.cncf.helm.config.v1+json"
	registry, images := registrytest.New(t), &registrytest.Images{}
	artifact, err := sample.Artifact(helm, []byte("chart"))
	if err != nil {
		t.Fatal(err)
	}
	registry.Push("charts/web:v1", artifact)
	im := newImporter(t, importer.Options{})
	_, err = im.Import(t.Context(), parse(t, registry.Host+"/charts/web:v1"), images)
	if e := wantReason(t, err, pull.NotAnImage); !strings.Contains(e.Message, helm) {
		t.Errorf("%v does not say what it is", err)
	}
	if registry.Count("/blobs/") != 0 || len(images.Writes()) != 0 {
		t.Errorf("its config was read, or it was stored: %v %v", requests(registry), images.Writes())
	}

	// Among the children of an index it is not a failure, whether or not the
	// index tells.
	for name, child := range map[string]mutate.IndexAddendum{
		"told":   {Add: artifact, Descriptor: v1.Descriptor{ArtifactType: helm}},
		"silent": {Add: silent{artifact}},
	} {
		t.Run(name, func(t *testing.T) {
			images := &registrytest.Images{}
			registry.PushIndex("mixed:"+name, sample.Index(sample.OCI, mutate.IndexAddendum{Add: newImage(t, sample.Spec{})}, child))
			result := mustImport(t, im, registry.Host+"/mixed:"+name, images)
			if len(result.Images) != 2 || len(result.Skipped) != 1 || result.Skipped[0].Reason != importer.SkippedArtifact {
				t.Errorf("result is %+v", result)
			}
			registry.PushIndex("only:"+name, sample.Index(sample.OCI, child))
			_, err := im.Import(t.Context(), parse(t, registry.Host+"/only:"+name), images)
			wantReason(t, err, pull.NotAnImage)
		})
	}
}

// silent keeps an index from knowing that its child is an artifact.
type silent struct{ v1.Image }

func (s silent) ArtifactType() (string, error) { return "", nil }

func TestSparseIndex(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	index := newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64")
	registry.PushIndex("app:v1", index)
	m, _ := index.IndexManifest()
	registry.Inject("GET .*"+m.Manifests[1].Digest.String(), 0, registrytest.Status(404, "MANIFEST_UNKNOWN"))
	im := newImporter(t, importer.Options{})
	result := mustImport(t, im, registry.Host+"/app:v1", images)
	if len(result.Images) != 2 || len(result.Skipped) != 1 || result.Skipped[0].Reason != importer.SkippedMissing {
		t.Errorf("result is %+v", result)
	}
	registry.Inject("GET .*"+m.Manifests[0].Digest.String(), 0, registrytest.Status(404, "MANIFEST_UNKNOWN"))
	_, err := im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), &registrytest.Images{})
	wantReason(t, err, pull.Incomplete)
}

func TestOneChildFailsTheOthersAreStored(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	index := newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64", "linux/s390x")
	digest := registry.PushIndex("app:v1", index)
	m, _ := index.IndexManifest()
	registry.Inject("GET .*"+m.Manifests[1].Digest.String(), 0, registrytest.Status(403, "DENIED"))
	im := newImporter(t, importer.Options{})
	result, err := im.Import(t.Context(), parse(t, registry.Host+"/app:v1"), images)
	e := wantReason(t, err, pull.Denied)
	if want := registry.Host + "/app@" + m.Manifests[1].Digest.String(); e.Reference != want {
		t.Errorf("the error is about %s, want %s", e.Reference, want)
	}
	if result == nil || result.Digest != digest || len(result.Images) != 2 || len(images.Names()) != 2 || slices.Contains(images.Names(), digest) {
		t.Errorf("result is %+v, stored %v", result, images.Names())
	}
	registry.Heal()
	registry.Reset()
	mustImport(t, im, registry.Host+"/app:v1", images)
	if n := len(registry.Requests()); n != 4 || len(images.Names()) != 4 {
		t.Errorf("the next import needs HEAD, index, and one child: %v", requests(registry))
	}
}

// A tag that led nowhere before may lead to something new, so it is read at once.
func TestKnownDigestCostsOneRequest(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	image := newImage(t, sample.Spec{})
	digest := registry.Push("team/app:v1", image)
	registry.Push("team/app:v2", image)
	registry.Push("other/copy:v1", image)
	registry.Push("other/copy:v2", image)
	im := newImporter(t, importer.Options{})
	mustImport(t, im, registry.Host+"/team/app:v1", images)
	// In another repository the image is read once more: its registry can name any digest.
	registry.Reset()
	mustImport(t, im, registry.Host+"/other/copy:v2", images)
	want := []string{"GET /v2/other/copy/manifests/v2", "GET /v2/other/copy/blobs/" + configDigest(t, image)}
	if diff := cmp.Diff(want, requests(registry)); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	for _, tc := range []struct {
		reference, request string
		action             importer.Action
	}{
		{"/team/app:v1", "HEAD /v2/team/app/manifests/v1", importer.Unchanged},
		{"/team/app:v2", "GET /v2/team/app/manifests/v2", importer.Updated},
		{"/team/app@" + digest, "HEAD /v2/team/app/manifests/" + digest, importer.Updated},
		{"/team/app:gone@" + digest, "HEAD /v2/team/app/manifests/" + digest, importer.Unchanged},
		{"/other/copy:v1", "GET /v2/other/copy/manifests/v1", importer.Updated},
	} {
		registry.Reset()
		result := mustImport(t, im, registry.Host+tc.reference, images)
		if result.Images[0].Action != tc.action {
			t.Errorf("%s: %s, want %s", tc.reference, result.Images[0].Action, tc.action)
		}
		var all []string // greetings too
		for _, r := range registry.AllRequests() {
			all = append(all, r.String())
		}
		if diff := cmp.Diff([]string{tc.request}, all); diff != "" {
			t.Errorf("%s: requests (-want +got):\n%s", tc.reference, diff)
		}
	}
	stored, _ := images.Get(t.Context(), digest, metav1.GetOptions{})
	want = []string{
		registry.Host + "/team/app:v1", registry.Host + "/other/copy:v2", registry.Host + "/team/app:v2",
		registry.Host + "/team/app@" + digest, registry.Host + "/other/copy:v1",
	}
	if diff := cmp.Diff(want, known(stored)); diff != "" {
		t.Errorf("references (-want +got):\n%s", diff)
	}
	if stored.DockerImageReference != registry.Host+"/team/app@"+digest {
		t.Errorf("dockerImageReference became %s", stored.DockerImageReference)
	}
}

func TestManyImportsOfOneDigestFetchItOnceAndLoseNoReference(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	image := newImage(t, sample.Spec{})
	var references []string
	for i := range 30 {
		registry.Push(fmt.Sprintf("team/app:v%d", i), image)
		references = append(references, fmt.Sprintf("%s/team/app:v%d", registry.Host, i))
	}
	im := newImporter(t, importer.Options{})
	var wg sync.WaitGroup
	for _, reference := range references {
		wg.Go(func() {
			if _, err := im.Import(t.Context(), parse(t, reference), images); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := registry.Count("/manifests/"); n != len(references) {
		t.Errorf("%d requests of the manifest by %d tags", n, len(references))
	}
	if n := registry.Count("/blobs/"); n != 1 {
		t.Errorf("the config was read %d times", n)
	}
	if n := len(registry.AllRequests()) - len(registry.Requests()); n != 1 {
		t.Errorf("the registry was greeted %d times", n)
	}
	stored, _ := images.Get(t.Context(), images.Names()[0], metav1.GetOptions{})
	if diff := cmp.Diff(sorted(references), sorted(known(stored))); diff != "" {
		t.Errorf("references (-want +got):\n%s", diff)
	}
}

func TestReimportMergesThroughConflicts(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	image := newImage(t, sample.Spec{})
	digest := registry.Push("app:v1", image)
	registry.Push("app:v2", image)
	im := newImporter(t, importer.Options{})
	mustImport(t, im, registry.Host+"/app:v1", images)
	// Somebody else writes between our read and our write, three times.
	others := 0
	images.BeforeUpdate = func(string) {
		if others == 3 {
			return
		}
		others++
		hook := images.BeforeUpdate
		images.BeforeUpdate = nil
		defer func() { images.BeforeUpdate = hook }()
		stored, _ := images.Get(t.Context(), digest, metav1.GetOptions{})
		if stored.Labels == nil {
			stored.Labels = map[string]string{}
		}
		stored.Labels[fmt.Sprint("other", others)] = "x"
		if _, err := images.Update(t.Context(), stored, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	}
	result := mustImport(t, im, registry.Host+"/app:v2", images)
	stored := result.Images[0].Image
	if len(stored.Labels) != 3 || len(known(stored)) != 2 || result.Images[0].Action != importer.Updated {
		t.Errorf("after %d conflicts: labels %v, references %v", others, stored.Labels, known(stored))
	}
}

func TestImportFillsAnImageWithoutManifest(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	digest := registry.Push("app:v1", newImage(t, sample.Spec{}))
	bare := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest, Labels: map[string]string{"keep": "me"}}, DockerImageReference: "quay.io/a/b@" + digest}
	if _, err := images.Create(t.Context(), bare, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	result := mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:v1", images)
	stored := result.Images[0].Image
	if result.Images[0].Action != importer.Updated || stored.DockerImageManifest == "" || stored.DockerImageConfig == "" || stored.Labels["keep"] != "me" || stored.DockerImageReference != "quay.io/a/b@"+digest {
		t.Errorf("stored %+v", stored)
	}
}

func TestInlineConfigCostsNoRequest(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	image := newImage(t, sample.Spec{})
	config, _ := image.RawConfigFile()
	m, _ := image.Manifest()
	m = m.DeepCopy()
	push := func(tag string, data []byte) {
		m.Config.Data = data
		raw, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		registry.PushManifest("app:"+tag, string(types.OCIManifestSchema1), manifest.Digest(raw), raw)
	}
	im := newImporter(t, importer.Options{})
	push("v1", config)
	result := mustImport(t, im, registry.Host+"/app:v1", images)
	if result.Images[0].Image.DockerImageConfig != string(config) || registry.Count("/blobs/") != 0 {
		t.Errorf("the inline config is not used: %v", requests(registry))
	}
	// What is inlined and is not the config is not looked at, as containers/image does not.
	push("lies", []byte(`{"architecture":"evil","os":"linux"}`))
	registry.Push("app:blobs", image)
	asked := registry.Count("/blobs/" + m.Config.Digest.String())
	result = mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:lies", &registrytest.Images{})
	if result.Images[0].Image.DockerImageConfig != string(config) || registry.Count("/blobs/"+m.Config.Digest.String()) <= asked {
		t.Errorf("with other data inlined the config is %s", result.Images[0].Image.DockerImageConfig)
	}
}

func TestHeadThatDoesNotTell(t *testing.T) {
	for name, fault := range map[string]registrytest.Fault{
		"no digest header": registrytest.WithoutHeader("Docker-Content-Digest"),
		"not allowed":      registrytest.Status(405, "UNSUPPORTED"),
	} {
		t.Run(name, func(t *testing.T) {
			registry, images := registrytest.New(t), &registrytest.Images{}
			digest := registry.Push("app:v1", newImage(t, sample.Spec{}))
			mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:v1", images)
			registry.Reset()
			registry.Inject("HEAD ", 0, fault)
			result := mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/app:v1", images)
			if result.Digest != digest || registry.Count("GET .*/manifests/") != 1 {
				t.Errorf("%s after %v", result.Digest, requests(registry))
			}
		})
	}
}

func TestDryRunWritesNothing(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	registry.PushIndex("app:v1", newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64"))
	known := newImage(t, sample.Spec{Name: "known"})
	registry.Push("known:v1", known)
	registry.Push("known:v2", known)
	im := newImporter(t, importer.Options{})
	mustImport(t, im, registry.Host+"/known:v1", images)
	before := images.Writes()

	dry := &importer.DryRun{Images: images}
	result := mustImport(t, im, registry.Host+"/app:v1", dry)
	again := mustImport(t, im, registry.Host+"/app:v1", dry)
	update := mustImport(t, im, registry.Host+"/known:v2", dry)

	if len(result.Images) != 3 || result.Images[0].Action != importer.Created || again.Images[0].Action != importer.Unchanged || update.Images[0].Action != importer.Updated {
		t.Errorf("results are %+v, %+v, %+v", result, again, update)
	}
	if diff := cmp.Diff(before, images.Writes()); diff != "" {
		t.Errorf("something was written:\n%s", diff)
	}
	if n := len(dry.Written()); n != 4 {
		t.Errorf("%d images would have been written, want 4", n)
	}
}

func TestProgress(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	registry.PushIndex("app:v1", newIndex(t, sample.Spec{}, true, "linux/amd64"))
	var mu sync.Mutex
	var got []string
	im := newImporter(t, importer.Options{Progress: func(e importer.Event) {
		mu.Lock()
		defer mu.Unlock()
		if e.Reference != registry.Host+"/app:v1" || e.Digest == "" {
			t.Errorf("event %+v", e)
		}
		got = append(got, strings.TrimSpace(fmt.Sprint(e.Kind, " ", e.Platform, " ", e.Action, e.Detail)))
	}})
	mustImport(t, im, registry.Host+"/app:v1", images)
	want := []string{
		"Fetched", "Fetched linux/amd64", "Resolved", "Skipped unknown/unknown attestation",
		"Stored  Created", "Stored linux/amd64 Created",
	}
	if got[0] != "Resolved" || got[len(got)-1] != "Stored  Created" {
		t.Errorf("events are %q", got)
	}
	if diff := cmp.Diff(want, sorted(got)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// An entry of an index with another size than that of what it names is told of, also when all is
// known: containerd does not pull it.
func TestIndexEntryOfAnotherSize(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	image := newImage(t, sample.Spec{})
	digest := registry.Push("team/app:one", image)
	raw, _ := image.RawManifest()
	for _, size := range []int{len(raw), len(raw) + 1} {
		list := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d}]}`, types.OCIImageIndex, types.OCIManifestSchema1, digest, size)
		registry.PushManifest("team/app:list", string(types.OCIImageIndex), manifest.Digest(list), list)
		for range 2 {
			result := mustImport(t, newImporter(t, importer.Options{}), registry.Host+"/team/app:list", images)
			if wrong := size != len(raw); wrong != (len(result.Warnings) == 1) || wrong && !strings.Contains(result.Warnings[0], fmt.Sprintf("%s has %d bytes, and the index says %d", digest, len(raw), size)) {
				t.Errorf("%d bytes: the warnings are %q", size, result.Warnings)
			}
		}
	}
}

// An OCI artifact manifest is skipped, as any artifact is: alone, and in an index.
func TestOCIArtifactManifestIsSkipped(t *testing.T) {
	registry, images := registrytest.New(t), &registrytest.Images{}
	raw := []byte(`{"mediaType":"application/vnd.oci.artifact.manifest.v1+json","artifactType":"application/vnd.example.sbom","blobs":[]}`)
	registry.PushManifest("team/app:sbom", manifest.MediaTypeOCIArtifact, manifest.Digest(raw), raw)
	im := newImporter(t, importer.Options{})
	_, err := im.Import(t.Context(), parse(t, registry.Host+"/team/app:sbom"), images)
	if e := wantReason(t, err, pull.NotAnImage); !strings.Contains(e.Message, "application/vnd.example.sbom") {
		t.Error(e)
	}
	image := newImage(t, sample.Spec{})
	good := registry.Push("team/app:one", image)
	goodRaw, _ := image.RawManifest()
	for _, mediaType := range []string{manifest.MediaTypeOCIArtifact, string(types.OCIManifestSchema1)} {
		// as the index says
		list := fmt.Appendf(nil, `{"schemaVersion":2,"mediaType":%q,"manifests":[{"mediaType":%q,"digest":%q,"size":%d},{"mediaType":%q,"digest":%q,"size":%d}]}`,
			types.OCIImageIndex, types.OCIManifestSchema1, good, len(goodRaw), mediaType, manifest.Digest(raw), len(raw))
		registry.PushManifest("team/app:list", string(types.OCIImageIndex), manifest.Digest(list), list)
		result := mustImport(t, im, registry.Host+"/team/app:list", images)
		if len(result.Skipped) != 1 || result.Skipped[0].Reason != importer.SkippedArtifact || len(result.Images) != 2 {
			t.Errorf("%s: imported %v, skipped %v", mediaType, digests(result), result.Skipped)
		}
	}
}

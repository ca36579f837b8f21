package importer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// An import whose caller needs no content asks whether anything is new of a known image, and reads
// no Image. What is new is recorded as ever.
func TestKnownImagesAreNotRead(t *testing.T) {
	t.Parallel()
	registry, images, clock := registrytest.New(t), &countedImages{Images: &registrytest.Images{}}, clocktesting.NewFakeClock(time.Now())
	references := pushMany(t, registry, 4)
	index := registry.PushIndex("team/app:index", newIndex(t, sample.Spec{}, true, "linux/amd64", "linux/arm64"))
	references = append(references, registry.Host+"/team/app:index")
	var finder *tagFinder
	ctx := importer.WithBrief(t.Context())
	all := func(references ...string) (results []*importer.Result) {
		t.Helper()
		finder = &tagFinder{}
		im, prefetcher := newImporter(t, importer.Options{Signatures: finder}), newPrefetcher(t, images, clock, references)
		images.asked()
		var parsed []reference.Reference
		for _, ref := range references {
			parsed = append(parsed, parse(t, ref))
		}
		prefetcher.Prefetch(ctx, parsed)
		for _, ref := range parsed {
			result, err := im.Import(ctx, ref, prefetcher)
			if err != nil {
				t.Fatal(err)
			}
			results = append(results, result)
		}
		return results
	}
	cold := all(references...)
	writes := len(images.Writes())

	registry.Reset()
	second := all(references...)
	// Four images, the index and its two platforms.
	if got, want := images.asked(), "[ListTags:1 Record:7]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if n := len(finder.asked); n != 7 {
		t.Errorf("signatures were looked for %d times", n)
	}
	if n := registry.Count("GET /v2/team/app/manifests/"); n != registry.Count("GET /v2/team/app/manifests/sha256-") {
		t.Errorf("known manifests were read: %v", registry.Requests())
	}
	if got := len(images.Writes()); got != writes {
		t.Errorf("written: %v", images.Writes()[writes:])
	}
	for i, result := range second {
		if result.Digest != cold[i].Digest || len(result.Images) != len(cold[i].Images) || len(result.Skipped) != len(cold[i].Skipped) || !slices.Equal(result.Warnings, cold[i].Warnings) {
			t.Errorf("%s: %+v, cold %+v", result.Reference, result, cold[i])
			continue
		}
		for n, image := range result.Images {
			if image.Action != importer.Unchanged || image.Image.Name != cold[i].Images[n].Image.Name {
				t.Errorf("%s: %+v, cold %+v", result.Reference, image, cold[i].Images[n])
			}
		}
	}

	// A signature is new of an image, and of the index.
	for _, digest := range []string{second[0].Digest, index} {
		signature, err := sample.Artifact("application/vnd.test.signature", []byte("signature of "+digest))
		if err != nil {
			t.Fatal(err)
		}
		registry.Push("team/app:"+strings.Replace(digest, ":", "-", 1)+".sig", signature)
	}
	signed := all(references...)
	for i, want := range []importer.Action{importer.Updated, importer.Unchanged, importer.Unchanged, importer.Unchanged, importer.Updated} {
		if got := signed[i].Images[0].Action; got != want {
			t.Errorf("%s is %s, want %s", signed[i].Reference, got, want)
		}
	}
	if n := len(finder.asked); n != 7 {
		t.Errorf("signatures were looked for %d times", n)
	}
	for _, digest := range []string{second[0].Digest, index} {
		if n := len(stored(t, images.Images, digest).Signatures); n != 1 {
			t.Errorf("%s has %d signatures", digest, n)
		}
	}
	all(references...)
	if got, want := images.asked(), "[ListTags:1 Record:7]"; got != want {
		t.Errorf("with signatures: %s, want %s", got, want)
	}

	// An Image that is deleted is imported again, and so is a tag that moves.
	images.Delete(second[1].Digest)
	moved := registry.Push("team/app:2", newImage(t, sample.Spec{Name: "moved"}))
	again := all(references...)
	for i, want := range []importer.Action{importer.Unchanged, importer.Created, importer.Created, importer.Unchanged, importer.Unchanged} {
		if got := again[i].Images[0].Action; got != want {
			t.Errorf("%s is %s, want %s", again[i].Reference, got, want)
		}
	}
	if again[2].Digest != moved {
		t.Errorf("%s leads to %s", again[2].Reference, again[2].Digest)
	}
	// Another tag of a known image is new of it.
	registry.Push("team/app:latest", newImage(t, sample.Spec{Name: "moved"}))
	if got := all(registry.Host + "/team/app:latest"); got[0].Images[0].Action != importer.Updated || !slices.Contains(known(stored(t, images.Images, moved)), registry.Host+"/team/app:latest") {
		t.Errorf("%+v", got[0])
	}
}

// An import of chosen platforms skips the same ones of a known index, and says their names.
func TestPlatformsOfAKnownIndex(t *testing.T) {
	t.Parallel()
	registry, images := registrytest.New(t), &countedImages{Images: &registrytest.Images{}}
	registry.PushIndex("app:v1", newIndex(t, sample.Spec{}, false, "linux/amd64", "linux/arm64", "windows/amd64"))
	im := newImporter(t, importer.Options{Platforms: []string{"linux/arm64"}})
	for n := range 2 {
		result, err := im.Import(importer.WithBrief(t.Context()), parse(t, registry.Host+"/app:v1"), images)
		if err != nil || len(result.Images) != 2 || result.Images[1].Platform != "linux/arm64" || len(result.Skipped) != 2 {
			t.Errorf("%d: %+v, %v", n, result, err)
		}
	}
}

// One request for many tags says where they lead and what is stored of their images. A registry
// that is known costs nothing else.
func TestForeseenTags(t *testing.T) {
	t.Parallel()
	registry, images, clock := registrytest.New(t), &countedImages{Images: &registrytest.Images{}}, clocktesting.NewFakeClock(time.Now())
	references := pushMany(t, registry, 60)
	im := newImporter(t, importer.Options{})
	ctx := importer.WithBrief(t.Context())
	all := func(wait time.Duration, references ...string) (asked string, actions []importer.Action) {
		t.Helper()
		images.asked()
		prefetcher := newPrefetcher(t, images, clock, references)
		var parsed []reference.Reference
		for _, ref := range references {
			parsed = append(parsed, parse(t, ref))
		}
		for i, ref := range parsed {
			if ask := prefetcher.Foresee(ctx, ref, parsed[i+1:]); ask != nil {
				ask()
				clock.Step(wait)
			}
			result, err := im.Import(ctx, ref, prefetcher)
			if err != nil {
				t.Fatal(err)
			}
			actions = append(actions, result.Images[0].Action)
		}
		if n := prefetcher.Expected(); n != 0 {
			t.Errorf("%d repositories are held", n)
		}
		return images.asked(), slices.Compact(actions)
	}
	for _, tt := range []struct {
		what       string
		wait       time.Duration
		references []string
		want       string
		action     importer.Action
	}{
		// each of 60: a question, an image and a tag
		{"new", 0, references, "[Record:180]", importer.Created},
		{"known", 0, references, "[Record:60]", importer.Unchanged},
		{"known, and the answer is older", 6 * time.Second, references, "[Record:120]", importer.Unchanged},
		{"known, and the answer is too old", 61 * time.Second, references[:4], "[GetTag:1 ListTags:1 Record:8]", importer.Unchanged},
		{"few", 0, references[:3], "[GetTag:3 Record:3]", importer.Unchanged},
	} {
		asked, actions := all(tt.wait, tt.references...)
		if asked != tt.want || !slices.Equal(actions, []importer.Action{tt.action}) {
			t.Errorf("%s: %s, want %s; %v", tt.what, asked, tt.want, actions)
		}
	}

	// A tag that moves leaves its image, although the repository was new to an earlier import. What it
	// left is looked at, and whether other tags lead there.
	before, _ := history(t, images.Images, references[0])
	registry.Push("team/app:0", newImage(t, sample.Spec{Name: "moved"}))
	if asked, _ := all(0, references...); asked != "[Get:2 ListTags:1 Record:62]" {
		t.Errorf("one has moved: %s", asked)
	}
	if after, _ := history(t, images.Images, references[0]); len(after) != 2 || slices.Contains(known(stored(t, images.Images, before[0])), references[0]) {
		t.Errorf("the history is %v, and the image it has left is known as %v", after, known(stored(t, images.Images, before[0])))
	}

	// An image that is deleted is imported again.
	now, _ := history(t, images.Images, references[1])
	images.Delete(now[0])
	if _, actions := all(0, references...); !slices.Equal(actions, []importer.Action{importer.Unchanged, importer.Created, importer.Unchanged}) {
		t.Errorf("%v", actions)
	}
}

// Who has read a list of tags asks the server once which others it knows. Of a repository of which
// nothing is recorded, nothing else is asked.
func TestTagsOfAVacantRepositoryAreNotAskedFor(t *testing.T) {
	t.Parallel()
	registry, images, clock := registrytest.New(t), &countedImages{Images: &registrytest.Images{}}, clocktesting.NewFakeClock(time.Now())
	references := pushMany(t, registry, 60)
	im := newImporter(t, importer.Options{})
	ctx := importer.WithBrief(t.Context())
	all := func(listed int) (asked string, unlisted int) {
		t.Helper()
		images.asked()
		prefetcher := importer.NewPrefetcher(images, clock)
		isListed := map[string]bool{}
		for _, ref := range references[:listed] {
			isListed[ref] = true
		}
		if err := importer.EachUnlisted(ctx, prefetcher, parse(t, references[0]).Bare(), func(tag reference.Reference) bool { return isListed[tag.String()] }, func(tag reference.Reference, digest string) error {
			if led, _ := history(t, images.Images, tag.String()); led[0] != digest {
				t.Errorf("%s leads to %q, not %q", tag, led[0], digest)
			}
			unlisted++
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		var parsed []reference.Reference
		for _, ref := range references {
			parsed = append(parsed, parse(t, ref))
			prefetcher.Expect(parsed[len(parsed)-1])
		}
		for i, ref := range parsed {
			if ask := prefetcher.Foresee(ctx, ref, parsed[i+1:]); ask != nil {
				ask()
			}
			if _, err := im.Import(ctx, ref, prefetcher); err != nil {
				t.Fatal(err)
			}
		}
		if n := prefetcher.Expected(); n != 0 {
			t.Errorf("%d repositories are held", n)
		}
		return images.asked(), unlisted
	}
	for _, tt := range []struct {
		what     string
		listed   int
		want     string
		unlisted int
	}{
		{"new: a question, and of each an image and a tag", 60, "[Record:121]", 0},
		{"known: a question, and one for each tag", 50, "[Record:61]", 10},
	} {
		if asked, unlisted := all(tt.listed); asked != tt.want || unlisted != tt.unlisted {
			t.Errorf("%s: %s, want %s; %d are not listed, want %d", tt.what, asked, tt.want, unlisted, tt.unlisted)
		}
	}
}

// A registry that is slow, and whose tags wait, does not keep those of another from being foreseen.
func TestTagsOfEachRegistryAreForeseen(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	of := func(host string) (all []string, parsed []reference.Reference) {
		for i := range 120 {
			all = append(all, fmt.Sprintf("%s/app:%d", host, i))
			parsed = append(parsed, parse(t, all[i]))
		}
		return all, parsed
	}
	slow, slows := of("slow.example.com")
	other, others := of("other.example.com")
	prefetcher := newPrefetcher(t, &countedImages{Images: &registrytest.Images{}}, clock, slices.Concat(slow, other))
	ctx := importer.WithBrief(t.Context())
	foreseen := func(refs []reference.Reference) bool { return prefetcher.Foresee(ctx, refs[0], refs[1:]) != nil }
	if !foreseen(slows) || foreseen(slows) || !foreseen(others) || foreseen(others) {
		t.Error("not each registry has its own")
	}
	if clock.Step(2 * time.Minute); !foreseen(slows) {
		t.Error("tags that nobody takes are kept for good")
	}
	if prefetcher.Foresee(t.Context(), others[0], others[1:]) != nil {
		t.Error("tags are foreseen for one who needs the content of images")
	}
}

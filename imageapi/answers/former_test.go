package answers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// countedTags counts the lists of repositories' tags. They fail if there is no room.
type countedTags struct {
	worldTags
	noRoom bool
	lists  *[]context.Context
}

func (c countedTags) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	if _, ok := o.FieldSelector.RequiresExactMatch(selectors.TagRepository); ok {
		for _, before := range *c.lists {
			if before.Err() == nil {
				c.t.Error("a list is read while the one before it is held")
			}
		}
		if *c.lists = append(*c.lists, ctx); c.noRoom {
			return nil, apierrors.NewTooManyRequests("no room", 1)
		}
	}
	return c.worldTags.List(ctx, o)
}

// formerTagsOf answers for former tags of digests, and returns how many lists of repositories' tags
// were read for that.
func (w *world) formerTagsOf(digests []string, noRoom bool) ([]Answer, int) {
	w.t.Helper()
	spec := &ReferenceReviewSpec{FormerTags: true}
	for _, digest := range digests {
		spec.References = append(spec.References, Question{Reference: digest})
	}
	a, lists := w.answerer(), new([]context.Context)
	a.Tags = countedTags{worldTags{w}, noRoom, lists}
	status, err := a.Answer(w.t.Context(), spec)
	if err != nil {
		w.t.Fatal(err)
	}
	return status.References, len(*lists)
}

// The histories of a repository's tags are read once for all references of a review.
func TestFormerTagsAreReadOnceForARepository(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := w.image("now", repository)
	var digests []string
	for i := range 100 {
		digests = append(digests, w.image(fmt.Sprintf("old%d", i), repository))
		w.tag(fmt.Sprintf("%s:v%d", repository, i), now, digests[i], now, digests[i])
	}
	answers, lists := w.formerTagsOf(append(digests, now), false)
	for i, a := range answers[:100] {
		want := fmt.Sprintf("%s:v%d", repository, i)
		if got := a.Meaning.FormerTags; len(got) != 1 || got[0].Reference != want || got[0].Now != now {
			t.Errorf("%s led to it before: %+v", want, got)
		}
	}
	named := func(a *Answer, said string) bool {
		return slices.ContainsFunc(a.Unknowns, func(u UnknownPart) bool { return u.Part == PartTags && strings.Contains(u.Reason, said) })
	}
	if got := answers[100].Meaning.Tags; len(got) != maxTags || !named(&answers[100], "lead to it") || named(&answers[0], "") {
		t.Errorf("of 100 tags %d are named, and unknown is %+v; of none: %+v", len(got), answers[100].Unknowns, answers[0].Unknowns)
	}
	if got := answers[100].Meaning.FormerTags; len(got) > 0 {
		t.Errorf("tags that lead to it now are former tags: %+v", got)
	}
	if lists != 1 {
		t.Errorf("the tags of the repository were listed %d times, want 1", lists)
	}
}

// A review of many repositories with long histories searches a bounded part of them, and one that
// the store has no room for asks it once. Both say of which references that leaves former tags
// unknown.
func TestFormerTagsOfManyRepositoriesAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const repositories, each, entries = 8, 200, 99
	var digests []string
	for i := range repositories {
		in := fmt.Sprintf("%s%d", repository, i)
		old, now := w.image(fmt.Sprintf("old%d", i), in), w.image(fmt.Sprintf("now%d", i), in)
		digests = append(digests, old)
		for n := range each {
			w.tag(fmt.Sprintf("%s:v%d", in, n), append([]string{now}, slices.Repeat([]string{old}, entries-1)...)...)
		}
	}
	for _, tt := range []struct {
		noRoom         bool
		searched, asks int
		says           string
	}{
		{false, maxSearched / (each * (entries + 1)), maxSearched / (each * (entries + 1)), "ask about fewer references at once"},
		{true, 0, 1, "no room"},
	} {
		answers, lists := w.formerTagsOf(digests, tt.noRoom)
		if lists != tt.asks {
			t.Errorf("%d repositories' tags were listed, want %d", lists, tt.asks)
		}
		for i, a := range answers {
			unsearched := i >= tt.searched
			if said := strings.Contains(fmt.Sprint(a.Unknowns), "more than 20 tags led to it before"); said == unsearched {
				t.Errorf("reference %d: it is said that not all are named: %v", i, said)
			}
			if strings.Contains(fmt.Sprint(a.Unknowns), tt.says) != unsearched || (len(a.Meaning.FormerTags) == maxTags) == unsearched {
				t.Errorf("reference %d: %d former tags, unknown %+v", i, len(a.Meaning.FormerTags), a.Unknowns)
			}
		}
	}
}

// A tag that must not move, and did, leads to an image through any of the indexes that list it,
// however many these are.
func TestTagThroughOneOfManyIndexes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	key := signaturestest.TrustKey(signaturestest.NewKey(t, signaturestest.P256), nil)
	fixed := strings.Replace(signaturestest.Document("own", `["`+repository+`"]`, key, ""), "{name: own}", "{name: own, annotations: {tidewaiter.dev/immutable-tags: 'v*'}}", 1)
	var err error
	if w.policies, err = policy.ParseObjects([]byte(fixed), ""); err != nil {
		t.Fatal(err)
	}
	listed := w.image("listed", repository)
	var indexes []string
	for i := range maxOthers + 2 {
		index := w.image(fmt.Sprint("index", i), repository)
		w.images[index].DockerImageManifests = []imagev1.ImageManifest{{Digest: listed}}
		indexes = append(indexes, index)
	}
	first, stranger := w.image("first", repository), w.image("stranger", repository)
	s := w.answerer().own("")
	for _, index := range append(indexes, stranger) {
		w.tag(repository+":v1", index, first)
		led, err := s.ledThrough(t.Context(), w.images[listed], w.tags[tags.Name(w.ref(repository+":v1"))])
		if err != nil || (led.Moved != nil) != (index != stranger) {
			t.Errorf("the tag was moved to %s: %+v, %v", index, led, err)
		}
	}
	if a := w.ask(w.as("ann"), Question{Reference: repository + "@" + listed}); len(a.Meaning.Indexes) != maxOthers || !strings.Contains(fmt.Sprint(a.Unknowns), "more than 10 indexes list it") {
		t.Errorf("%d indexes are named, unknown %+v", len(a.Meaning.Indexes), a.Unknowns)
	}
}

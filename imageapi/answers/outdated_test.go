package answers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/usage"
)

// telling has one pod, which tells a digest.
type telling struct {
	*world
	one usage.Tagged
}

func (w telling) Running(_ []string, as func(usage.Tagged) usage.Run) (outdated, unknown usage.Count) {
	count := usage.Count{ByCluster: map[string]int{"prod": 1}, ByDigest: map[string]int{w.one.Digest: 1}}
	switch as(w.one).State {
	case usage.Outdated:
		outdated = count
	case usage.Unknown:
		unknown = count
	}
	return outdated, unknown
}

// A runtime may put the repository before the digest of a config. So a digest that is told, and
// that nothing here has, may be that of the config of what the tag leads to: whether the pod is
// outdated is not known then.
func TestOutdatedByADigestThatNothingHas(t *testing.T) {
	t.Parallel()
	const repository = "registry.example.com/app"
	w := newWorld(t)
	now, old, listed := w.image("now", repository), w.image("old", repository), digestOf("listed")
	w.images[w.image("index", repository)].DockerImageManifests = []imagev1.ImageManifest{{Digest: listed}}
	w.tag(repository+":v1", now, digestOf("before"))
	for told, want := range map[string]struct {
		state usage.State
		why   string
	}{
		now:                {state: usage.Current},
		old:                {state: usage.Outdated},
		listed:             {state: usage.Outdated},
		digestOf("before"): {state: usage.Outdated}, // the tag led there
		digestOf("ghost"):  {usage.Unknown, "no image here has that digest, or a config with it"},
	} {
		a := w.answerer()
		a.Naming = telling{w, usage.Tagged{Tag: repository + ":v1", Digest: told}}
		d, err := a.Drift(t.Context(), w.ref(repository+":v1"))
		if err != nil {
			t.Fatal(err)
		}
		if (d.Outdated.Pods() == 1) != (want.state == usage.Outdated) || (d.Unknown.Pods() == 1) != (want.state == usage.Unknown) || !strings.Contains(d.Why, want.why) {
			t.Errorf("%.20s: %+v, want %v", told, d, want)
		}
		imageID := repository + "@" + told
		c, err := a.Container(t.Context(), "shop", repository+":v1", imageID)
		if err != nil {
			t.Fatal(err)
		}
		if c.Outdated != (want.state == usage.Outdated) || (c.OutdatedUnknown != "") != (want.state == usage.Unknown) || !strings.Contains(c.OutdatedUnknown, want.why) {
			t.Errorf("%.20s: the container is %+v, want %v", told, c, want)
		}
		if known := a.About("prod", "shop", repository+":v1", imageID); (known.Now != "") != (want.state == usage.Outdated) {
			t.Errorf("%.20s: clusterpods have %+v", told, known)
		}
	}
}

// Who may see no more than the pods of a namespace asks by what their statuses tell, which may be
// the digest of a config.
func TestLocalReviewByAConfig(t *testing.T) {
	t.Parallel()
	const repository = "registry.example.com/app"
	w := newWorld(t)
	one, config := w.image("one", repository), digestOf("config")
	w.configs = map[string]string{config: one}
	w.tag(repository+":v1", w.image("now", repository))
	w.runs("shop", "app-1", repository+":v1", config)
	for _, runs := range []string{config, one} {
		got, err := w.answerer().Local(w.as("viewer"), "shop", &LocalReferenceReviewSpec{References: []Question{{Reference: repository + ":v1", Runs: runs}}})
		if err != nil {
			t.Fatal(err)
		}
		if a := got.References[0]; a.State == Unknown || a.Verdict == nil || len(got.Containers) != 1 || got.Containers[0].Digest != one {
			t.Errorf("by %.20s: %+v, %+v", runs, a, got.Containers)
		}
	}
}

// What a container runs is compared with each image that its tag led to, as it is with the one to
// which the tag leads now.
func TestDriftSince(t *testing.T) {
	t.Parallel()
	const repository, name = "registry.example.com/app", "registry.example.com/app:v1"
	since := time.Date(2026, 10, 31, 8, 0, 0, 0, time.UTC)
	w := newWorld(t)
	first, second, index, child, config := w.image("first", repository), w.image("second", repository), w.image("index", repository), w.image("child", repository), digestOf("config")
	w.images[index].DockerImageManifests = []imagev1.ImageManifest{{Digest: child}, {Digest: digestOf("unread")}}
	w.configs = map[string]string{config: first}
	for what, c := range map[string]struct {
		led  []any // hours after since, and digests, the oldest first
		runs string
		want []string // hours, and True, False or Unknown
	}{
		"the tag does not move":                    {[]any{-9, first}, first, []string{"0 False"}},
		"the tag moves":                            {[]any{-9, first, 3, second}, first, []string{"0 False", "3 True"}},
		"the tag moved before that time":           {[]any{-9, first, -2, second}, first, []string{"0 True"}},
		"the tag moved at that time":               {[]any{-9, first, 0, second}, first, []string{"0 True"}},
		"the tag moves back":                       {[]any{-9, first, 3, second, 6, first}, first, []string{"0 False", "3 True", "6 False"}},
		"it runs what the tag leads to":            {[]any{-9, first, 3, second}, second, []string{"0 True", "3 False"}},
		"the index lists what runs":                {[]any{-9, index}, child, []string{"0 False"}},
		"the index lists an image that is unread":  {[]any{-9, index}, digestOf("unread"), []string{"0 False"}},
		"another index lists what runs":            {[]any{-9, second}, digestOf("unread"), []string{"0 True"}},
		"a former index lists what runs":           {[]any{-9, index, 3, second}, child, []string{"0 False", "3 True"}},
		"the tag moves from one index to another":  {[]any{-9, first, 3, index}, child, []string{"0 True", "3 False"}},
		"the runtime reports the digest of config": {[]any{-9, first, 3, second}, config, []string{"0 False", "3 True"}},
		"the tag is not known":                     {nil, first, []string{"0 Unknown"}},
		"where the tag led is known since a while": {[]any{2, second}, first, []string{"0 Unknown", "2 True"}},
		"the registry lost the tag":                {[]any{-9, first, 3, "", 5, first}, first, []string{"0 False", "3 Unknown", "5 False"}},
		"what the tag led to is not stored":        {[]any{-9, digestOf("away"), 3, second}, first, []string{"0 Unknown", "3 True"}},
		"what runs is not stored":                  {[]any{-9, first}, digestOf("ghost"), []string{"0 Unknown"}},
		"what runs is only in the history":         {[]any{-9, digestOf("away"), 3, second}, digestOf("away"), []string{"0 False", "3 True"}},
	} {
		w.tags = map[string]*imagev1.ImageTag{}
		if c.led != nil {
			w.tag(name)
		}
		for _, tag := range w.tags {
			for i := len(c.led) - 2; i >= 0; i -= 2 {
				tag.Status.Items = append(tag.Status.Items, imagev1.TagEvent{Image: c.led[i+1].(string), Created: metav1.NewTime(since.Add(time.Duration(c.led[i].(int)) * time.Hour))})
			}
		}
		status, err := w.answerer().Answer(w.as("ann"), &ReferenceReviewSpec{References: []Question{{Reference: name, Runs: c.runs}}, DriftSince: &metav1.Time{Time: since}})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, one := range status.References[0].Drift {
			if got = append(got, fmt.Sprintf("%v %s", one.Since.Sub(since).Hours(), one.Outdated)); (one.Message == "") == (one.Outdated == BaseUnknown) {
				t.Errorf("%s: %+v", what, one)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}

		// How it compares now is what the pods of the tag have.
		a := w.answerer()
		a.Naming = telling{w, usage.Tagged{Tag: name, Digest: c.runs}}
		d, err := a.Drift(t.Context(), w.ref(name))
		if err != nil {
			t.Fatal(err)
		}
		now := BaseCurrent
		if d.Outdated.Pods() > 0 {
			now = BaseOutdated
		} else if d.Unknown.Pods() > 0 {
			now = BaseUnknown
		}
		if last := status.References[0].Drift; last[len(last)-1].Outdated != now {
			t.Errorf("%s: now it is %s, and the review has %+v", what, now, last)
		}
	}

	// Without the time, or with a digest in the reference, nothing is compared.
	w.tag(name, first)
	for _, spec := range []ReferenceReviewSpec{
		{References: []Question{{Reference: name, Runs: second}}},
		{References: []Question{{Reference: repository + "@" + first, Runs: second}, {Reference: name}}, DriftSince: &metav1.Time{Time: since}},
	} {
		status, err := w.answerer().Answer(w.as("ann"), &spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range status.References {
			if one.Drift != nil {
				t.Errorf("%+v: %+v", one.Question, one.Drift)
			}
		}
	}
}

package answers

import (
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"

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

package answers

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// counting counts what is read.
type counting struct {
	Objects
	read int
}

func (c *counting) Get(ctx context.Context, name string, o *metav1.GetOptions) (runtime.Object, error) {
	c.read++
	return c.Objects.Get(ctx, name, o)
}

// many is a world in which 1,000 pods run one image: by some references in ten namespaces.
func many(t testing.TB, references int) (w *world, one string) {
	w = newWorld(t)
	one = w.image("one", repository, "r.example.com/other")
	w.demands("shop", repository)
	for i := range 1000 {
		w.runs(fmt.Sprint("team-", i%10), fmt.Sprint("p", i), fmt.Sprint(repository, ":v", i%references), one)
	}
	return w, one
}

// However many pods run an image, each reference is judged once for all namespaces without policies
// of their own, and what means another place is not.
func TestPodsNamingJudgesEachOnce(t *testing.T) {
	t.Parallel()
	w, one := many(t, 5)
	w.runs("shop", "own", repository+":v1", one)
	for i := range 100 {
		w.runs("team-1", fmt.Sprint("q", i), fmt.Sprint("r.example.com/other:v", i), one)
	}
	a := w.answerer()
	tags := &counting{Objects: a.Tags}
	a.Tags = tags
	for _, tt := range []struct {
		place, namespace, verified string
		want, most                 int
	}{{repository, "", "NoPolicy", 1000, 5}, {repository + ":v1", "", "NoPolicy", 200, 1}, {repository, "shop", "Unsigned", 1, 1}, {"r.example.com/other:v7", "", "NoPolicy", 1, 1}} {
		tags.read = 0
		n, complete, err := a.PodsNaming(t.Context(), w.images[one], w.ref(tt.place), tt.namespace, tt.verified)
		if n != tt.want || !complete || err != nil || tags.read > tt.most {
			t.Errorf("%s for %q: %d pods, want %d, and %d tags were read: %v, %v", tt.place, tt.namespace, n, tt.want, tags.read, complete, err)
		}
	}
}

// Of more references than are judged, it is said that there may be more pods.
func TestPodsNamingIsBounded(t *testing.T) {
	t.Parallel()
	w, one := many(t, 1000)
	n, complete, err := w.answerer().PodsNaming(t.Context(), w.images[one], w.ref(repository), "", "NoPolicy")
	if n != maxJudgedNames || complete || err != nil {
		t.Errorf("%d pods, complete: %v, %v", n, complete, err)
	}
	if n, complete, err := w.answerer().PodsNaming(t.Context(), w.images[one], w.ref(repository+":v999"), "", "NoPolicy"); n != 1 || !complete || err != nil {
		t.Errorf("of one tag: %d pods, complete: %v, %v", n, complete, err)
	}
}

// A pod that names a mirror names the source's tag, also one that is gone.
func TestMirrorsOfATagThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two := w.image("one", repository), w.image("two", repository)
	w.tag(repository+":v1", "", one)
	w.tag(repository+":v2", two, one)
	w.runs("team", "direct", repository+":v1", one)
	w.runs("team", "mirrored", "mirror.example.com/app:v1", one)
	a := w.answerer()
	source := func(ref reference.Reference, from, to string) []reference.Reference {
		if ref.Name() != from {
			return nil
		}
		of := w.ref(to)
		of.Tag, of.Digest = ref.Tag, ref.Digest
		return []reference.Reference{of}
	}
	a.Registries = mirroring{
		func(ref reference.Reference) []reference.Reference {
			return source(ref, "mirror.example.com/app", repository)
		},
		func(ref reference.Reference) []reference.Reference {
			return source(ref, repository, "mirror.example.com/app")
		},
	}
	for _, text := range []string{repository + ":v1", "mirror.example.com/app:v1"} {
		status, err := a.Answer(t.Context(), &ReferenceReviewSpec{References: []Question{{Reference: text}}})
		if err != nil {
			t.Fatal(err)
		}
		if answer := status.References[0]; answer.State != Gone || answer.Running == nil || answer.Running.Pods != 2 {
			t.Errorf("%s is %s, and named by %+v", text, answer.State, answer.Running)
		}
		values, err := a.Selects(t.Context(), text, true)
		if want := fmt.Sprint([]string{"mirror.example.com/app:v1", repository + ":v1"}); fmt.Sprint(values) != want || err != nil {
			t.Errorf("%s selects %q, %v, want %s", text, values, err, want)
		}
		touched, err := a.Impact(w.as("ann"), &ImpactReviewSpec{Delete: text})
		if err != nil || touched.Summary.Pods != 2 {
			t.Errorf("the deletion of %s touches %+v, %v", text, touched, err)
		}
	}
}

// BenchmarkPodsNaming counts the pods of a turned verdict on an image with many references.
func BenchmarkPodsNaming(b *testing.B) {
	for _, references := range []int{1, 1000} {
		b.Run(fmt.Sprint("Pods=1000/References=", references), func(b *testing.B) {
			w, one := many(b, references)
			var known []reference.Reference
			for i := range annotation.MaxReferences {
				known = append(known, w.ref(fmt.Sprint(repository, ":v", i)))
			}
			annotation.SetKnown(w.images[one].Annotations, known)
			a := w.answerer()
			for b.Loop() {
				if n, _, err := a.PodsNaming(b.Context(), w.images[one], w.ref(repository), "", "NoPolicy"); err != nil || n != min(1000, maxJudgedNames*1000/references) {
					b.Fatal(n, err)
				}
			}
		})
	}
}

// mirroring are Registries with mirrors.
type mirroring struct {
	sources, mirrors func(reference.Reference) []reference.Reference
}

func (m mirroring) Sources(ref reference.Reference) []reference.Reference { return m.sources(ref) }

func (m mirroring) Mirrors(ref reference.Reference) []reference.Reference {
	if m.mirrors == nil {
		return nil
	}
	return m.mirrors(ref)
}

func (mirroring) Confirmed(context.Context, reference.Reference, string) time.Time {
	return time.Time{}
}

func (mirroring) Immutable(reference.Reference) string { return "" }

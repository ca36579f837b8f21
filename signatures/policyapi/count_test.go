package policyapi

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// After any changes of images, the coverage equals that of a new count. The test counts by the
// names of repositories alone.
func TestCoverageFollowsChanges(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	f := newFixture(t, nil)
	for _, name := range []string{"a", "b", "none"} {
		f.create(name, "r.io/"+name, signaturestest.NewKey(t, signaturestest.P256))
	}
	if f.Resume() {
		t.Error("it goes on before it has counted anything")
	}
	stored := map[string]*imagev1.Image{}
	for round := range 100 {
		if r.IntN(10) == 0 || !f.Resume() {
			f.Begin()
			for _, image := range stored {
				f.Count(image)
			}
		}
		for range r.IntN(20) {
			name := fmt.Sprintf("sha256:%064d", r.IntN(100))
			if r.IntN(3) == 0 {
				delete(stored, name)
				f.Gone(name)
				continue
			}
			image := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: name}, DockerImageManifest: "{}"}
			image.DockerImageReference = fmt.Sprintf("r.io/%c/%d@%s", 'a'+r.IntN(3), r.IntN(9), name)
			if r.IntN(2) == 0 { // it is not judged yet
				f.live.Verify(image, func(string) ([]*imagev1.Image, error) { return nil, nil })
			}
			stored[name] = image
			f.Count(image)
		}
		f.End(nil)
		want, repositories := map[types.NamespacedName]coverage{}, map[string]bool{}
		for _, image := range stored {
			repository, _, _ := strings.Cut(image.DockerImageReference, "@")
			policy := types.NamespacedName{Name: strings.Split(repository, "/")[1]}
			if policy.Name == "c" {
				continue
			}
			c := want[policy]
			c.images++
			if len(image.Annotations) > 0 {
				c.unmet++
			}
			if !repositories[repository] {
				repositories[repository] = true
				c.repositories++
			}
			want[policy] = c
		}
		if got := f.tally.covered; !maps.Equal(got, want) || f.tally.empty != (len(stored) == 0) || len(f.tally.about) != 3 {
			t.Fatalf("seed %d, round %d: %v, want %v", seed, round, got, want)
		}
	}
	f.create("more", "r.io/c", signaturestest.NewKey(t, signaturestest.P256))
	if f.Resume() {
		t.Error("it goes on with a count for other policies")
	}
}

package importer

import (
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/lru"

	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// A registry tells of a signature while a search runs that asked for it before it was there: the
// search that follows is not spared. It was, where the first ended between the two, and the image
// stayed Unsigned.
func TestToldWhileSearching(t *testing.T) {
	ref, err := reference.Parse("registry.example.com/team/app@sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a")
	if err != nil {
		t.Fatal(err)
	}
	s, image, at := &searches{last: lru.New(2)}, &imagev1.Image{ObjectMeta: metav1.ObjectMeta{UID: "1"}}, time.Unix(1000, 0)
	covers := func() bool { return s.covers(ref, at.Add(-time.Minute), image) }

	first := s.begin()
	s.forget(ref)
	s.done(ref, at, image, first)
	if covers() {
		t.Error("a search counts that began before a signature was told of")
	}
	second := s.begin()
	s.done(ref, at, image, second)
	if !covers() {
		t.Error("a search does not count that began after a signature was told of")
	}
	s.done(ref, at, image, first)
	if !covers() {
		t.Error("the end of an older search undoes a later one")
	}
	s.forget(ref)
	if covers() {
		t.Error("what was told of is not forgotten")
	}
}

package imageapi_test

import (
	"fmt"
	"testing"

	imagev1 "github.com/openshift/api/image/v1"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/tags"
)

// What a page of 500 tags of a stream costs, the first and the last one, where its repository has many.
func BenchmarkStreamTagPages(b *testing.B) {
	for _, many := range []int{1000, 20000, 100000} {
		b.Run(fmt.Sprint("Tags=", many), func(b *testing.B) {
			s := newTagStorages(b)
			var writers errgroup.Group
			writers.SetLimit(64)
			for i := range many {
				writers.Go(func() error {
					ref := s.ref.WithTag(fmt.Sprintf("v%06d", i))
					tag := tags.New(ref)
					tags.Lead(tag, ref, digestOf(i), metav1.Now())
					_, err := s.update(s.status, tag)
					return err
				})
			}
			if err := writers.Wait(); err != nil {
				b.Fatal(err)
			}
			s.mustCreateStream(stream("app", repository))
			page := func(b *testing.B, token string) *imagev1.ImageStreamTagList {
				obj, err := s.streamTags().List(inNamespace("team", "alice"), &internalversion.ListOptions{Limit: 500, Continue: token})
				if err != nil {
					b.Fatal(err)
				}
				return obj.(*imagev1.ImageStreamTagList)
			}
			last := ""
			for list := page(b, ""); list.Continue != ""; list = page(b, last) {
				last = list.Continue
			}
			for name, token := range map[string]string{"First": "", "Last": last} {
				b.Run("Page="+name, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						if got := len(page(b, token).Items); got != 500 {
							b.Fatalf("a page has %d tags", got)
						}
					}
				})
			}
		})
	}
}

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/signatures"
	"github.com/tidewaiter/tidewaiter/signatures/signaturestest"
)

// BenchmarkImpact shows how long a review of an act takes among 10,000 Images, each with a tag and
// a signature: of a policy that changes all verdicts, and of a layer.
func BenchmarkImpact(b *testing.B) {
	const n = 10_000
	dir, key := b.TempDir(), signaturestest.NewKey(b, signaturestest.P256)
	seedWithSignatures(b, dir, n, key)
	config := serveOn(b, dir, listen(b))
	policy := func(name string, key *signaturestest.Key) []byte {
		raw, err := object(b, signaturestest.Document(name, `["registry.example.com"]`, signaturestest.TrustKey(key, nil), "{matchPolicy: MatchRepository}")).MarshalJSON()
		if err != nil {
			b.Fatal(err)
		}
		return raw
	}
	r := newReviewer(b, config)
	for name, spec := range map[string]answers.ImpactReviewSpec{
		"Act=Policy": {ApplyPolicies: []runtime.RawExtension{{Raw: policy("prod", key)}}},
		"Act=Layer":  {Layer: manifest.Digest([]byte("none"))},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				got, err := r.impact(spec)
				if err != nil {
					b.Fatal(err)
				}
				if s := got.Status.Summary; spec.Layer == "" && (s.Examined != n || s.References != 2*n) {
					b.Fatalf("%+v", s)
				}
			}
		})
	}
}

// seedWithSignatures writes n Images into the store, past the API, each with a tag and a signature
// by a key.
func seedWithSignatures(b *testing.B, dir string, n int, key *signaturestest.Key) {
	b.Helper()
	seedTagged(b, dir, n, func(_ *kubestore.Getter, ref reference.Reference, img *imagev1.Image) (also func() error) {
		content := signaturestest.Marshal(b, key.SimpleSigning(b, img.Name, ref.Bare().String()))
		img.Signatures = []imagev1.ImageSignature{{ObjectMeta: metav1.ObjectMeta{Name: signatures.Name(img.Name, content)}, Type: signatures.TypeSimpleSigning, Content: content}}
		return nil
	})
}

// seedTagged writes n Images into the store, past the API, each with a tag. It calls add with one
// after the other, so that add can complete the Image. add returns what else to write, if anything.
func seedTagged(b *testing.B, dir string, n int, add func(getter *kubestore.Getter, ref reference.Reference, img *imagev1.Image) (also func() error)) {
	b.Helper()
	store, getter := openSeed(b, dir)
	defer store.Close()
	maker := newImageMaker(b, 0)
	images, imageTags := getter.Store(imagev1.Resource("images")), getter.Store(imagev1.Resource("imagetags"))
	at := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	var writers errgroup.Group
	writers.SetLimit(16)
	for i := range n {
		raw := strings.TrimSuffix(maker.manifest, "}") + fmt.Sprintf(`,"annotations":{"seed":"%d"}}`, i)
		ref := reference.Reference{Host: "registry.example.com", Repository: fmt.Sprint("team/app-", i%100), Tag: fmt.Sprint("v", i/100)}
		digest := manifest.Digest([]byte(raw))
		img := &imagev1.Image{
			ObjectMeta:           metav1.ObjectMeta{Name: digest, UID: "00000000-0000-4000-8000-000000000000", CreationTimestamp: at},
			DockerImageReference: ref.Bare().WithDigest(digest).String(), DockerImageManifest: raw, DockerImageConfig: maker.Config,
		}
		also := add(getter, ref, img)
		writers.Go(func() error {
			if err := manifest.Derive(img); err != nil {
				return err
			}
			if err := images.Create(context.Background(), imagesKey+img.Name, img, &imagev1.Image{}, 0); err != nil {
				return err
			}
			if also != nil {
				if err := also(); err != nil {
					return err
				}
			}
			tag := tags.New(ref)
			tag.UID, tag.CreationTimestamp, tag.Generation = types.UID(tags.Name(ref)), at, 1
			tags.Lead(tag, ref, digest, at)
			return imageTags.Create(context.Background(), "/image.openshift.io/imagetags/"+tag.Namespace+"/"+tag.Name, tag, &imagev1.ImageTag{}, 0)
		})
	}
	if err := writers.Wait(); err != nil {
		b.Fatal(err)
	}
}

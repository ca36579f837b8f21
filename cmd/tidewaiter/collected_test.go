package main

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"

	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
)

// The garbage collector, as any client that asks for metadata, reads streams without their tags,
// however many these are. Tags of registries are not collected: a deletion in the foreground would
// wait for it forever.
func TestWhatTheCollectorReads(t *testing.T) {
	oneCaller(t)
	t.Parallel()
	const tagsOfEach = 260 // with 100 items each, in two streams: more than a list may have
	dir := t.TempDir()
	seedTags(t, dir, tagsOfEach, "registry.example.com/team/one", "registry.example.com/team/two")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := serveWith(t, server.Options{DataDir: dir, Isolated: true}, listener)
	whole, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	streams, registryTags := imagev1.GroupVersion.WithResource("imagestreams"), imagev1.GroupVersion.WithResource("imagetags")
	if list, err := bare.Resource(streams).List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 2 {
		t.Errorf("a list of metadata: %v, %v", list, err)
	}
	gone := tags.Name(reference.Reference{Host: "registry.example.com", Repository: "team/one", Tag: "v0"})
	foreground := metav1.DeletePropagationForeground
	if err := whole.Resource(registryTags).Namespace(tags.Namespace).Delete(t.Context(), gone, metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	if left, err := whole.Resource(registryTags).Namespace(tags.Namespace).Get(t.Context(), gone, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a tag that was deleted in the foreground: %v, %v", left, err)
	}
}

// seedTags writes tags of repositories whose histories are full into the store, past the API, and a
// stream for each repository.
func seedTags(t testing.TB, dir string, n int, repositories ...string) {
	t.Helper()
	store, getter := openSeed(t, dir)
	defer store.Close()
	toTags, toStreams := getter.Store(imagev1.Resource("imagetags")), getter.Store(imagev1.Resource("imagestreams"))
	at := metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second))
	var writers errgroup.Group
	writers.SetLimit(16)
	for r, repository := range repositories {
		ref, err := reference.Parse(repository)
		if err != nil {
			t.Fatal(err)
		}
		stream := &imagev1.ImageStream{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprint("stream-", r), UID: types.UID(repository), CreationTimestamp: at, Generation: 1},
			Spec:       imagev1.ImageStreamSpec{DockerImageRepository: repository},
		}
		writers.Go(func() error {
			return toStreams.Create(context.Background(), "/image.openshift.io/imagestreams/team/"+stream.Name, stream, &imagev1.ImageStream{}, 0)
		})
		for i := range n {
			ref := ref.WithTag(fmt.Sprint("v", i))
			tag := tags.New(ref)
			tag.UID, tag.CreationTimestamp, tag.Generation = types.UID(tags.Name(ref)), at, 1
			for item := range tags.MaxItems {
				tags.Lead(tag, ref, manifest.Digest(fmt.Append(nil, r, i, item)), at)
			}
			writers.Go(func() error {
				return toTags.Create(context.Background(), "/image.openshift.io/imagetags/"+tags.Namespace+"/"+tag.Name, tag, &imagev1.ImageTag{}, 0)
			})
		}
	}
	if err := writers.Wait(); err != nil {
		t.Fatal(err)
	}
}

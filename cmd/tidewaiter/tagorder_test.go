package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	imagev1 "github.com/openshift/api/image/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/tidewaiter/tidewaiter/imageapi/imageclient"
	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/importer/registrytest/sample"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// inOrder says what is wrong with the order of a history, newest first. The generation 0 is of what
// is shown before it is imported.
func inOrder(items []imagev1.TagEvent) error {
	if len(items) > tags.MaxItems {
		return fmt.Errorf("it has %d items", len(items))
	}
	for i := 1; i < len(items); i++ {
		switch newer, older := items[i-1], items[i]; {
		case newer.Created.Before(&older.Created):
			return fmt.Errorf("item %d is of %s, the one before it of %s", i-1, newer.Created, older.Created)
		case newer.Generation != 0 && newer.Generation < older.Generation:
			return fmt.Errorf("item %d has generation %d, the one before it %d", i-1, newer.Generation, older.Generation)
		}
	}
	return nil
}

// A tag that moves hundreds of times, while it is imported all the time and a user has their
// stream's tag follow it, or an image of it, by turns, keeps its history: each move is one item, on
// top of those before, and the newest is what the registry says.
func TestHistoryOfATagUnderThreeWriters(t *testing.T) {
	t.Parallel()
	moves := 150 // more than a history has
	if testing.Short() {
		moves = 40 // the race detector takes ten times as long
	}
	config := serve(t)
	config.QPS = -1
	client, err := imageclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	im, err := importer.New(importer.Options{})
	if err != nil {
		t.Fatal(err)
	}
	registry := registrytest.New(t)
	ref, err := reference.Parse(registry.Host + "/team/app:v1")
	if err != nil {
		t.Fatal(err)
	}
	var images []v1.Image
	for n := range 7 { // any two that follow each other differ
		image, err := sample.New(sample.Spec{Name: fmt.Sprint("image", n)})
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, image)
	}
	begin := registry.Push("team/app:v1", images[0])
	if _, err := im.Import(t.Context(), ref, client); err != nil {
		t.Fatal(err)
	}
	first, err := client.GetTag(t.Context(), tags.Name(ref), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := client.WatchTags(t.Context(), metav1.ListOptions{ResourceVersion: first.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Stop()

	told := make(chan error, 1)
	// in the order of the pushes, which wait here: a watch that falls behind is ended
	led := make(chan string, 10)
	go func() {
		told <- func() error {
			before := first.Status.Items
			for n := 1; n <= moves; n++ {
				event, ok := <-watcher.ResultChan()
				if !ok {
					return fmt.Errorf("the watch has ended after %d moves", n-1)
				}
				tag, is := event.Object.(*imagev1.ImageTag)
				if event.Type != watch.Modified || !is {
					return fmt.Errorf("told %s %+v", event.Type, event.Object)
				}
				items := tag.Status.Items
				if want := <-led; items[0].Image != want {
					return fmt.Errorf("move %d led to %s, want %s", n, items[0].Image, want)
				}
				if err := inOrder(items); err != nil {
					return fmt.Errorf("after move %d: %w", n, err)
				}
				if rest := before[:min(len(before), tags.MaxItems-1)]; !apiequality.Semantic.DeepEqual(items[1:], rest) {
					return fmt.Errorf("after move %d there is %v below it, before there was %v", n, items[1:], before)
				}
				before = items
			}
			return nil
		}()
	}()

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var others sync.WaitGroup
	others.Go(func() { // imports
		for ctx.Err() == nil {
			if _, err := im.Import(importer.WithCause(ctx, "sweep"), ref, client); err != nil && ctx.Err() == nil && !givenUp(err) {
				t.Errorf("importing: %v", err)
				return
			}
		}
	})
	streamTags := objects.Resource(imagev1.GroupVersion.WithResource("imagestreamtags")).Namespace("team")
	streams := objects.Resource(imagev1.GroupVersion.WithResource("imagestreams")).Namespace("team")
	shown := func() (items []imagev1.TagEvent) {
		obj, err := streams.Get(t.Context(), "mine", metav1.GetOptions{})
		if err != nil {
			t.Error(err)
			return nil
		}
		stream := &imagev1.ImageStream{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, stream); err != nil {
			t.Error(err)
		}
		for _, tag := range stream.Status.Tags {
			items = append(items, tag.Items...)
		}
		return items
	}
	put := func(from string) error {
		tag := &imagev1.ImageStreamTag{TypeMeta: metav1.TypeMeta{APIVersion: imagev1.GroupVersion.String(), Kind: "ImageStreamTag"}, ObjectMeta: metav1.ObjectMeta{Name: "mine:prod"},
			Tag: &imagev1.TagReference{Name: "prod", From: &corev1.ObjectReference{Kind: "DockerImage", Name: from}}}
		b, err := json.Marshal(tag)
		if err != nil {
			return err
		}
		obj := &unstructured.Unstructured{}
		if err := obj.UnmarshalJSON(b); err != nil {
			return err
		}
		unstructured.RemoveNestedField(obj.Object, "image")
		_, err = streamTags.Update(t.Context(), obj, metav1.UpdateOptions{})
		return err
	}
	others.Go(func() { // a user
		for n := 0; n < 200 && ctx.Err() == nil; n++ {
			from := ref.String()
			if n%2 == 1 {
				from = ref.WithDigest(begin).String()
			}
			if err := put(from); err != nil && !apierrors.IsConflict(err) {
				t.Errorf("writing the tag of a stream: %v", err)
				return
			}
			if err := inOrder(shown()); err != nil {
				t.Errorf("the stream's history: %v", err)
				return
			}
		}
	})
	newest := begin
	for n := 1; n <= moves; n++ { // pushes, of which each is told
		newest = registry.Push("team/app:v1", images[n%len(images)])
		select {
		case led <- newest:
		case err := <-told:
			t.Fatalf("before push %d: %v", n, err)
		}
		pushed, err := im.Import(importer.WithCause(t.Context(), "webhook test"), ref, client)
		for err != nil && givenUp(err) { // as the spool does
			pushed, err = im.Import(importer.WithCause(t.Context(), "webhook test"), ref, client)
		}
		if err != nil || pushed.Digest != newest {
			t.Fatalf("push %d led to %s, %v; want %s", n, pushed.Digest, err, newest)
		}
	}
	stop()
	others.Wait()

	select {
	case err := <-told:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(5 * time.Minute):
		t.Fatalf("%d moves are not told", moves)
	}
	last, err := client.GetTag(t.Context(), tags.Name(ref), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if now, _ := tags.Now(last); now != newest || len(last.Status.Items) != min(1+moves, tags.MaxItems) {
		t.Errorf("it leads to %s after %d items, the registry says %s", now, len(last.Status.Items), newest)
	}
	if err := put(ref.String()); err != nil {
		t.Fatal(err)
	}
	if items := shown(); len(items) == 0 || items[0].Image != newest {
		t.Errorf("the stream shows %v, the registry says %s", items, newest)
	}
}

// givenUp reports whether an import has given up a tag that others have written again and again in
// the meantime. On a slow machine that happens to any of the writers.
func givenUp(err error) bool { return strings.Contains(err.Error(), "others updated where") }

// Package streams keeps ImageStreams in step with the tags of registries. It makes a stream for
// each repository that has none. When a tag has moved, it writes a mark into each stream that
// follows the tag, so that watchers of streams see the move.
//
// The contents of a stream are read from the ImageTags whenever it is shown, so nothing is wrong
// while this package is behind: watchers see the move later. A push does not wait for it. When a
// server starts, it catches up on the time in which no server ran.
package streams

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/tidewaiter/tidewaiter/internal/image/selectors"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages"
	"github.com/tidewaiter/tidewaiter/internal/reconcile"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// Client reads ImageTags, and makes ImageStreams.
type Client interface {
	ListTags(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageTagList, error)
	WatchTags(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
	CreateStream(ctx context.Context, stream *imagev1.ImageStream, options metav1.CreateOptions) (*imagev1.ImageStream, error)
}

// Stored are the ImageStreams as they are stored.
type Stored interface {
	// ListStreams lists the streams of all namespaces.
	ListStreams(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageStreamList, error)
	// MarkStream writes the annotation tags.Moved of a stream.
	MarkStream(ctx context.Context, namespace, name, version string) error
}

// Keeper keeps streams in step with tags.
type Keeper struct {
	Client Client
	// Streams finds and marks the streams that follow a tag.
	Streams Stored
	// Auto makes a stream for each repository that no stream follows as a whole.
	Auto bool
	// Rules decide in which namespace a stream is made.
	Rules Rules

	missing map[string]bool // namespaces of Rules that do not exist, and were warned of
}

const (
	page     = 500  // ImageTags read at a time
	maxMoved = 1000 // repositories whose tags have moved, and whose streams are not marked yet

	// rest is how many times as long as one marking took the next one waits, at most maxRest and at
	// least minRest. To show a stream to its watchers costs a read of all its tags, and an
	// importer moves them one after the other.
	rest    = 9
	minRest = 250 * time.Millisecond
	maxRest = time.Minute
)

// moved is a move in a repository: the resourceVersion of the ImageTag that was written last, and
// whether the repository still has a tag.
type moved struct {
	version string
	there   bool
}

// Run keeps streams until ctx is done. It ends with no error.
func (k *Keeper) Run(ctx context.Context) error {
	reconcile.Keep(ctx, "updating image streams with moved tags", nil, k.follow)
	return nil
}

// follow brings all streams up to date, and then those whose tags move, until something fails.
func (k *Keeper) follow(ctx context.Context) error {
	version, err := k.readAll(ctx)
	for err == nil && ctx.Err() == nil {
		if version, err = k.watchTags(ctx, version); err == nil {
			sleep(ctx, time.Second) // the server ends a watch after a while
		}
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// readAll brings the streams of all tags up to date, and returns the version at which the tags were
// read.
func (k *Keeper) readAll(ctx context.Context) (version string, err error) {
	last, at := "", moved{} // the tags of a repository come one after the other
	flush := func() error {
		if last == "" {
			return nil
		}
		return k.keep(ctx, last, at)
	}
	err = pages.Each(ctx, metav1.ListOptions{Limit: page}, k.Client.ListTags, func(list *imagev1.ImageTagList) error {
		// a watch from here reports what moves meanwhile
		version = cmp.Or(version, list.ResourceVersion)
		for i := range list.Items {
			repository, ok := repositoryOf(&list.Items[i])
			if !ok {
				continue
			}
			if repository != last {
				if err := flush(); err != nil {
					return err
				}
				last, at = repository, moved{there: true}
			}
			at.version = newer(at.version, list.Items[i].ResourceVersion)
		}
		return nil
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		return "", fmt.Errorf("reading all image tags: %w", err)
	}
	return version, nil
}

// watchTags marks the streams of tags that move, until the watch ends. It returns the version to go
// on from.
func (k *Keeper) watchTags(ctx context.Context, version string) (string, error) {
	w, err := k.Client.WatchTags(ctx, metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
	if err != nil {
		return "", fmt.Errorf("watching image tags: %w", err)
	}
	defer w.Stop()
	var rested time.Time
	for {
		all := map[string]moved{}
		event, ok := <-w.ResultChan()
		gathered := time.After(time.Until(rested))
		for ok {
			if event.Type == watch.Error {
				return "", fmt.Errorf("watching image tags: %w", apierrors.FromObject(event.Object))
			}
			if tag, is := event.Object.(*imagev1.ImageTag); is {
				version = tag.ResourceVersion
				if repository, known := repositoryOf(tag); known && event.Type != watch.Bookmark {
					all[repository] = moved{version, event.Type != watch.Deleted}
				}
			}
			if len(all) == maxMoved {
				break
			}
			// All moves that come meanwhile are handled together, even if the time is not over.
			select {
			case event, ok = <-w.ResultChan():
				continue
			default:
			}
			select {
			case event, ok = <-w.ResultChan():
				continue
			case <-gathered:
			}
			break
		}
		began := time.Now()
		for repository, m := range all {
			if err := k.keep(ctx, repository, m); err != nil {
				return "", err
			}
		}
		rested = time.Now().Add(min(max(rest*time.Since(began), minRest), maxRest))
		if !ok {
			return version, nil
		}
	}
}

func repositoryOf(tag *imagev1.ImageTag) (string, bool) {
	ref, ok := tags.Reference(tag)
	return ref.Name(), ok
}

// keep marks the streams that follow a repository in which a tag moved, and makes a stream if there
// is none.
func (k *Keeper) keep(ctx context.Context, repository string, m moved) error {
	ref, err := reference.ParseRepository(repository)
	if err != nil {
		return nil // the name is not a repository; no ImageTag follows such a name
	}
	whole := false
	options := metav1.ListOptions{Limit: page, FieldSelector: fields.OneTermEqualSelector(selectors.StreamRepository, repository).String()}
	err = pages.Each(ctx, options, k.Streams.ListStreams, func(list *imagev1.ImageStreamList) error {
		for i := range list.Items {
			stream := &list.Items[i]
			if of, err := reference.Parse(stream.Spec.DockerImageRepository); err == nil && of == ref {
				whole = true
			}
			if err := k.mark(ctx, stream, m.version); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("updating the image streams of %s: %w", repository, err)
	}
	if whole || !k.Auto || !m.there {
		return nil
	}
	namespace, _ := k.Rules.Place(ref)
	_, err = k.Client.CreateStream(ctx, k.Rules.New(ref), metav1.CreateOptions{})
	switch {
	case err == nil:
		delete(k.missing, namespace)
	case apierrors.IsAlreadyExists(err): // a user's stream of that name follows something else
	case apierrors.IsNotFound(err):
		// A cluster answers so if it does not have the namespace. There is no stream then; once the
		// namespace exists, the next move makes one.
		if !k.missing[namespace] {
			slog.Warn("Repositories have no image streams, because the namespace does not exist", "namespace", namespace, "repository", repository, "err", err)
			if k.missing == nil {
				k.missing = map[string]bool{}
			}
			k.missing[namespace] = true
		}
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		// another try would fail, too
		slog.Warn("A repository has no image stream", "repository", repository, "err", err)
	default:
		return fmt.Errorf("creating an image stream for %s: %w", repository, err)
	}
	return nil
}

// mark marks a stream, so that its watchers see that a tag has moved.
func (k *Keeper) mark(ctx context.Context, stream *imagev1.ImageStream, version string) error {
	told := stream.Annotations[tags.Moved]
	if newer(told, version) == told {
		return nil
	}
	err := k.Streams.MarkStream(ctx, stream.Namespace, stream.Name, version)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("updating the image stream %s/%s with a moved tag: %w", stream.Namespace, stream.Name, err)
	}
	return nil
}

// newer returns the newer of two resourceVersions; the second if one is not valid.
func newer(a, b string) string {
	if order, err := resourceversion.CompareResourceVersion(a, b); err == nil && order >= 0 {
		return a
	}
	return b
}

// New returns the stream that is made for a repository that no stream follows.
func (r Rules) New(repository reference.Reference) *imagev1.ImageStream {
	namespace, name := r.Place(repository)
	return &imagev1.ImageStream{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{tags.Auto: "true"}},
		Spec:       imagev1.ImageStreamSpec{DockerImageRepository: repository.Name()},
	}
}

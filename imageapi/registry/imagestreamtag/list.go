package imagestreamtag

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	imageregistry "github.com/tidewaiter/tidewaiter/imageapi/registry/image"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagestream"
)

const (
	// maxStreamTags is the most tags that a list, or a page of one, may have. A list without a
	// limit that would have more is refused.
	maxStreamTags = 10000
	// streamsAtOnce and tagsAtOnce are how many streams, and how many ImageTags of a repository, a
	// list of tags reads at most at a time. A page of 500 needs one tag more, to know that there is
	// one.
	streamsAtOnce, tagsAtOnce = 50, 512
)

// List is part of rest.Lister. Tags come in the order of their streams' names, then of their own;
// their images are not read. Each page shows things as they are then: no tag that exists all the
// time is left out, or comes twice.
func (r *REST) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	options = cmp.Or(options, &internalversion.ListOptions{})
	l, ctx, err := newStreamTagLister(ctx, options, maxStreamTags)
	if err != nil {
		return nil, err
	}
	out := &imagev1.ImageStreamTagList{Items: []imagev1.ImageStreamTag{}}
	err = l.list(ctx, r, options, &out.ListMeta, func(stream *imagev1.ImageStream, history *imagev1.NamedTagEventList) {
		tag := streamTag(stream, history.Tag, history)
		tag.Image.DockerImageReference = r.shown.PulledBy(stream, history.Tag, &history.Items[0])
		out.Items = append(out.Items, *tag)
	})
	return out, err
}

// list calls add with the tags of a page, and writes into meta where the next page begins.
func (l *streamTagLister) list(ctx context.Context, r *REST, options *internalversion.ListOptions, meta *metav1.ListMeta, add func(*imagev1.ImageStream, *imagev1.NamedTagEventList)) error {
	n, last, lastStream := 0, "", ""
	for tag, err := range l.tags(ctx, r.shown, meta) {
		if err != nil {
			return err
		}
		stream := l.key(tag.stream.Namespace, tag.stream.Name)
		if n < l.limit {
			add(tag.stream, tag.history)
			n, last, lastStream = n+1, l.key(tag.stream.Namespace, tag.name())+"\x00", stream
			continue
		}
		if options.Limit == 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("there are more than %d %s: list them in pages (limit and continue; kubectl get --chunk-size)", l.limit, r.resource.Resource))
		}
		if stream != lastStream { // which need not be read again
			last = stream + ":"
		}
		meta.Continue, err = imageregistry.Position(last)
		return err
	}
	return nil
}

type listedTag struct {
	stream  *imagev1.ImageStream
	history *imagev1.NamedTagEventList
}

func (t listedTag) name() string { return t.stream.Name + ":" + t.history.Tag }

// streamTagLister finds the tags of a list.
type streamTagLister struct {
	limit     int
	namespace string // "" for all
	fields    fields.Selector
	ofStreams internalversion.ListOptions // the streams that may have some, from the first on
	// the stream in which the page before ended, as a key in the namespace or in all
	first    string
	last     string // the last tag of that page
	only     string // the only tag that the selector selects; "" for any
	pending  bool   // tags of a spec that lead nowhere yet are listed, too
	selected func(listedTag) bool
}

func newStreamTagLister(ctx context.Context, options *internalversion.ListOptions, most int) (*streamTagLister, context.Context, error) {
	if options.ResourceVersionMatch == metav1.ResourceVersionMatchExact {
		return nil, nil, apierrors.NewBadRequest("resourceVersionMatch: image stream tags are only served as they are now, not as they were")
	}
	ctx = imagestream.Narrowed(ctx, options)
	l := &streamTagLister{limit: most, namespace: genericapirequest.NamespaceValue(ctx), fields: options.FieldSelector}
	if options.Limit > 0 {
		l.limit = int(min(options.Limit, int64(most)))
	}
	if l.fields == nil {
		l.fields = fields.Everything()
	}
	l.selected = func(tag listedTag) bool {
		return l.fields.Matches(fields.Set{"metadata.name": tag.name(), "metadata.namespace": tag.stream.Namespace})
	}
	l.ofStreams = internalversion.ListOptions{LabelSelector: options.LabelSelector, ResourceVersion: options.ResourceVersion, Limit: 1}
	if options.ResourceVersion != "" && options.Continue == "" {
		l.ofStreams.ResourceVersionMatch = metav1.ResourceVersionMatchNotOlderThan
	}
	if name, ok := l.fields.RequiresExactMatch("metadata.name"); ok {
		stream, tag, err := splitStreamTag(name)
		if err != nil {
			return nil, nil, err
		}
		l.only, l.ofStreams.FieldSelector = tag, fields.OneTermEqualSelector("metadata.name", stream)
	}
	if options.Continue == "" {
		return l, ctx, nil
	}
	key, _, err := storage.DecodeContinue(options.Continue, "")
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid continue token: %v", err))
	}
	l.first, l.last, _ = strings.Cut(strings.TrimSuffix(key, "\x00"), ":")
	l.ofStreams.Continue, err = imageregistry.Position(l.first)
	return l, ctx, err
}

// key is the place of an object in the list.
func (l *streamTagLister) key(namespace, name string) string {
	if l.namespace != "" {
		return name
	}
	return namespace + "/" + name
}

// tags yields the selected tags, and writes the version of the read streams into list. It reads one
// stream first, and then estimates from the tags of the former streams how many more the page
// needs.
func (l *streamTagLister) tags(ctx context.Context, r *imagestream.Reader, list *metav1.ListMeta) iter.Seq2[listedTag, error] {
	return func(yield func(listedTag, error) bool) {
		read, yielded := 0, 0
		for options := l.ofStreams; ; {
			read += int(options.Limit)
			more, err := l.page(ctx, r, &options, list, func(tag listedTag, err error) bool {
				yielded++
				return yield(tag, err)
			})
			if err != nil {
				yield(listedTag{}, err)
			}
			if err != nil || !more {
				return
			}
			wanted := 2 * read // while none had any
			if yielded > 0 {
				wanted = (l.limit + 1 - yielded) * read / yielded
			}
			options.Limit = int64(min(max(wanted, 1), streamsAtOnce))
		}
	}
}

// page yields the selected tags of some streams, and sets options to the next streams. It returns
// false when there are none, or when no more tags are wanted. Its reads count as memory of the
// request (package kubestore) until it returns.
func (l *streamTagLister) page(ctx context.Context, r *imagestream.Reader, options *internalversion.ListOptions, list *metav1.ListMeta, yield func(listedTag, error) bool) (more bool, err error) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	obj, err := r.Streams.List(ctx, options)
	if err != nil {
		return false, err
	}
	streams := obj.(*imagev1.ImageStreamList)
	list.ResourceVersion = streams.ResourceVersion
	for i := range streams.Items {
		stream, after := &streams.Items[i], ""
		if l.key(stream.Namespace, stream.Name) == l.first {
			after = l.last
		}
		for history, err := range l.histories(ctx, r, stream, after) {
			if err != nil {
				return false, err
			}
			tag := listedTag{stream, history}
			if !imagestream.Leads(history) && !(l.pending && imagestream.SpecTag(stream, history.Tag) != nil) {
				continue
			}
			if l.selected(tag) && !yield(tag, nil) {
				return false, nil
			}
		}
	}
	options.ResourceVersion, options.ResourceVersionMatch, options.Continue = "", "", streams.Continue
	return streams.Continue != "", nil
}

// histories yields the histories of a stream's tags that come after one, in the order of their
// names.
func (l *streamTagLister) histories(ctx context.Context, r *imagestream.Reader, stream *imagev1.ImageStream, after string) iter.Seq2[*imagev1.NamedTagEventList, error] {
	return func(yield func(*imagev1.NamedTagEventList, error) bool) {
		named := []string{l.only}
		if l.only == "" {
			named = slices.DeleteFunc(namedIn(stream), func(name string) bool { return name <= after })
		}
		shown, err := r.Named(ctx, stream, named...)
		if err != nil {
			yield(nil, err)
			return
		}
		is := map[string]bool{}
		for _, name := range named {
			is[name] = true
		}
		if l.pending {
			for _, name := range named {
				if imagestream.SpecTag(stream, name) != nil && imagestream.HistoryOf(shown, name) == nil {
					shown.Status.Tags = append(shown.Status.Tags, imagev1.NamedTagEventList{Tag: name})
				}
			}
			slices.SortFunc(shown.Status.Tags, func(a, b imagev1.NamedTagEventList) int { return strings.Compare(a.Tag, b.Tag) })
		}
		// The tags of own may follow others, which shown has as well.
		own := slices.DeleteFunc(shown.Status.Tags, func(t imagev1.NamedTagEventList) bool { return !is[t.Tag] || t.Tag <= after })
		if l.only == "" && stream.Spec.DockerImageRepository != "" {
			for tag, err := range r.TagsAfter(ctx, stream.Spec.DockerImageRepository, after, min(l.limit+1, tagsAtOnce)) {
				if err != nil {
					yield(nil, err)
					return
				}
				name := imagestream.TagOf(tag)
				for len(own) > 0 && own[0].Tag < name {
					if !yield(&own[0], nil) {
						return
					}
					own = own[1:]
				}
				if !is[name] && tag.Status != nil && !yield(tag.Status, nil) {
					return
				}
			}
		}
		for i := range own {
			if !yield(&own[i], nil) {
				return
			}
		}
	}
}

// namedIn returns the tags that the stream's own spec and status name, each once.
func namedIn(stream *imagev1.ImageStream) (names []string) {
	for i := range stream.Spec.Tags {
		names = append(names, stream.Spec.Tags[i].Name)
	}
	for i := range stream.Status.Tags {
		names = append(names, stream.Status.Tags[i].Tag)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

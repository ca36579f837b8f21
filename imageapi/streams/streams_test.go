package streams_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/tidewaiter/tidewaiter/imageapi/streams"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/pages/pagestest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// server has tags, in the order of their names, and streams. Lists of tags have pages of one.
type server struct {
	t       *testing.T
	mu      sync.Mutex
	tags    []*imagev1.ImageTag
	streams map[string]*imagev1.ImageStream
	marks   map[string]int // of a stream
	watcher *watch.FakeWatcher
	watched chan *watch.FakeWatcher // each watch that is begun
	fail    int                     // how many requests fail
	cost    time.Duration           // of a list of streams
	there   bool                    // the namespace missing
	events  int                     // that a watch holds which nobody has taken
	expire  bool                    // lists of tags
	version int                     // of the next list of tags
	from    []string                // the versions at which watches began
}

func newServer(t *testing.T) *server {
	return &server{t: t, streams: map[string]*imagev1.ImageStream{}, marks: map[string]int{}, watched: make(chan *watch.FakeWatcher, 10), events: 5000, version: 100}
}

func imageTag(t *testing.T, ref string, version int) *imagev1.ImageTag {
	t.Helper()
	parsed, err := reference.Parse(ref)
	if err != nil {
		t.Fatal(err)
	}
	tag := tags.New(parsed)
	tag.ResourceVersion = strconv.Itoa(version)
	return tag
}

func (s *server) ListTags(ctx context.Context, options metav1.ListOptions) (*imagev1.ImageTagList, error) {
	if s.expire {
		return pagestest.Expiring(s.listTags)(ctx, options)
	}
	return s.listTags(ctx, options)
}

func (s *server) listTags(_ context.Context, options metav1.ListOptions) (*imagev1.ImageTagList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail > 0 {
		s.fail--
		return nil, errors.New("away")
	}
	list := &imagev1.ImageTagList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(s.version)}}
	if s.expire {
		s.version++ // what goes on after it has expired is newer
	}
	from, _ := strconv.Atoi(options.Continue)
	if from < len(s.tags) {
		list.Items = append(list.Items, *s.tags[from])
	}
	if from+1 < len(s.tags) {
		list.Continue = strconv.Itoa(from + 1)
	}
	return list, nil
}

func (s *server) WatchTags(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	s.from = append(s.from, options.ResourceVersion)
	s.mu.Unlock()
	w := watch.NewFakeWithChanSize(s.events, false)
	s.watched <- w
	return w, nil
}

func (s *server) ListStreams(_ context.Context, options metav1.ListOptions) (*imagev1.ImageStreamList, error) {
	time.Sleep(s.cost)
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &imagev1.ImageStreamList{}
	for _, stream := range s.streams {
		if "repository="+stream.Spec.DockerImageRepository == options.FieldSelector || stream.Labels["follows"] != "" && strings.HasSuffix(options.FieldSelector, stream.Labels["follows"]) {
			list.Items = append(list.Items, *stream)
		}
	}
	return list, nil
}

func (s *server) CreateStream(_ context.Context, stream *imagev1.ImageStream, _ metav1.CreateOptions) (*imagev1.ImageStream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := stream.Namespace + "/" + stream.Name
	if strings.Contains(key, "missing") && !s.there {
		return nil, apierrors.NewNotFound(imagev1.Resource("namespaces"), stream.Namespace)
	}
	if strings.Contains(key, "forbidden") {
		return nil, apierrors.NewForbidden(imagev1.Resource("imagestreams"), stream.Name, nil)
	}
	if s.streams[key] != nil {
		return nil, apierrors.NewAlreadyExists(imagev1.Resource("imagestreams"), stream.Name)
	}
	s.streams[key] = stream
	return stream, nil
}

func (s *server) MarkStream(_ context.Context, namespace, name, version string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[namespace+"/"+name].Annotations = map[string]string{tags.Moved: version}
	s.marks[name]++
	return nil
}

func (s *server) add(namespace, name, repository, moved string) *imagev1.ImageStream {
	stream := &imagev1.ImageStream{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{tags.Moved: moved}}, Spec: imagev1.ImageStreamSpec{DockerImageRepository: repository}}
	s.streams[namespace+"/"+name] = stream
	return stream
}

// run keeps the streams of s until the test ends, and returns the first watch.
func (s *server) run(auto bool) *watch.FakeWatcher {
	s.t.Helper()
	return s.runBy(auto, streams.Rules{})
}

func (s *server) runBy(auto bool, rules streams.Rules) *watch.FakeWatcher {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = (&streams.Keeper{Client: s, Streams: s, Auto: auto, Rules: rules}).Run(ctx)
	}()
	s.t.Cleanup(func() {
		stop()
		close(s.watched)
		for w := range s.watched {
			w.Stop()
		}
		if s.watcher != nil {
			s.watcher.Stop()
		}
		<-done
	})
	return s.nextWatch()
}

func (s *server) nextWatch() *watch.FakeWatcher {
	s.t.Helper()
	select {
	case s.watcher = <-s.watched:
	case <-time.After(time.Minute):
		s.t.Fatal("nobody watches")
	}
	return s.watcher
}

// soon waits until streams are there and marked as wanted: by <namespace>/<name>, the mark.
func (s *server) soon(want map[string]string) {
	s.t.Helper()
	got := ""
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		s.mu.Lock()
		marks := map[string]string{}
		for key, stream := range s.streams {
			marks[key] = stream.Annotations[tags.Moved]
		}
		s.mu.Unlock()
		if got = fmt.Sprint(marks); got == fmt.Sprint(want) {
			return
		}
	}
	s.t.Fatalf("there are %s, want %v", got, want)
}

// What has moved while nobody kept streams is made up for at the start: repositories without a
// stream get one, streams that were told of less than there is are told, and no others.
func TestTheStartMakesUpForWhatWasMissed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.fail = 1
	s.tags = []*imagev1.ImageTag{imageTag(t, "a.b/forbidden:v1", 2), imageTag(t, "a.b/new:v1", 3), imageTag(t, "a.b/new:v2", 4), imageTag(t, "a.b/old:v1", 9), imageTag(t, "a.b/old:v2", 10), imageTag(t, "a.b/told:v1", 5)}
	s.add("team", "mine", "a.b/old", "9")
	s.add("team", "whole", "a.b/told", "5")
	s.add("team", "part", "", "4").Labels = map[string]string{"follows": "a.b/told"}
	s.run(true)
	s.soon(map[string]string{"default/a.b--new": "", "team/mine": "10", "team/whole": "5", "team/part": "5"})
	if s.marks["whole"] != 0 || s.marks["mine"] != 1 {
		t.Errorf("patches %v", s.marks)
	}
}

// A list of tags that expires is read to its end, and the watch begins where the list did: what
// moved meanwhile before the place where the list went on is told.
func TestStartThroughAnExpiredList(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.expire = true
	s.tags = []*imagev1.ImageTag{imageTag(t, "a.b/one:v1", 3), imageTag(t, "a.b/two:v1", 4), imageTag(t, "a.b/two:v2", 9), imageTag(t, "a.b/zzz:v1", 5)}
	s.run(true)
	s.soon(map[string]string{"default/a.b--one": "", "default/a.b--two": "", "default/a.b--zzz": ""})
	if s.from[0] != "100" {
		t.Errorf("the watch begins at %s", s.from[0])
	}
}

// Streams are told of each tag that moves, also after the watch has ended or expired; a tag that
// was deleted makes none.
func TestStreamsAreToldOfMoves(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	w := s.run(true)
	w.Add(imageTag(t, "a.b/c:v1", 101))
	s.soon(map[string]string{"default/a.b--c": ""})
	w.Modify(imageTag(t, "a.b/c:v1", 102))
	s.soon(map[string]string{"default/a.b--c": "102"})
	w.Delete(imageTag(t, "a.b/gone:v1", 103))
	w.Delete(imageTag(t, "a.b/c:v1", 104))
	s.soon(map[string]string{"default/a.b--c": "104"})
	w.Stop()
	w = s.nextWatch()
	w.Modify(imageTag(t, "a.b/c:v2", 110))
	s.soon(map[string]string{"default/a.b--c": "110"})
	s.mu.Lock()
	s.tags = []*imagev1.ImageTag{imageTag(t, "a.b/c:v2", 120)}
	s.mu.Unlock()
	status := apierrors.NewResourceExpired("too old").Status()
	w.Error(&status)
	s.nextWatch()
	s.soon(map[string]string{"default/a.b--c": "120"})
}

// Many moves of one repository that come together cost its stream few writes.
func TestMovesAreToldOfTogether(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.add("team", "mine", "a.b/c", "1")
	w := s.run(false)
	s.mu.Lock() // nobody is told for now
	for n := range 2000 {
		w.Modify(imageTag(t, "a.b/c:v1", 1000+n))
	}
	s.mu.Unlock()
	s.soon(map[string]string{"team/mine": "2999"})
	if n := s.marks["mine"]; n > 100 {
		t.Errorf("%d writes for 2,000 moves that came together", n)
	}
}

// An import of a repository moves its tags one after the other, and to write a stream costs a read
// of all its tags: 2,500 cost the server 13 ms of processor time each, twice what all else of an
// import does.
func TestMovesOneAfterTheOtherAreToldOfTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.cost, s.events = 5*time.Millisecond, 0
		s.add("team", "mine", "a.b/c", "1")
		w := s.run(false)
		const n = 400
		for i := range n {
			w.Modify(imageTag(t, "a.b/c:v1", 1000+i)) // returns when it is taken
		}
		s.soon(map[string]string{"team/mine": fmt.Sprint(1000 + n - 1)})
		if got := s.marks["mine"]; got > n/4 {
			t.Errorf("%d writes for %d moves", got, n)
		}
	})
}

// However long it took to tell of a move, the next one is told of within a minute after that.
func TestRestAfterASlowTellingHasAnEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		s.cost = 50 * time.Second
		s.add("team", "mine", "a.b/c", "1")
		w := s.run(false)
		w.Modify(imageTag(t, "a.b/c:v1", 1000))
		time.Sleep(s.cost + time.Second)
		w.Modify(imageTag(t, "a.b/c:v1", 1001))
		time.Sleep(time.Minute + s.cost)
		s.soon(map[string]string{"team/mine": "1001"})
	})
}

// Without streams.auto nobody makes any.
func TestNoAutomaticStreams(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.tags = []*imagev1.ImageTag{imageTag(t, "a.b/new:v1", 3)}
	s.add("team", "mine", "a.b/c", "1")
	w := s.run(false)
	w.Modify(imageTag(t, "a.b/other:v1", 101))
	w.Modify(imageTag(t, "a.b/c:v1", 102))
	s.soon(map[string]string{"team/mine": "102"})
}

// A stream from before a rule stays and is told of moves; what has none is made where the rule
// says. A namespace that is not there keeps nobody from being told, and has the stream once it is
// there and a tag moves.
func TestRulesPlaceStreams(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.tags = []*imagev1.ImageTag{imageTag(t, "a.b/c/old:v1", 5), imageTag(t, "a.b/lost/app:v1", 6), imageTag(t, "a.b/z:v1", 7)}
	s.add("default", "a.b--c--old", "a.b/c/old", "1")
	w := s.runBy(true, mustRules(t, "a.b/c", "team-c", "a.b/lost", "missing"))
	s.soon(map[string]string{"default/a.b--c--old": "5", "default/a.b--z": ""})
	w.Modify(imageTag(t, "a.b/lost/app:v1", 101))
	w.Modify(imageTag(t, "a.b/c/old:v2", 102))
	w.Modify(imageTag(t, "a.b/c/new:v1", 103))
	s.soon(map[string]string{"default/a.b--c--old": "102", "default/a.b--z": "", "team-c/new": ""})
	s.mu.Lock()
	s.there = true
	s.mu.Unlock()
	w.Modify(imageTag(t, "a.b/lost/app:v1", 104))
	s.soon(map[string]string{"default/a.b--c--old": "102", "default/a.b--z": "", "team-c/new": "", "missing/app": ""})
}

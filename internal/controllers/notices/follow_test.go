package notices

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/importer/notify"
	"github.com/tidewaiter/tidewaiter/importer/spool"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/job"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// feedFunc returns changes after a revision.
type feedFunc func(rev int64) (*kubestore.Feed, error)

func (f feedFunc) Feed(rev int64, _ string, _ ...string) (*kubestore.Feed, error) { return f(rev) }

// nothingRuns knows that no pod runs.
type nothingRuns struct{}

func (nothingRuns) Synced() bool { return true }

func (nothingRuns) Pods(string, *imagev1.Image) (int, bool) { return 0, true }

func (nothingRuns) PodsNaming(context.Context, *imagev1.Image, reference.Reference, string, string) (int, bool, error) {
	return 0, true, nil
}

func (nothingRuns) Overwritten(context.Context, *imagev1.ImageTag) (*answers.Overwritten, error) {
	return nil, nil
}

func (nothingRuns) Drift(context.Context, reference.Reference) (message, image string, pods int, err error) {
	return "", "", 0, nil
}

// A change has the same events with the same IDs whoever looks at it and when, and another change
// has others.
func TestSameChangeSameEvents(t *testing.T) {
	ref, err := reference.Parse("r.example.com/team/app:v1")
	if err != nil {
		t.Fatal(err)
	}
	digest := func(n int) string { return fmt.Sprintf("sha256:%064d", n) }
	tag, at := tags.New(ref), time.Date(2026, 5, 28, 10, 0, 0, 0, time.UTC)
	tag.UID, tag.ResourceVersion = "u", "5"
	tags.Lead(tag, ref, digest(1), metav1.NewTime(at))
	moved := tag.DeepCopy()
	moved.ResourceVersion = "7"
	tags.Lead(moved, ref, digest(2), metav1.NewTime(at))
	lost := moved.DeepCopy()
	lost.ResourceVersion = "9"
	tags.Lead(lost, ref, "", metav1.NewTime(at))
	seen := map[string]bool{}
	for _, c := range []struct {
		kubestore.Change
		want string
	}{
		{kubestore.Change{Rev: 5, After: tag}, "tag.moved  " + digest(1)},
		{kubestore.Change{Rev: 7, Before: tag, After: moved}, "tag.moved " + digest(1) + " " + digest(2)},
		{kubestore.Change{Rev: 9, Before: moved, After: lost}, "reference.gone  " + digest(2)},
		{kubestore.Change{Rev: 11, Before: moved, After: moved}, ""},
		{kubestore.Change{Rev: 12, Before: lost}, ""},
	} {
		first := maker{nothingRuns{}, func() time.Time { return at }}
		later := maker{nothingRuns{}, func() time.Time { return at.Add(time.Hour) }}
		one, err := first.events(t.Context(), c.Change)
		two, failed := later.events(t.Context(), c.Change)
		if err != nil || failed != nil || len(one) != len(two) {
			t.Fatalf("%v, %v, %v, %v", one, two, err, failed)
		}
		got := ""
		for i, e := range one {
			got = fmt.Sprint(string(e.Kind), " ", e.Data.Before, " ", e.Data.Image)
			if e.ID != two[i].ID || seen[e.ID] || e.Sequence != c.Rev {
				t.Errorf("%+v and %+v", e, two[i])
			}
			seen[e.ID] = true
		}
		if got != c.want {
			t.Errorf("revision %d is %q, want %q", c.Rev, got, c.want)
		}
	}
	if _, err := (&maker{}).events(t.Context(), kubestore.Change{Err: errors.New("damaged")}); err == nil {
		t.Error("damage is nothing")
	}
}

// A verdict that turns for a tag alone is told, with the tag; that for the digest, which stays, is
// not.
func TestVerdictOfATagIsTold(t *testing.T) {
	const repository, digest = "r.example.com/team/app", "sha256:0000000000000000000000000000000000000000000000000000000000000001"
	image := func(rv string, annotations map[string]string) *imagev1.Image {
		annotations[annotation.References] = `["` + repository + `:v1","` + repository + `:v2"]`
		annotations[annotation.Verdicts] = `{"` + repository + `":{"verified":"True"}}`
		return &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest, UID: "u", ResourceVersion: rv, Annotations: annotations}, DockerImageReference: repository + "@" + digest}
	}
	before := image("5", map[string]string{})
	after := image("7", map[string]string{annotation.TagVerdicts: `{"` + repository + `:v2":{"verified":"False","message":"it is for v1"}}`})
	m := maker{nothingRuns{}, time.Now}
	for _, tt := range []struct {
		before, after *imagev1.Image
		want          string
	}{
		{before, after, repository + ":v2@" + digest + " True False: The verdict on " + repository + ":v2@" + digest + " turned from True to False: it is for v1"},
		{after, before, repository + ":v2@" + digest + " False True: The verdict on " + repository + ":v2@" + digest + " turned from False to True"},
		{after, after, ""},
	} {
		all, err := m.events(t.Context(), kubestore.Change{Rev: 7, Before: tt.before, After: tt.after})
		got := ""
		for _, e := range all {
			got += fmt.Sprint(e.Subject, " ", e.Data.VerifiedBefore, " ", e.Data.Verified, ": ", e.Data.Message)
		}
		if got != tt.want || err != nil {
			t.Errorf("told is %q, %v, want %q", got, err, tt.want)
		}
	}
}

// A notification about a verdict has its cause: a policy that judges otherwise than before; or that
// nothing but the verdict changed, which only a sweep does; or a write of what it depends on.
func TestCauseIsTold(t *testing.T) {
	const repository, digest = "r.example.com/team/app", "sha256:0000000000000000000000000000000000000000000000000000000000000001"
	image := func(verified, stamp, namespaced string, signatures ...string) *imagev1.Image {
		i := &imagev1.Image{ObjectMeta: metav1.ObjectMeta{Name: digest, UID: "u", ResourceVersion: "7", Annotations: map[string]string{
			annotation.References: `["` + repository + `:v1"]`, annotation.Policy: stamp, annotation.NamespacePolicy: namespaced,
			annotation.Verdicts:          `{"` + repository + `":{"verified":"` + verified + `","policy":"ours,theirs"}}`,
			annotation.NamespaceVerdicts: `{"` + repository + `#team":{"verified":"` + verified + `","policy":"team/own"}}`,
		}}, DockerImageReference: repository + "@" + digest}
		for _, name := range signatures {
			i.Signatures = append(i.Signatures, imagev1.ImageSignature{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		return i
	}
	const judged, own = "ours@v1-aa,theirs@v1-bb", "team/own@v1-cc"
	renewed := image("False", judged, own)
	renewed.Annotations[annotation.Repositories] = `{"` + repository + `":{}}`
	for what, c := range map[string]struct {
		before, after *imagev1.Image
		want, inSpace string
	}{
		"an edit":                  {image("True", judged, own), image("False", "ours@v1-aa,theirs@v1-b2", own), "the policy theirs changed", string(imageruns.BySweep)},
		"an edit in the namespace": {image("True", judged, own), image("False", judged, "team/own@v1-c2"), string(imageruns.BySweep), "the policy team/own changed"},
		"other rules of a server":  {image("True", judged, own), image("False", "ours@v2-aa,theirs@v2-bb", "team/own@v2-cc"), string(imageruns.BySweep), string(imageruns.BySweep)},
		"a signature":              {image("Unsigned", judged, own), image("False", judged, own, digest+"@00"), "a signature came that does not count", "a signature came that does not count"},
		"an import":                {image("True", judged, own), renewed, string(imageruns.ByWrite), string(imageruns.ByWrite)},
	} {
		all, err := (&maker{nothingRuns{}, time.Now}).events(t.Context(), kubestore.Change{Rev: 7, Before: c.before, After: c.after})
		if err != nil || len(all) != 2 {
			t.Fatalf("%s: %+v, %v", what, all, err)
		}
		for _, e := range all {
			want := c.want
			if e.Data.Namespace == "team" {
				want = c.inSpace
			}
			if e.Data.Cause != want {
				t.Errorf("%s: in namespace %q it is told that %s, want %s", what, e.Data.Namespace, e.Data.Cause, want)
			}
		}
	}
}

// receiver takes events, unless it is away.
type receiver struct {
	*httptest.Server
	mu   sync.Mutex
	away bool
	got  []string // webhook-id and body
}

func newReceiver(t *testing.T) (*receiver, *notify.Notifier) {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.away {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		r.got = append(r.got, req.Header.Get("webhook-id")+" "+string(body))
	}))
	t.Cleanup(r.Close)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("whsec_"+base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	n, err := notify.New(notify.Options{Source: "https://s.example.com"}, []notify.Receiver{{Name: "ci", URL: r.URL, Insecure: true, SecretFile: secret}})
	if err != nil {
		t.Fatal(err)
	}
	return r, n
}

// A server that dies between sending an event and writing that down sends it again, as it was. What
// is put into the queue again because the position was not written is there once.
func TestKilledBetweenSentAndDone(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Date(2026, 5, 28, 10, 0, 0, 0, time.UTC))
	d := dbtest.Open(t, func(o *db.Options) { o.Clock = clock })
	r, n := newReceiver(t)
	event := notify.Event{Kind: notify.Moved, ID: "4711", Time: clock.Now(), Subject: "r.example.com/app:v1", Data: notify.Data{Message: "it moved"}}
	open := func() *spool.Outbox {
		s, err := spool.Open(d, spool.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return s.Outbox
	}
	s := open()
	for range 2 {
		if err := s.Enqueue(t.Context(), n.Jobs(event)); err != nil {
			t.Fatal(err)
		}
		event.Time = event.Time.Add(time.Second) // it is made again
	}
	send := func(s *spool.Outbox) *notify.Job {
		t.Helper()
		jobs, err := s.Claim(t.Context(), 10, time.Minute, nil)
		if err != nil || len(jobs) != 1 || len(jobs[0].Events) != 1 || jobs[0].Source != notify.To("ci") {
			t.Fatalf("%+v, %v", jobs, err)
		}
		if err := n.Do(t.Context(), jobs[0]); err != nil {
			t.Fatal(err)
		}
		return jobs[0]
	}
	send(s)
	s = open() // another process, which ends the lease
	sent := send(s)
	if err := s.Done(t.Context(), sent); err != nil {
		t.Fatal(err)
	}
	if err := s.Enqueue(t.Context(), n.Jobs(event)); err != nil {
		t.Fatal(err)
	}
	if depth, err := s.Depth(t.Context()); err != nil || depth[notify.To("ci")].Waiting != 0 {
		t.Errorf("what is done is there again: %+v, %v", depth, err)
	}
	if len(r.got) != 2 || r.got[0] != r.got[1] {
		t.Errorf("sent are %q", r.got)
	}
}

// What a receiver that is away for an hour does not take is tried until it does.
func TestReceiverAwayForAnHour(t *testing.T) {
	clock := testingclock.NewFakeClock(time.Date(2026, 5, 28, 10, 0, 0, 0, time.UTC))
	d := dbtest.Open(t, func(o *db.Options) { o.Clock = clock })
	r, n := newReceiver(t)
	queues, err := spool.Open(d, spool.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := queues.Outbox
	var want []string
	for i := range 3 {
		id := fmt.Sprint(i)
		want = append(want, id)
		if err := s.Enqueue(t.Context(), n.Jobs(notify.Event{Kind: notify.Moved, ID: id, Subject: "r.example.com/app:v" + id})); err != nil {
			t.Fatal(err)
		}
	}
	r.away = true
	start, attempts := clock.Now(), 0
	for taken := 0; taken < len(want); clock.Step(5 * time.Minute) { // the longest wait
		r.away = clock.Since(start) < time.Hour
		jobs, err := s.Claim(t.Context(), 10, time.Minute, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			attempts++
			if err := n.Do(t.Context(), j); err != nil {
				if err := s.Fail(t.Context(), j, job.Failure{Error: err.Error()}); err != nil {
					t.Fatal(err)
				}
				continue
			}
			taken++
			if err := s.Done(t.Context(), j); err != nil {
				t.Fatal(err)
			}
		}
	}
	var got []string
	for _, one := range r.got {
		got = append(got, one[:1])
	}
	slices.Sort(got)
	if !slices.Equal(got, want) || clock.Since(start) < time.Hour || attempts < 3*12 {
		t.Errorf("%q after %s and %d attempts", got, clock.Since(start), attempts)
	}
}

// listed is a Notifier with other receivers.
type listed struct {
	Notifier
	receivers *[]notify.To
}

func (l listed) Receivers() []notify.To { return *l.receivers }

// queued are the events that were put into the queue.
type queued struct{ events []notify.Notification }

func (q *queued) Enqueue(_ context.Context, events []notify.Notification) error {
	q.events = append(q.events, events...)
	return nil
}

// Whose history is gone are told that they missed something, and the next changes are those of the
// present. A Follower that starts again goes on where it was; one without receivers forgets where
// that is.
func TestMissedChanges(t *testing.T) {
	d := dbtest.Open(t)
	_, n := newReceiver(t)
	var from []int64
	told := &queued{}
	receivers := n.Receivers()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	clock := testingclock.NewFakeClock(time.Now())
	go func() {
		for ; t.Context().Err() == nil; time.Sleep(time.Millisecond) {
			clock.Step(time.Second)
		}
	}()
	o := Options{
		DB: d, Notifier: listed{n, &receivers}, Queue: told, Runs: nothingRuns{}, Clock: clock,
		Changes: feedFunc(func(rev int64) (*kubestore.Feed, error) {
			if from = append(from, rev); len(from) == 3 {
				stop()
			}
			return nil, db.ErrCompacted
		}),
	}
	start := d.Revision()
	if err := New(o).Run(ctx); err != nil {
		t.Fatal(err)
	}
	if len(from) != 3 || from[0] != start || from[1] <= start || from[2] <= from[1] {
		t.Errorf("changes are read from %v, at first %d", from, start)
	}
	if len(told.events) < 2 || told.events[0].Kind != notify.Missed || told.events[0].ID == told.events[1].ID {
		t.Errorf("told are %+v", told.events)
	}
	ctx, stop = context.WithCancel(t.Context())
	defer stop()
	receivers = nil
	f := New(o)
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	for { // until the position is gone
		if _, known, err := f.position(t.Context()); err != nil || !known {
			break
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
)

// watched is a Store that counts lists, and a Clusters that may fail. It demands that the records
// of a cluster are said not to be whole before one is deleted.
type watched struct {
	Store
	*knows
	t      *testing.T
	runs   map[string]imageruns.ImageRun // by name
	lists  int
	failed error // of SetRecords
}

func (w *watched) List(ctx context.Context, o *internalversion.ListOptions) (runtime.Object, error) {
	w.lists++
	return w.Store.List(ctx, o)
}

func (w *watched) SetRecords(ctx context.Context, cluster string, r clusters.ClusterRecords, known ...clusters.ClusterRecords) error {
	if w.failed != nil {
		return w.failed
	}
	if r.Since.Before(new(w.stored[cluster].Since)) {
		w.t.Errorf("records of %s are whole since %s, which was %s", cluster, r.Since, w.stored[cluster].Since)
	}
	return w.knows.SetRecords(ctx, cluster, r, known...)
}

func (w *watched) Delete(ctx context.Context, name string, v rest.ValidateObjectFunc, o *metav1.DeleteOptions) (runtime.Object, bool, error) {
	one := w.runs[name]
	last := one.Status.Until.Add(-time.Second)
	known, ok := w.stored[one.Spec.Cluster]
	if ok && len(imageruns.Window{From: last, Until: last}.Unknown(w.stored, nil, one.Spec.Cluster, expireNow)) == 0 {
		w.t.Errorf("%s is deleted, and a question about its last second is answered as if all was known since %s", name, known.Since)
	}
	return w.Store.Delete(ctx, name, v, o)
}

var expireNow = time.Date(2027, 6, 15, 12, 0, 0, 0, time.UTC)

// expiring returns a recorder of the clusters a and b that has just started, and what it writes to.
func expiring(t *testing.T, d *db.DB, all ...imageruns.ImageRun) (*Recorder, *watched) {
	w := &watched{Store: newStore(t, d), t: t, runs: map[string]imageruns.ImageRun{}, knows: &knows{stored: map[string]clusters.ClusterRecords{}, seen: map[string]time.Time{"a": expireNow, "b": expireNow}}}
	for name, days := range map[string]int{"a": 100, "b": 50} {
		w.stored[name] = clusters.ClusterRecords{Since: metav1.NewTime(expireNow.AddDate(0, 0, -days)), Until: metav1.NewTime(expireNow)}
	}
	r := New(Options{Store: w, Clusters: w, Clock: clocktesting.NewFakeClock(expireNow)})
	var writing errgroup.Group
	writing.SetLimit(writers)
	for _, one := range all {
		w.runs[one.Name] = one
		writing.Go(func() error { return r.store(context.Background(), &one) })
	}
	if err := writing.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := r.load(context.Background()); err != nil {
		t.Fatal(err)
	}
	return r, w
}

// ran is a stretch of an hour that ended a time ago; it goes on if that is negative.
func ran(name, cluster string, ago time.Duration) imageruns.ImageRun {
	until := metav1.NewTime(expireNow.Add(-ago))
	one := imageruns.ImageRun{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: imageruns.ImageRunSpec{
		Cluster: cluster, Workload: "Deployment/" + name, Container: "main", Image: "registry.example.com/app:v1", ImageID: "registry.example.com/app@" + digestOf(1), From: metav1.NewTime(until.Add(-time.Hour)),
	}, Status: imageruns.ImageRunStatus{Until: &until}}
	if ago < 0 {
		one.Spec.From, one.Status.Until = metav1.NewTime(expireNow.AddDate(0, 0, -99)), nil
	}
	return one
}

// again expires once more, after a time.
func (w *watched) again(r *Recorder, after time.Duration) (lists int) {
	w.t.Helper()
	w.lists = 0
	r.Clock.(*clocktesting.FakeClock).Step(after)
	if err := r.expire(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	return w.lists
}

func (w *watched) left() (names []string) {
	w.t.Helper()
	r := Recorder{Options: Options{Store: w.Store}}
	if err := r.each(context.Background(), fields.Everything(), func(one *imageruns.ImageRun) error {
		names = append(names, one.Name)
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return names
}

func (w *watched) want(names ...string) {
	w.t.Helper()
	if got := w.left(); !slices.Equal(got, names) {
		w.t.Errorf("kept %v, want %v", got, names)
	}
}

// some are stretches of two clusters that are followed and one that no longer is, by when they
// ended; those of that one ended before anything that is recorded of the others.
func some() []imageruns.ImageRun {
	return []imageruns.ImageRun{
		ran("r0", "gone", 150*day), ran("r1", "a", 90*day+time.Hour), ran("r2", "b", 40*day+time.Second), ran("r3", "a", 40*day), ran("r4", "b", 3*day),
		ran("r5", "a", 30*time.Hour), ran("r6", "b", 2*time.Hour), ran("r7", "b", time.Hour), ran("r8", "a", -1),
	}
}

// What ended before the time for which records are kept goes, and what goes on stays.
func TestExpireKeep(t *testing.T) {
	r, w := expiring(t, dbtest.Open(t), some()...)
	r.Limit(Limits{Keep: 200 * day, Most: 100})
	w.again(r, 0)
	w.want("r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8")
	if since := w.stored["a"].Since.Time; !since.Equal(expireNow.AddDate(0, 0, -100)) {
		t.Errorf("nothing was deleted, and records are whole since %s", since)
	}
	r.Pod("gone", "ns", "pod", &clusters.ClusterPodSpec{}) // it is followed again, and not recorded yet
	r.Limit(Limits{Keep: 40 * day, Most: 100})
	w.again(r, 0)
	w.want("r3", "r4", "r5", "r6", "r7", "r8")
	if known, ok := w.stored["gone"]; ok {
		t.Errorf("a cluster that is not recorded yet has whole records since %s", known.Since)
	}
	for name, since := range map[string]time.Time{"a": expireNow.Add(-90 * day), "b": expireNow.Add(-40 * day)} {
		if got := w.stored[name].Since.Time; !got.Equal(since) {
			t.Errorf("the records of %s are whole since %s, want %s", name, got, since)
		}
	}
	if lists := w.again(r, time.Second); lists != 0 {
		t.Errorf("%d lists although it is not time yet", lists)
	}
	w.again(r, expireEvery)
	w.want("r4", "r5", "r6", "r7", "r8")
	if lists := w.again(r, expireEvery); lists != 1 {
		t.Errorf("%d lists although there is nothing to delete", lists)
	}
}

// Those that ended first go first, up to what ended today. Those that go on stay, however many.
func TestExpireMost(t *testing.T) {
	r, w := expiring(t, dbtest.Open(t), some()...)
	for _, step := range []struct {
		most int64
		left []string
	}{
		{8, []string{"r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8"}},
		{4, []string{"r5", "r6", "r7", "r8"}},
		{2, []string{"r7", "r8"}},
		{1, []string{"r8"}},
	} {
		r.Limit(Limits{Keep: 400 * day, Most: step.most})
		w.again(r, 0)
		w.want(step.left...)
	}
	running := ran("s0", "a", -1)
	if err := r.store(context.Background(), &running); err != nil {
		t.Fatal(err)
	}
	w.again(r, expireEvery)
	w.want("r8", "s0")
}

// A stretch stays until its end no longer counts as whole, also if that fails at first.
func TestExpireFails(t *testing.T) {
	r, w := expiring(t, dbtest.Open(t), some()...)
	r.Limit(Limits{Keep: 40 * day, Most: 100})
	w.failed = errors.New("no")
	for range 2 {
		if err := r.expire(context.Background()); !errors.Is(err, w.failed) {
			t.Errorf("%v, want that records cannot be written", err)
		}
	}
	w.failed = nil
	w.again(r, 0)
	w.want("r3", "r4", "r5", "r6", "r7", "r8")
}

// A record that cannot be read does not keep others from being deleted, even if it is the first.
func TestExpireDamaged(t *testing.T) {
	d, err := db.Open(db.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	r, w := expiring(t, d, some()...)
	dbtest.Damage(t, d, "/tidewaiter.dev/imageruns/ns/r0")
	r.Limit(Limits{Keep: 400 * day, Most: 3})
	w.again(r, 0)
	w.want("r6", "r7", "r8")
}

// More stretches of a day than are deleted at once go in their order, batch by batch.
func TestExpireBatches(t *testing.T) {
	const n = 2*expireBatch + 100
	var all []imageruns.ImageRun
	for i := range n {
		at := i * 11 % n
		all = append(all, ran(fmt.Sprintf("r%04d", at), []string{"a", "b"}[i%2], 20*day+time.Duration(at)*time.Second))
	}
	all = append(all, ran("z", "a", 10*day))
	r, w := expiring(t, dbtest.Open(t), all...)
	r.Limit(Limits{Keep: 15 * day, Most: 10_000})
	for _, left := range []int{n - expireBatch, n - 2*expireBatch, 0} {
		before := r.oldest
		w.again(r, time.Second)
		got := w.left()
		if len(got) != left+1 || left > 0 && got[left-1] != fmt.Sprintf("r%04d", left-1) {
			t.Fatalf("%d are left, want the %d that ended last", len(got), left+1)
		}
		if !r.oldest.After(before) {
			t.Errorf("the oldest ended at %s, after %s was deleted", r.oldest, before)
		}
	}
	if lists := w.again(r, expireEvery); lists != 1 {
		t.Errorf("%d lists although there is nothing to delete", lists)
	}
}

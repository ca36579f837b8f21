package runs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
)

// observing is a server: it follows the clusters and counts, and records while it leads.
type observing struct {
	recorder *Recorder // nil while the server does not run
	store    Store
	*clusters.Clusters
	fills func() int64
	seen  map[string]time.Time
	away  map[string]bool // clusters that this server alone does not see
	told  map[string]map[podID]bool
}

func (o *observing) Names() []string               { return slices.Sorted(maps.Keys(o.seen)) }
func (o *observing) Seen(cluster string) time.Time { return o.seen[cluster] }

// servers is a world whose clusters several servers follow, or one that has backups.
type servers struct {
	*world
	all     []*observing
	leader  *observing // nil if none records
	hung    *observing // has led, and does not know yet that it does not any more
	saved   map[string]time.Time
	restore func() // puts the store back to what was saved
	save    func()
}

// open gives a server the store in a database.
func (s *servers) open(o *observing, d *db.DB) {
	scheme := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme) error{clusters.Install, imageruns.Install} {
		if err := install(scheme); err != nil {
			s.t.Fatal(err)
		}
	}
	getter := kubestore.NewGetter(d, serializer.NewCodecFactory(scheme), kubestore.Options{})
	store, err := imageruns.New(getter, scheme)
	if err != nil {
		s.t.Fatal(err)
	}
	if o.Clusters, err = clusters.New(getter, scheme, clusters.Options{}); err != nil {
		s.t.Fatal(err)
	}
	o.store, o.fills = store, d.Fills
}

// again calls do until it succeeds: a copy of a store that was put back is filled anew.
func (s *servers) again(do func() error) {
	s.t.Helper()
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		if err := do(); err == nil {
			return
		} else if time.Since(begun) > time.Minute {
			s.t.Fatal(err)
		}
	}
}

// until is the time up to which everything is recorded of a cluster.
func (s *servers) until(cluster string) time.Time {
	var records map[string]clusters.ClusterRecords
	s.again(func() (err error) {
		records, err = s.all[0].Records(context.Background())
		return err
	})
	if gaps := records[cluster].Unseen; len(gaps) > 0 && gaps[len(gaps)-1].Until == nil {
		return gaps[len(gaps)-1].From.Time
	}
	return records[cluster].Until.Time
}

// sight notes which clusters nobody sees and records. Those that are no longer seen were last
// recorded at from.
func (s *servers) sight(from func(cluster string) time.Time) {
	for _, c := range s.clusters {
		if s.leader == nil || c.away || s.leader.away[c.name] {
			s.miss(c, from(c.name))
		} else if n := len(c.unseen); n > 0 && c.unseen[n-1].until.IsZero() {
			c.unseen[n-1].until = s.now()
		}
	}
}

func (s *servers) rightNow(string) time.Time { return s.now() }

// starts starts a server, which does not lead yet.
func (s *servers) starts(o *observing) {
	o.recorder = New(Options{Store: o.store, Clusters: o, Verdicts: verdictsOf(func(image string) string { return s.verdict[image] }), Fills: o.fills, Clock: s.clock})
	o.told = map[string]map[podID]bool{}
	for _, c := range s.clusters {
		s.sees(o, c)
	}
}

// sees lets a server list the pods of a cluster, if it can.
func (s *servers) sees(o *observing, c *simulated) {
	if o.recorder == nil || o == s.hung || c.away || o.away[c.name] {
		return
	}
	for id := range o.told[c.name] {
		if c.pods[id] == nil {
			o.recorder.Pod(c.name, id.namespace, id.name, nil)
		}
	}
	o.told[c.name] = map[podID]bool{}
	for id, p := range c.pods {
		o.recorder.Pod(c.name, id.namespace, id.name, p)
		o.told[c.name][id] = true
	}
	o.recorder.Current(c.name, s.now())
	o.seen[c.name] = s.now()
}

// leads lets a server record.
func (s *servers) leads(o *observing) {
	s.again(func() error { return o.recorder.load(context.Background()) })
	s.leader = o
	s.sight(s.rightNow)
}

// pod makes, replaces or deletes a pod, of which each server hears that sees its cluster.
func (s *servers) pod(c *simulated, id podID, p *clusters.ClusterPodSpec) {
	if p == nil {
		delete(c.pods, id)
	} else {
		c.pods[id] = p
	}
	s.note(c)
	for _, o := range s.all {
		if o.recorder == nil || o == s.hung || c.away || o.away[c.name] {
			continue
		}
		o.recorder.Pod(c.name, id.namespace, id.name, p)
		if o.told[c.name][id] = true; p == nil {
			delete(o.told[c.name], id)
		}
	}
}

// turns lets a server lose sight of a cluster, or find it again.
func (s *servers) turns(o *observing, c *simulated, away bool) {
	switch {
	case o.recorder == nil || o == s.hung:
	case away:
		o.recorder.Away(c.name, s.now())
	default:
		s.sees(o, c)
	}
}

// writes lets the leader write.
func (s *servers) writes(all bool) {
	if s.leader == nil {
		return
	}
	for _, c := range s.clusters {
		if !c.away && !s.leader.away[c.name] {
			s.leader.seen[c.name] = s.now()
		}
	}
	r := s.leader.recorder
	s.again(func() error { // as Run does
		err := r.flush(context.Background(), all, true)
		if errors.Is(err, clusters.ErrRecordsChanged) || errors.Is(err, errFilled) {
			r.stop()
			s.again(func() error { return r.load(context.Background()) })
		}
		return err
	})
	s.noteVerdicts()
}

// step is something that happens.
func (s *servers) step() {
	c := s.clusters[s.rand.IntN(len(s.clusters))]
	o := s.all[s.rand.IntN(len(s.all))]
	rarely := s.rand.IntN(3) == 0
	switch s.rand.IntN(20) {
	case 0: // the cluster goes away, or comes back
		if !c.away && !rarely {
			return
		}
		c.away = !c.away
		for _, o := range s.all {
			if !o.away[c.name] {
				s.turns(o, c, c.away)
			}
		}
		s.sight(s.rightNow)
	case 1: // one server does not see it, or sees it again
		if !o.away[c.name] && !rarely {
			return
		}
		o.away[c.name] = !o.away[c.name]
		if !c.away {
			s.turns(o, c, o.away[c.name])
		}
		s.sight(s.rightNow)
	case 2: // a server is killed, maybe before it has written what it has seen
		if o.recorder == nil || !rarely && o == s.leader {
			return
		}
		s.happens(c, s.pod)
		if o.recorder = nil; o == s.hung {
			s.hung = nil
		}
		if o == s.leader {
			s.leader = nil
			s.sight(s.until) // everything up to the last confirmation is recorded
		}
	case 3: // the leader ends in order
		if s.leader != nil && rarely {
			s.ends(s.leader)
			s.leader.recorder, s.leader = nil, nil
			s.sight(s.rightNow)
		}
	case 4: // the leader hangs, or what hung goes on: it writes once more before it knows
		switch {
		case s.hung != nil && s.leader != nil:
			o, s.hung = s.hung, nil
			s.ends(o)
			for _, c := range s.clusters {
				o.recorder.Away(c.name, o.seen[c.name])
				s.sees(o, c)
			}
		case s.hung == nil && s.leader != nil && len(s.all) > 1 && rarely:
			s.happens(c, s.pod)
			s.hung, s.leader = s.leader, nil
			s.sight(s.until)
		}
	case 5, 6, 7: // a server starts, and one leads
		if o.recorder == nil {
			s.starts(o)
		}
		if s.leader == nil && o != s.hung {
			s.leads(o)
		}
	case 8:
		if s.leader != nil && rarely {
			s.saved = map[string]time.Time{}
			for _, c := range s.clusters {
				s.saved[c.name] = s.until(c.name)
			}
			s.save()
		}
	case 9:
		if s.saved != nil && rarely && s.rand.IntN(3) == 0 {
			s.restore()
			s.saved = nil
		}
	default:
		s.happens(c, s.pod)
	}
}

// ends lets a recorder end as Run does.
func (s *servers) ends(o *observing) {
	_ = o.recorder.flush(context.Background(), true, false) // another one may record by now
	o.recorder.stop()
}

// forgets notes that what was recorded since the store was saved is lost.
func (s *servers) forgets() {
	for _, c := range s.clusters {
		from := s.saved[c.name]
		for n := len(c.unseen); n > 0 && (c.unseen[n-1].until.IsZero() || !c.unseen[n-1].until.Before(from)); n-- {
			if c.unseen[n-1].from.Before(from) {
				from = c.unseen[n-1].from
			}
			c.unseen = c.unseen[:n-1]
		}
		s.miss(c, from)
	}
}

// What several servers over one store record is what ran, with every gap said: servers are killed,
// lead in turn, and hang and go on; each loses sight of clusters; the store is put back to an
// earlier state while they run.
func TestOracleOfServers(t *testing.T) {
	for range *oracles {
		seed := cmp.Or(*oracleSeed, rand.Uint64())
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			truth := dbtest.NewTruth()
			s := newServers(t, seed)
			for range 3 {
				s.open(s.serve(), dbtest.OpenOptions(t, db.Options{Dir: t.TempDir(), Truth: truth}))
			}
			var rev int64
			s.save = func() { rev, _ = truth.Head(context.Background()) }
			s.restore = func() {
				truth.Restore(rev, 1_000_000)
				s.forgets()
				s.clock.SetTime(s.now().Add(time.Duration(s.rand.IntN(60)) * time.Second))
				if s.writes(true); s.leader != nil {
					s.sight(s.rightNow)
				}
			}
			s.run()
		})
	}
}

// The same of one server whose database is put back to a backup, over and over.
func TestOracleOfBackups(t *testing.T) {
	for range *oracles {
		seed := cmp.Or(*oracleSeed, rand.Uint64())
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s, dir := newServers(t, seed), t.TempDir()
			o := s.serve()
			d, err := db.Open(db.Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = d.Close() })
			s.open(o, d)
			file, n := "", 0
			s.save = func() {
				n++
				file = filepath.Join(t.TempDir(), fmt.Sprintf("%d.db", n))
				if err := backup.Make(t.Context(), dir, file); err != nil {
					t.Fatal(err)
				}
			}
			s.restore = func() {
				o.recorder, s.leader = nil, nil
				s.forgets()
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
				dir = t.TempDir()
				if err := backup.Restore(t.Context(), file, dir); err != nil {
					t.Fatal(err)
				}
				if d, err = db.Open(db.Options{Dir: dir}); err != nil {
					t.Fatal(err)
				}
				s.open(o, d)
			}
			s.run()
		})
	}
}

// A store that is filled anew may lack stretches though it has the records that this server wrote
// last: they were written after these. What runs is recorded again, and a gap says what is lost.
func TestFillWithTheSameRecords(t *testing.T) {
	truth, s := dbtest.NewTruth(), newServers(t, 1)
	o := s.serve()
	d := dbtest.OpenOptions(t, db.Options{Dir: t.TempDir(), Truth: truth})
	s.open(o, d)
	s.store = o.store
	s.starts(o)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := o.recorder.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	defer running.Wait()
	defer stop()
	await := func(what string, step time.Duration, done func() bool) {
		t.Helper()
		for begun := time.Now(); !done(); time.Sleep(time.Millisecond) {
			if s.clock.Step(step); time.Since(begun) > time.Minute {
				t.Fatal(what)
			}
		}
	}
	c := s.clusters[0]
	await("not all is recorded", 0, func() bool {
		return !slices.ContainsFunc(s.clusters, func(c *simulated) bool { return s.until(c.name).IsZero() })
	})
	records := func() clusters.ClusterRecords {
		var all map[string]clusters.ClusterRecords
		s.again(func() (err error) {
			all, err = o.Records(t.Context())
			return err
		})
		return all[c.name]
	}
	before, known := d.Fills(), records()
	rev, err := truth.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.pod(c, podID{"ns0", "app0-0"}, s.running(c, podID{"ns0", "app0-0"}, 0, 1))
	stored := func() bool {
		obj, err := o.store.List(genericapirequest.WithNamespace(t.Context(), metav1.NamespaceAll), &internalversion.ListOptions{})
		return err == nil && len(obj.(*imageruns.ImageRunList).Items) == 1 // it fails while the copy is filled
	}
	s.clock.Step(flushEvery) // once: a minute later, the records would be written, too
	await("what began is not recorded", 0, stored)
	lost := s.now()
	if got := records(); !got.Same(known) {
		t.Fatalf("the records changed from %+v to %+v: this shows little", known, got)
	}
	truth.Restore(rev, 1_000_000)
	await("the store was put back, and what was lost is not recorded again", slow, func() bool { return d.Fills() > before && stored() })
	if got := records(); len(got.GapsIn(lost, lost)) == 0 {
		t.Errorf("it is not said that what was recorded at %s is lost: %+v", lost, got)
	}
}

// newServers is a world of three clusters without servers.
func newServers(t *testing.T, seed uint64) *servers {
	return &servers{world: newWorld(t, seed)}
}

// serve adds a server that does not run yet.
func (s *servers) serve() *observing {
	o := &observing{seen: map[string]time.Time{}, away: map[string]bool{}}
	for _, c := range s.clusters {
		o.seen[c.name] = s.now()
	}
	s.all = append(s.all, o)
	return o
}

// run lets 600 things happen, and checks what was recorded.
func (s *servers) run() {
	begun := s.now()
	for _, o := range s.all {
		s.starts(o)
	}
	s.leads(s.all[0])
	s.writes(true)
	for range 600 {
		s.clock.SetTime(s.now().Add(time.Duration(2+s.rand.IntN(900)) * time.Second))
		s.step()
		s.writes(s.rand.IntN(3) == 0)
	}
	for _, o := range s.all {
		o.away = map[string]bool{}
	}
	for _, c := range s.clusters {
		c.away = false
	}
	s.hung = nil
	for _, o := range s.all {
		s.starts(o)
	}
	s.leads(s.all[len(s.all)-1])
	s.writes(true)
	for _, o := range s.all {
		s.store = o.store
		s.check(begun, o)
	}
}

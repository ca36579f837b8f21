package queue_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer/listing"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
)

// catalogOf makes a registry list these repositories, or refuse to if they are nil.
func catalogOf(registry *registrytest.Registry, listed func() []string) {
	registry.Inject("GET /v2/_catalog", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			names := listed()
			if names == nil {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			all := slices.DeleteFunc(names, func(name string) bool { return name <= req.FormValue("last") })
			_ = json.NewEncoder(w).Encode(map[string]any{"repositories": all})
		})
	})
}

// prepareLogged is prepareWorker with a log that the test reads.
func prepareLogged(t *testing.T) (*workerTest, queue.Options, *bytes.Buffer) {
	t.Helper()
	w, o := prepareWorker(t)
	log := &bytes.Buffer{}
	o.Logger = slog.New(slog.NewTextHandler(log, nil))
	before := slog.Default()
	slog.SetDefault(o.Logger) // repeated warnings are bounded, and go there
	t.Cleanup(func() { slog.SetDefault(before) })
	return w, o, log
}

// Repositories that nobody named are found by a pattern, and what was in those that vanish is gone.
func TestSweepFindsRepositories(t *testing.T) {
	w, o, log := prepareLogged(t)
	o.Sweep.Repositories = []string{w.registry.Host + "/team/**", w.registry.Host + "/team/app"}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	catalogOf(w.registry, func() []string { return slices.Clone(listed) })
	sweep := func(names ...string) string {
		t.Helper()
		listed = names
		log.Reset()
		worker.SweepOnce(t.Context())
		return log.String()
	}
	says := func(text string, want ...string) {
		t.Helper()
		for _, one := range want {
			if !strings.Contains(text, one) {
				t.Errorf("the log lacks %q:\n%s", one, text)
			}
		}
	}
	a, b := w.push("team/app:1.0", "a"), w.push("team/lib:1.0", "b")
	w.push("other/app:1.0", "c") // matches no pattern
	says(sweep("other/app", "team/app", "team/lib"), "msg=Swept", "of=2")
	w.expect("images", w.images.Names(), sorted([]string{a, b}))

	d := w.push("team/deep/new:1.0", "d")
	says(sweep("other/app", "team/app", "team/deep/new", "team/lib"), `msg="A registry has new repositories"`, "count=1", "repositories=team/deep/new")
	w.expect("images with the new one", w.images.Names(), sorted([]string{a, b, d}))

	// A registry that does not list its repositories: those that are known are swept.
	b2 := w.push("team/lib:2.0", "b2")
	says(sweep(), "a sweep finds no new repositories", "name the repositories one by one", "of=3")
	w.expect("images without a list", w.images.Names(), sorted([]string{a, b, b2, d}))

	// One has vanished: first it does not answer, then it is gone.
	w.delete("team/lib", "1.0")
	w.delete("team/lib", b)
	w.registry.Inject("GET /v2/team/lib/tags/list", 0, registrytest.Status(503, "UNAVAILABLE"))
	says(sweep("other/app", "team/app", "team/deep/new"), `msg="Repositories have vanished from a registry"`, "repositories=team/lib")
	w.expect("gone, while it is not known", w.gone(b), nil)
	w.registry.Heal()
	catalogOf(w.registry, func() []string { return slices.Clone(listed) })
	sweep("other/app", "team/app", "team/deep/new")
	w.expect("gone", w.gone(b), []string{"team/lib:1.0", "team/lib@" + b})
	w.registry.Reset()
	sweep("other/app", "team/app", "team/deep/new")
	if n := w.registry.Count("GET /v2/team/lib/"); n != 0 {
		t.Errorf("what vanished is asked for %d times", n)
	}

	// The registry has lost its storage.
	says(sweep("other/app"), "level=ERROR", "it may have lost its storage", "count=1")
}

// A registry that is away is said to be away, not to have no list.
func TestSweepSaysThatARegistryDoesNotAnswer(t *testing.T) {
	w, o, log := prepareLogged(t)
	o.Sweep.Repositories = []string{w.registry.Host + "/team/**"}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.registry.Server().Close()
	worker.SweepOnce(t.Context())
	if text := log.String(); !strings.Contains(text, "a sweep leaves a registry that does not answer") || strings.Contains(text, "no new repositories") {
		t.Errorf("the log has %s", text)
	}
}

// What patterns name, and which are refused.
func TestSweepPatterns(t *testing.T) {
	for _, tc := range []struct {
		pattern, path string
		want          bool
	}{
		{"r.example.com/**", "team/app", true},
		{"r.example.com/*", "team/app", false},
		{"r.example.com/team/*", "team/app", true},
		{"r.example.com/team/*", "team/deep/app", false},
		{"r.example.com/team/**", "team/deep/app", true},
		{"r.example.com/team/**", "team", false},
		{"r.example.com/team/*", "teams/app", false},
		{"r.example.com/team-?/app", "team-a/app", true},
		{"r.example.com/team-?/app", "team-a/apps", false},
	} {
		if got := queue.SweepMatches(tc.pattern, tc.path); got != tc.want {
			t.Errorf("%s for %s: %t", tc.pattern, tc.path, got)
		}
	}
	for _, bad := range []string{"*", "*/app", "*.example.com/app", "r.example.com*", "r.example.com/App*", "r.example.com/app:*", "r.example.com/app@*", "r.example.com//*", "r.example.com/**/app", "https://r.example.com/*"} {
		if err := (queue.SweepOptions{Repositories: []string{bad}}).Validate(); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// Through creations and deletions, what sweeps by a pattern alone know is what the storage has,
// whichever list of the registry they read.
func TestSweepsFollowTheStorage(t *testing.T) {
	for kind, serve := range map[listing.Kind]func(*registrytest.Registry, registrytest.Lists){
		listing.Catalog: nil, listing.Harbor: (*registrytest.Registry).ServeHarbor, listing.GitLab: (*registrytest.Registry).ServeGitLab,
		listing.Gitea: (*registrytest.Registry).ServeGitea, listing.Quay: (*registrytest.Registry).ServeQuay, listing.Zot: (*registrytest.Registry).ServeZot,
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			followStorage(t, 60, 6, kind, serve)
		})
	}
}

// The same of 1,000 repositories, in pages of the catalog.
func TestSweepsFollowAThousandRepositories(t *testing.T) {
	t.Parallel()
	followStorage(t, 1000, 4, listing.Catalog, nil)
}

func followStorage(t *testing.T, repositories, rounds int, kind listing.Kind, serve func(*registrytest.Registry, registrytest.Lists)) {
	w, o := prepareWorker(t)
	entry := queue.SweepEntry{Listing: string(kind)}
	for i := range 7 {
		entry.Repositories = append(entry.Repositories, fmt.Sprintf("%s/team%d/**", w.registry.Host, i))
	}
	o.Sweep.Entries = []queue.SweepEntry{entry}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	stored := map[string]string{} // the digest of each repository's one image
	names := func() []string { return append([]string{"public/other"}, slices.Sorted(maps.Keys(stored))...) }
	if serve == nil {
		catalogPaged(w.registry, 100, names)
	} else {
		// Everybody sees all: what needs credentials is the importer's to test.
		serve(w.registry, registrytest.Lists{Names: names, Public: true})
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	appeared, deleted := 0, 0
	for round := range rounds {
		for i := range repositories {
			name := fmt.Sprintf("team%d/app%d", i%7, i)
			digest, is := stored[name]
			switch roll := random.IntN(4); {
			case !is && (roll > 0 || round == 0):
				stored[name] = w.push(name+":v1", fmt.Sprintf("%s %d", name, round))
				appeared++
			case is && roll == 0:
				w.delete(name, "v1")
				w.delete(name, digest)
				delete(stored, name)
				deleted++
			}
		}
		worker.SweepOnce(t.Context())
		known := map[string]string{}
		for _, digest := range w.images.Names() {
			gone := w.gone(digest)
			for _, ref := range w.references(digest) {
				if strings.HasSuffix(ref, ":v1") && !slices.Contains(gone, ref) {
					known[ref] = digest
				}
			}
		}
		if storage := w.registry.Stored(); len(storage) != len(stored) || !maps.Equal(known, storage) {
			t.Fatalf("seed %d, round %d: known are %d, the storage has %d: %s", seed, round, len(known), len(storage), cmp.Diff(storage, known))
		}
	}
	if len(worker.Losses()) > 0 {
		t.Errorf("seed %d: %v", seed, worker.Losses())
	}
	t.Logf("%d repositories appeared, and %d were deleted", appeared, deleted)
}

// catalogPaged makes a registry list repositories in pages, with links.
func catalogPaged(registry *registrytest.Registry, size int, listed func() []string) {
	registry.Inject("GET /v2/_catalog", 0, func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			all := slices.DeleteFunc(listed(), func(name string) bool { return name <= req.FormValue("last") })
			if len(all) > size {
				all = all[:size]
				w.Header().Set("Link", fmt.Sprintf(`</v2/_catalog?last=%s&n=%d>; rel="next"`, url.QueryEscape(all[size-1]), size))
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"repositories": all})
		})
	})
}

// A sweep of a thousand unchanged repositories with a tag each costs a page of Harbor's list for
// each hundred, and one for what each repository has. An account that may not see that costs the
// list of its tags and a HEAD instead, beside the search for signatures.
func TestRequestsOfAThousandUnchangedRepositories(t *testing.T) {
	const repositories = 1000
	for name, tc := range map[string]struct {
		isClosed          bool
		lists, tags, most int
	}{
		"seen":   {false, 10 + 1 + repositories, 0, 10 + 1 + repositories + 1},
		"hidden": {true, 10 + 1, repositories, 10 + 1 + 3*repositories + 1}, // the test's finder sends one for each image
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, o := prepareWorker(t)
			o.Sweep.Entries = []queue.SweepEntry{{Repositories: []string{w.registry.Host + "/**"}, Listing: "harbor"}}
			var names []string
			for i := range repositories {
				names = append(names, fmt.Sprintf("team/app%04d", i))
				w.push(names[i]+":v1", names[i])
			}
			w.registry.ServeHarbor(registrytest.Lists{Names: func() []string { return names }, Public: true, Closed: tc.isClosed})
			worker, err := queue.New(o)
			if err != nil {
				t.Fatal(err)
			}
			worker.SweepOnce(t.Context())
			writes := len(w.images.Writes())
			w.registry.Reset()
			worker.SweepOnce(t.Context())
			count := func(pattern string) int { return w.registry.Count(pattern) }
			lists, tags, heads, all := count("GET /api/"), count("tags/list"), count("^HEAD "), len(w.registry.AllRequests())
			if lists != tc.lists || tags != tc.tags || heads != tc.tags || all > tc.most {
				t.Errorf("%d lists, %d lists of tags, %d HEADs, %d requests in all", lists, tags, heads, all)
			}
			if n := len(w.images.Writes()) - writes; n != 0 {
				t.Errorf("%d writes of nothing new", n)
			}
		})
	}
}

// Each entry has its own times: all begin at once, and a time that was missed comes once.
func TestEntriesHaveTheirOwnTimes(t *testing.T) {
	host := "r.example.com/"
	due, err := queue.Schedule(queue.SweepOptions{Every: 3 * time.Hour, Entries: []queue.SweepEntry{
		{Repositories: []string{host + "quick"}, Every: time.Hour}, {Repositories: []string{host + "same"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for _, tc := range []struct {
		after time.Duration
		want  string
		next  time.Duration
	}{
		{0, "[base quick same]", time.Hour},
		{59 * time.Minute, "[]", time.Hour},
		{time.Hour, "[quick]", 2 * time.Hour},
		{2*time.Hour + time.Minute, "[quick]", 3 * time.Hour},
		{3 * time.Hour, "[base quick same]", 4 * time.Hour},
		{5*time.Hour + 30*time.Minute, "[quick]", 6 * time.Hour},
		{13 * time.Hour, "[base quick same]", 14 * time.Hour},
		{15 * time.Hour, "[base quick same]", 16 * time.Hour},
	} {
		all, next := due(start.Add(tc.after))
		if fmt.Sprint(all) != tc.want || next.Sub(start) != tc.next {
			t.Errorf("after %v: %v, next after %v, want %s after %v", tc.after, all, next.Sub(start), tc.want, tc.next)
		}
	}
}

// An entry is swept when the server begins, and again after its interval.
func TestEntriesAreSweptAgain(t *testing.T) {
	w, o := prepareWorker(t)
	clock := clocktesting.NewFakeClock(time.Now())
	o.Clock, o.Sweep.Every = clock, 1000*time.Hour
	o.Sweep.Entries = []queue.SweepEntry{{Repositories: []string{w.registry.Host + "/team/*"}, Every: time.Hour}}
	catalogOf(w.registry, func() []string { return []string{"team/app"} })
	want := []string{w.push("team/app:v1", "a")}
	w.run(o)
	eventually(t, "the image of the first sweep", func() bool { return slices.Equal(w.images.Names(), want) })
	want = sorted(append(want, w.push("team/app:v2", "b")))
	eventually(t, "the image of the next sweep", func() bool {
		clock.Step(time.Hour)
		return slices.Equal(w.images.Names(), want)
	})
}

// Mistakes in entries are refused, with the key.
func TestSweepEntries(t *testing.T) {
	many := slices.Repeat([]queue.SweepEntry{{Repositories: []string{"r.example.com/a"}}}, 101)
	for want, bad := range map[string]queue.SweepEntry{
		"entries[1].listing: \"habor\" is no kind of list":               {Repositories: []string{"r.example.com/**"}, Listing: "habor"},
		"did you mean harbor?":                                           {Repositories: []string{"r.example.com/**"}, Listing: "habor"},
		"entries[1].listing: it is for patterns":                         {Repositories: []string{"r.example.com/a"}, Listing: "harbor"},
		"entries[1].every: 1s is less than 1m0s":                         {Repositories: []string{"r.example.com/a"}, Every: time.Second},
		"entries[1].repositories: an entry names repositories":           {Every: time.Hour},
		"entries[1].repositories[1]: \"**\" does not begin with a group": {Repositories: []string{"r.example.com/acme/**", "r.example.com/**"}, Listing: "gitlab"},
		"entries[1].most: 100001 is not between 1 and 100000":            {Repositories: []string{"r.example.com/**"}, Most: 100_001},
	} {
		err := (queue.SweepOptions{Entries: []queue.SweepEntry{{Repositories: []string{"r.example.com/a"}}, bad}}).Validate()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := (queue.SweepOptions{Entries: many}).Validate(); err == nil || !strings.Contains(err.Error(), "entries: there are 101, at most 100 are allowed") {
		t.Error(err)
	}
}

// More repositories than an entry allows are left out, and that is said.
func TestSweepSaysWhatItLeavesOut(t *testing.T) {
	w, o := prepareWorker(t)
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	o.Sweep.Entries = []queue.SweepEntry{{Repositories: []string{w.registry.Host + "/team/*"}, Most: 2}}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	catalogOf(w.registry, func() []string { return []string{"team/a", "team/b", "team/c"} })
	a, b := w.push("team/a:1", "a"), w.push("team/b:1", "b")
	w.push("team/c:1", "c")
	worker.SweepOnce(t.Context())
	w.expect("images", w.images.Names(), sorted([]string{a, b}))
	if !strings.Contains(log.String(), "matching=3 most=2 last=team/b") {
		t.Error(log.String())
	}
}

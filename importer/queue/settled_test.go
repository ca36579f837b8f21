package queue_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/queue"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

// confirmed counts what is confirmed of tags.
type confirmed struct {
	importer.Tagged
	checks map[string]time.Time
}

func (c *confirmed) ConfirmTags(_ context.Context, checks []tags.Check) error {
	for _, check := range checks {
		_, tag, _ := strings.Cut(check.Reference, "/")
		c.checks[tag+"@"+check.Digest] = check.At
	}
	return nil
}

// A repository of which Harbor's own list says what it said before costs one request, whatever it
// has; its tags count as confirmed. A change of any kind is found by the next sweep.
func TestSweepOfSettledRepositories(t *testing.T) {
	w, o := prepareWorker(t)
	clock := clocktesting.NewFakeClock(time.Now())
	images := &confirmed{w.images, map[string]time.Time{}}
	lists := registrytest.Lists{Public: true, Names: func() []string { return []string{"cache/app", "team/app"} }, Caches: []string{"cache"}}
	w.registry.ServeHarbor(lists)
	o.Clock, o.Images = clock, images
	o.Sweep.Entries = []queue.SweepEntry{{Repositories: []string{w.registry.Host + "/**"}, Listing: "harbor"}}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	const n = 30
	digests := map[string]string{}
	for i := range n {
		tag := fmt.Sprintf("team/app:%d", i)
		digests[tag] = w.push(tag, tag)
	}
	w.push("cache/app:1.0", "cached")
	// sweep returns the requests about team/app, and fails if there is none about the cache.
	sweep := func(t *testing.T) (requests string) {
		t.Helper()
		clock.Step(time.Hour)
		w.registry.Reset()
		worker.SweepOnce(t.Context())
		if w.registry.Count("HEAD /v2/cache/app/manifests/1.0")+w.registry.Count("GET /v2/cache/app/manifests/1.0") == 0 {
			t.Error("a tag of a cache is not asked for")
		}
		return fmt.Sprintf("%d lists, %d tag lists, %d tags, %d signatures", w.registry.Count("GET /api/v2.0/projects/team/repositories/app/artifacts"),
			w.registry.Count("GET /v2/team/app/tags/list"), w.registry.Count("^HEAD /v2/team/app/manifests/[0-9]+$"), w.registry.Count("/v2/team/app/manifests/sha256-.*sig$"))
	}
	const nothing = "1 lists, 0 tag lists, 0 tags, 0 signatures"
	all := func(tags int) string { return fmt.Sprintf("1 lists, 1 tag lists, %d tags, %[1]d signatures", tags) }
	expect := func(t *testing.T, want string) {
		t.Helper()
		if got := sweep(t); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	sweep(t)
	expect(t, nothing)
	clear(images.checks)
	began := time.Now() // the importer has this clock
	expect(t, nothing)
	for tag, digest := range digests {
		if at := images.checks[tag+"@"+digest]; at.Before(began) {
			t.Errorf("%s counts as confirmed at %s, want after %s", tag, at, began)
		}
	}

	// A tag that moves.
	moved := w.push("team/app:3", "moved")
	expect(t, all(n))
	w.expect("what the tag leads to", w.references(moved), []string{"team/app:3"})
	expect(t, nothing)
	// A signature that is pushed later, and another one in its place.
	for _, content := range []string{"signature", "another"} {
		w.push("team/app:"+strings.Replace(moved, ":", "-", 1)+".sig", content)
		expect(t, all(n))
		if got := len(w.image(moved).Signatures); got != 1 {
			t.Errorf("%d signatures", got)
		}
		expect(t, nothing)
	}
	// A tag that is deleted.
	w.delete("team/app", "4")
	sweep(t)
	w.expect("gone", w.gone(digests["team/app:4"]), []string{"team/app:4"})
	expect(t, nothing)
	// A webhook told of a move, and nothing of the move back: the list says what it said.
	other := w.push("team/app:5", "other")
	if _, err := o.Importer().Import(t.Context(), reference.Reference{Host: w.registry.Host, Repository: "team/app", Tag: "5"}, w.images); err != nil {
		t.Fatal(err)
	}
	w.expect("what the tag leads to", w.references(other), []string{"team/app:5"})
	w.push("team/app:5", "team/app:5")
	expect(t, all(n-1))
	w.expect("what the tag leads to", w.references(digests["team/app:5"]), []string{"team/app:5"})
	expect(t, nothing)

	// A registry that takes a day to answer otherwise is asked.
	clock.Step(24 * time.Hour)
	expect(t, all(n-1))
	expect(t, nothing)
}

// A sweep that could not ask for all asks again, and so does one whose account may not see the
// list: which is said, and costs one request for each project.
func TestSweepOfRepositoriesThatAreNotSettled(t *testing.T) {
	w, o := prepareWorker(t)
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	w.registry.ServeHarbor(registrytest.Lists{Public: true, Names: func() []string { return []string{"team/app"} }})
	o.Sweep.Entries = []queue.SweepEntry{{Repositories: []string{w.registry.Host + "/**"}, Listing: "harbor"}}
	worker, err := queue.New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.push("team/app:1", "a")
	w.push("team/app:2", "b")
	asked := func() int {
		w.registry.Reset()
		worker.SweepOnce(t.Context())
		return w.registry.Count("/v2/team/app/manifests/[12]$")
	}
	w.registry.Inject("GET /v2/team/app/manifests/2", 0, registrytest.Status(403, "DENIED"))
	for range 2 {
		if n := asked(); n < 2 {
			t.Errorf("%d tags are asked for after a sweep that missed one", n)
		}
	}
	w.registry.Heal()
	w.registry.ServeHarbor(registrytest.Lists{Public: true, Closed: true, Names: func() []string { return []string{"team/app", "team/lib"} }})
	w.push("team/lib:1", "c")
	for range 2 {
		if n := asked(); n != 2 {
			t.Errorf("%d tags are asked for without a list", n)
		}
	}
	if n := w.registry.Count("GET /api/v2.0/projects/team"); n != 1 {
		t.Errorf("%d requests for a project that is hidden", n)
	}
	if want := "because the registry's own list cannot be read"; !strings.Contains(log.String(), want) {
		t.Errorf("the log lacks %q:\n%s", want, &log)
	}
}

package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/backup"
	"github.com/tidewaiter/tidewaiter/db/datafile"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
	"github.com/tidewaiter/tidewaiter/imageapi/registry/imagetag"
	"github.com/tidewaiter/tidewaiter/internal/image/tags"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/server"
)

var moments = flag.Int("moments", 20, "at how many random moments TestDoorsToThePast asks every door")

// past is what was recorded in some days: stretches with their verdicts, the gaps of clusters, and
// where tags led. What a door should say is computed from it moment by moment, without indexes and
// windows.
type past struct {
	begun, ended time.Time
	since        time.Time // before, records are not whole
	runs         []imageruns.ImageRun
	gaps         map[string][]clusters.Gap
	tags         map[string][]imagev1.TagEvent // by reference, the newest first
}

// newPast makes a past from random numbers.
func newPast(r *rand.Rand) *past {
	p := &past{begun: time.Now().UTC().Truncate(time.Hour).Add(-10 * 24 * time.Hour), gaps: map[string][]clusters.Gap{}, tags: map[string][]imagev1.TagEvent{}}
	p.ended, p.since = p.begun.Add(5*24*time.Hour), p.begun.Add(6*time.Hour)
	within := func(most time.Duration) time.Duration {
		return time.Duration(r.Int64N(int64(most/time.Second))) * time.Second
	}
	for c := range 3 {
		cluster := fmt.Sprint("c", c)
		for at := p.begun.Add(within(20 * time.Hour)); at.Before(p.ended); at = at.Add(time.Hour + within(40*time.Hour)) {
			end := metav1.NewTime(at.Add(time.Minute + within(3*time.Hour)))
			if !end.Time.Before(p.ended) {
				break // records do not end in a gap: the server would go on with it
			}
			p.gaps[cluster] = append(p.gaps[cluster], clusters.Gap{From: metav1.NewTime(at), Until: &end})
			at = end.Time
		}
		for app := range 4 {
			for version := range 3 {
				for at := p.begun.Add(within(30 * time.Hour)); at.Before(p.ended); {
					run := p.run(r, cluster, app, version, at, within)
					p.runs = append(p.runs, run)
					if run.Status.Until == nil {
						break
					}
					at = run.Status.Until.Add(time.Minute + within(30*time.Hour))
				}
			}
		}
	}
	for app := range 3 { // the tag of the fourth is not known
		tag := newThenTag(app)
		for at := p.begun.Add(within(30 * time.Hour)); at.Before(p.ended); at = at.Add(time.Minute + within(30*time.Hour)) {
			digest := digestThen("c0", app, r.IntN(3))
			if r.IntN(5) == 0 {
				digest = "" // the registry has it no more
			}
			tags.Lead(tag, thenTag(app), digest, metav1.NewTime(at))
		}
		p.tags[thenTag(app).String()] = tag.Status.Items
	}
	return p
}

// thenTag is the tag that the workloads of an app name.
func thenTag(app int) reference.Reference {
	return reference.Reference{Host: "r.io", Repository: fmt.Sprint("a", app), Tag: "v1"}
}

func newThenTag(app int) *imagev1.ImageTag { return tags.New(thenTag(app)) }

// digestThen is the digest of a version of an app that a cluster runs.
func digestThen(cluster string, app, version int) string {
	return fmt.Sprintf("sha256:%012x%052x", 0x100000+int(cluster[1]-'0')*0x1000+app*0x100+version, 0)
}

// led returns where a tag led at a moment, as far as that is known, and before.
func (p *past) led(image string, at time.Time) (items []imagev1.TagEvent) {
	for _, item := range p.tags[image] {
		if !item.Created.After(at) {
			items = append(items, item)
		}
	}
	return items
}

// run makes a stretch that begins at a time.
func (p *past) run(r *rand.Rand, cluster string, app, version int, from time.Time, within func(time.Duration) time.Duration) imageruns.ImageRun {
	n := len(p.runs)
	digest := digestThen(cluster, app, version)
	run := imageruns.ImageRun{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns", app%2), Name: fmt.Sprintf("%s-%012d", from.Format("20060102t150405z"), n)}, Spec: imageruns.ImageRunSpec{
		Cluster: cluster, Workload: fmt.Sprint("Job/a", app), Container: "main", Image: fmt.Sprintf("r.io/a%d:v1", app), ImageID: fmt.Sprintf("r.io/a%d@%s", app, digest), Digest: digest, From: metav1.NewTime(from),
	}, Status: imageruns.ImageRunStatus{MostPods: int32(1 + r.IntN(5)), Admission: imageruns.AdmissionNeverAsked}}
	until := from.Add(time.Second + within(time.Minute<<r.IntN(14)))
	if until.Before(p.ended) {
		for _, g := range p.gaps[cluster] {
			if !until.Before(g.From.Time) && until.Before(g.Until.Time) {
				until = g.Until.Time // it ended while nobody saw
			}
		}
		run.Status.Until = &metav1.Time{Time: until}
		for _, g := range p.gaps[cluster] {
			if g.From.Time.Before(until) && g.Until.After(from) {
				run.Status.Unseen = append(run.Status.Unseen, g)
			}
		}
	}
	before := ""
	for at := from.Add(within(3 * time.Second)); at.Before(until) && at.Before(p.ended) && len(run.Status.Verdicts) < 14; at = at.Add(time.Second + within(20*time.Hour)) {
		if word := verdicts.All[r.IntN(len(verdicts.All))]; word != before {
			before = word
			run.Status.Verdicts = append(run.Status.Verdicts, imageruns.RunVerdict{Since: metav1.NewTime(at), Verified: word})
		}
	}
	if len(run.Status.Verdicts) > 2 && r.IntN(3) == 0 {
		run.Status.VerdictsDropped = 1
	}
	return run
}

// at returns the verdicts of what ran at a moment, by its digest.
func (p *past) at(at time.Time, has func(*imageruns.ImageRun) bool) map[string]string {
	found := map[string]string{}
	for i := range p.runs {
		r := &p.runs[i]
		if r.Spec.From.After(at) || r.Status.Until != nil && !r.Status.Until.After(at) || !has(r) {
			continue
		}
		word := "Unknown"
		for n, v := range r.Status.Verdicts {
			if !v.Since.After(at) {
				if word = v.Verified; n == 0 && r.Status.VerdictsDropped > 0 && v.Since.Time.Before(at) {
					word = "Unknown" // what followed is not kept
				}
			}
		}
		found[shortThen(r.Spec.Digest)] = word
	}
	return found
}

func shortThen(digest string) string { return strings.TrimPrefix(digest, "sha256:")[:12] }

// unseen are the clusters that were not seen at a moment; the end of a gap belongs to it.
func (p *past) unseen(at time.Time) (all []string) {
	for cluster, gaps := range p.gaps {
		if slices.ContainsFunc(gaps, func(g clusters.Gap) bool { return !at.Before(g.From.Time) && !at.After(g.Until.Time) }) {
			all = append(all, cluster)
		}
	}
	slices.Sort(all)
	return all
}

// write stores the past in a data directory.
func (p *past) write(t *testing.T, dir string) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, install := range []func(*runtime.Scheme) error{clusters.Install, imageruns.Install, imagev1.Install} {
		if err := install(scheme); err != nil {
			t.Fatal(err)
		}
	}
	d := dbtest.OpenOptions(t, db.Options{Dir: dir})
	getter := kubestore.NewGetter(d, serializer.NewCodecFactory(scheme), kubestore.Options{})
	store, err := imageruns.New(getter, scheme)
	if err != nil {
		t.Fatal(err)
	}
	followed, err := clusters.New(getter, scheme, clusters.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.runs {
		run := p.runs[i].DeepCopy()
		ctx := genericapirequest.WithNamespace(context.Background(), run.Namespace)
		if _, _, err := store.Update(ctx, run.Name, rest.DefaultUpdatedObjectInfo(run), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	known, err := followed.Records(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for cluster, gaps := range p.gaps {
		if err := followed.SetRecords(context.Background(), cluster, clusters.ClusterRecords{Since: metav1.NewTime(p.since), Until: metav1.NewTime(p.ended), Unseen: gaps}, known[cluster]); err != nil {
			t.Fatal(err)
		}
	}
	_, status, err := imagetag.NewStorage(getter, scheme, time.Now, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for app := range 4 {
		tag := newThenTag(app)
		if tag.Status.Items = p.tags[thenTag(app).String()]; tag.Status.Items == nil {
			continue
		}
		ctx := genericapirequest.WithNamespace(context.Background(), tag.Namespace)
		info := rest.DefaultUpdatedObjectInfo(tag, func(_ context.Context, tag, before runtime.Object) (runtime.Object, error) {
			tag.(*imagev1.ImageTag).ResourceVersion = before.(*imagev1.ImageTag).ResourceVersion
			return tag, nil
		})
		if _, _, err := status.Update(ctx, tag.Name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, true, &metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// restored brings a data directory back to a backup, which lacks what was recorded since.
func (p *past) restored(t *testing.T, data string) string {
	t.Helper()
	dir := t.TempDir()
	file, restored := filepath.Join(dir, "backup.db"), filepath.Join(dir, "restored")
	if err := backup.Make(t.Context(), data, file); err != nil {
		t.Fatal(err)
	}
	lost := *p
	lost.runs, lost.ended = nil, p.ended.Add(3*time.Hour)
	for i := range p.runs {
		run := p.runs[i].DeepCopy()
		if run.Status.Until == nil {
			run.Status.Until = &metav1.Time{Time: p.ended.Add(time.Hour)}
		}
		run.Status.Verdicts = append(run.Status.Verdicts, imageruns.RunVerdict{Since: metav1.NewTime(p.ended), Verified: "True"})
		lost.runs = append(lost.runs, *run)
		run = run.DeepCopy()
		run.Name, run.Spec.From, run.Status.Until = "lost-"+run.Name, metav1.NewTime(p.ended.Add(2*time.Hour)), nil
		lost.runs = append(lost.runs, *run)
	}
	lost.tags = map[string][]imagev1.TagEvent{}
	for app := range 4 {
		tag := newThenTag(app)
		tag.Status.Items = p.tags[thenTag(app).String()]
		tags.Lead(tag, thenTag(app), digestThen("c1", app, 0), metav1.NewTime(p.ended.Add(time.Hour)))
		lost.tags[thenTag(app).String()] = tag.Status.Items
	}
	lost.write(t, data)
	if err := backup.Restore(t.Context(), file, restored); err != nil {
		t.Fatal(err)
	}
	return restored
}

// upgraded returns a data directory with the first schema, and indexes that mean something else.
func (p *past) upgraded(t *testing.T, data string) string {
	t.Helper()
	older := filepath.Join(t.TempDir(), "older")
	if err := os.Mkdir(older, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(older, datafile.FileName)
	if err := datafile.CreatePrivate(file); err != nil {
		t.Fatal(err)
	}
	d, err := sql.Open("sqlite3", "file:"+file)
	if err != nil {
		t.Fatal(err)
	}
	d.SetMaxOpenConns(1)
	for _, statement := range []string{
		datafile.Migrations[0], "ATTACH '" + filepath.Join(data, datafile.FileName) + "' AS newer", "DELETE FROM meta",
		"INSERT INTO meta SELECT * FROM newer.meta WHERE name IN ('revision', 'compacted', 'swept')",
		"INSERT INTO revisions SELECT rev, key, create_rev, prev_rev, until, at, size, expires, NULL FROM newer.revisions",
		"INSERT INTO contents SELECT rev, sum, value FROM newer.contents", "INSERT INTO directories SELECT dir, objects, bytes FROM newer.directories",
		"INSERT INTO indexes SELECT id, prefix, iif(instr(name, '#') = 0, name, substr(name, 1, instr(name, '#')) || '0'), iif(instr(name, '#') = 0, 0, -1) FROM newer.indexes",
		"PRAGMA user_version = 1",
	} {
		if _, err := d.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return older
}

// recordedBy has a database that an old commit wrote, and what it answered.
const recordedBy = "testdata/47ee46a6"

// readPast reads what an old commit recorded of a simulated past, as that commit listed it: its
// recorder, its storage of tags and its database wrote records.db.gz while clusters went away, the
// recorder was killed, clocks were wrong, tags moved and policies changed. The oracle of that
// commit found no wrong answer. To write both files again, apply write.diff to that commit, run
//
//	go test ./internal/controllers/runs -run 'TestOracle$' -oracles 1 -oracle-seed 34 -steps 420 -longest 1400 -into DIR
//
// and compress them with gzip -9n.
func readPast(t *testing.T) *past {
	t.Helper()
	file := filepath.Join(t.TempDir(), "past.json")
	unpack(t, filepath.Join(recordedBy, "past.json.gz"), file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var p struct {
		Begun, Ended, Since time.Time
		Runs                []imageruns.ImageRun
		Gaps                map[string][]clusters.Gap
		Tags                map[string][]imagev1.TagEvent
	}
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	return &past{begun: p.Begun, ended: p.Ended, since: p.Since, runs: p.Runs, gaps: p.Gaps, tags: p.Tags}
}

// Every door to the past says the same of every moment: what ran, the verdict that was known, where
// tags led, and which clusters were not seen. So it is after an upgrade from the first release and
// from a commit that recorded, and where a backup was restored: what the backup lacks was not seen.
func TestDoorsToThePast(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(*past, *testing.T, string) string{
		"Written": func(_ *past, _ *testing.T, data string) string { return data }, "Restored": (*past).restored, "Upgraded": (*past).upgraded,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := seededThen(t)
			p, data := newPast(random), newDataDir(t)
			p.write(t, data)
			testDoorsToThePast(t, random, p, then(p, t, data))
		})
	}
	t.Run("RecordedByAnOldCommit", func(t *testing.T) {
		t.Parallel()
		data := newDataDir(t)
		unpack(t, filepath.Join(recordedBy, "records.db.gz"), filepath.Join(data, datafile.FileName))
		testDoorsToThePast(t, seededThen(t), readPast(t), data)
	})
}

// seededThen returns random numbers, and logs their seed.
func seededThen(t *testing.T) *rand.Rand {
	seed := rand.Uint64()
	t.Logf("the seed is %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func newDataDir(t *testing.T) string {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	return data
}

func testDoorsToThePast(t *testing.T, random *rand.Rand, p *past, data string) {
	dir := t.TempDir()
	config := "records: {keep: 36500d}\nclusters:\n" // also what was recorded long ago
	for cluster := range p.gaps {
		config += fmt.Sprintf("- {name: %s, kubeconfig: away.kubeconfig, importRunning: false}\n", cluster)
	}
	for file, text := range map[string]string{
		"config.yaml":     config,
		"away.kubeconfig": `{"apiVersion":"v1","kind":"Config","current-context":"a","clusters":[{"name":"a","cluster":{"server":"https://127.0.0.1:1"}}],"contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],"users":[{"name":"a","user":{"token":"t"}}]}`,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	doors := &doorsThen{t: t, past: p, data: data, config: serveWith(t, server.Options{DataDir: data, ConfigFile: filepath.Join(dir, "config.yaml"), Isolated: true, Console: true}, listen(t))}
	reader, err := sql.Open("sqlite3", "file:"+filepath.Join(data, datafile.FileName)+"?mode=ro")
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	doors.sql = reader
	unseen := 0
	for range *moments {
		at := p.begun.Add(time.Duration(random.Int64N(int64(p.ended.Sub(p.begun)/time.Second))) * time.Second)
		if random.IntN(4) == 0 { // something changes at this very moment
			run := &p.runs[random.IntN(len(p.runs))]
			if at = run.Spec.From.Time; run.Status.Until != nil && random.IntN(2) == 0 {
				at = run.Status.Until.Time
			}
			if !at.Before(p.ended) {
				at = run.Spec.From.Time
			}
		}
		unseen += len(p.unseen(at))
		doors.ask(at, fmt.Sprint("c", random.IntN(3)), random.IntN(4), verdicts.All[random.IntN(len(verdicts.All))])
		if t.Failed() {
			return
		}
	}
	t.Logf("asked at %d moments, at which %d clusters were not seen", *moments, unseen)
	soon(t, "the server has begun to record", func() bool {
		_, _, errs := tidewaiter(t, "ran", "--since", "1h", "--data-dir", data)
		return strings.Count(errs, "has not been seen since "+p.ended.Format(time.RFC3339)) == len(p.gaps)
	})
	for range *moments / 4 {
		doors.askUnseen(p.ended.Add(time.Duration(random.Int64N(int64(time.Since(p.ended)/time.Second))) * time.Second))
	}
}

// doorsThen are the doors to a past.
type doorsThen struct {
	t      *testing.T
	past   *past
	data   string
	config *restclient.Config
	sql    *sql.DB
}

// same fails if a door says something else than what was.
func (d *doorsThen) same(door string, at time.Time, got, want map[string]string) {
	d.t.Helper()
	if !maps.Equal(got, want) {
		d.t.Errorf("%s at %s says %v, and it was %v", door, at.Format(time.RFC3339), got, want)
	}
}

// says fails if a door does not name each cluster that was not seen, or names another one.
func (d *doorsThen) says(door string, at time.Time, text, cluster string) {
	d.t.Helper()
	unseen := d.past.unseen(at)
	for name := range d.past.gaps {
		asked := cluster == "" || cluster == name
		want := asked && slices.Contains(unseen, name)
		if strings.Contains(text, "cluster "+name+" is recorded since") != (asked && at.Before(d.past.since)) {
			d.t.Errorf("%s at %s does not say rightly since when records are whole:\n%s", door, at.Format(time.RFC3339), text)
		}
		if strings.Contains(text, "cluster "+name+" was not seen") != want {
			d.t.Errorf("%s at %s: was %s not seen? %t, and it says\n%s", door, at.Format(time.RFC3339), name, want, text)
		}
	}
}

// cells are the cells of a table, by the column of its digests.
func cells(text, column, value string) map[string]string {
	found := map[string]string{}
	separator := regexp.MustCompile(` {3,}`)
	var columns []string
	for line := range strings.Lines(text) {
		row := separator.Split(strings.TrimSpace(line), -1)
		if columns == nil {
			columns = row
			continue
		}
		found[row[slices.Index(columns, column)]] = row[slices.Index(columns, value)]
	}
	return found
}

func anyRun(*imageruns.ImageRun) bool { return true }

// ask asks every door about a moment.
func (d *doorsThen) ask(at time.Time, cluster string, app int, word string) {
	t, p, then := d.t, d.past, at.Format(time.RFC3339)
	t.Helper()
	image := fmt.Sprintf("r.io/a%d:v1", app)
	verb := func(args ...string) (string, string, int) {
		code, out, errs := tidewaiter(t, append(args, "--at", then, "--data-dir", d.data)...)
		return out, errs, code
	}
	all := p.at(at, anyRun)
	ofCluster := p.at(at, func(r *imageruns.ImageRun) bool { return r.Spec.Cluster == cluster })
	ofImage := p.at(at, func(r *imageruns.ImageRun) bool { return r.Spec.Image == image })

	out, errs, _ := verb("ran")
	d.same("ran", at, cells(out, "DIGEST", "VERDICT"), all)
	d.says("ran", at, errs, "")
	out, errs, _ = verb("ran", "--cluster", cluster, "-n", "ns1", image)
	d.same("ran of an image", at, cells(out, "DIGEST", "VERDICT"), p.at(at, func(r *imageruns.ImageRun) bool {
		return r.Spec.Cluster == cluster && r.Spec.Image == image && r.Namespace == "ns1"
	}))
	d.says("ran of an image", at, errs, cluster)
	out, errs, _ = verb("images", "--cluster", cluster, "-A")
	d.same("images", at, cells(out, "DIGEST", "VERDICT"), ofCluster)
	d.says("images", at, errs, cluster)

	led := p.led(image, at)
	unknown := len(ofImage) == 0 && led == nil
	out, errs, code := verb("get", image, "-o", "json")
	if code != 0 != unknown {
		t.Errorf("get %s at %s: %d, and %d ran, and it led to %v: %s", image, then, code, len(ofImage), led, errs)
	} else if code == 0 {
		var got thenReport
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err)
		}
		digest, judged := "", maps.Clone(ofImage)
		if led != nil {
			digest = led[0].Image
		}
		if digest != "" { // the verdict is the one for what the tag led to
			maps.DeleteFunc(judged, func(ran, _ string) bool { return ran != shortThen(digest) })
		}
		if got.Digest != digest || (got.Since == nil) != (led == nil) || led != nil && !got.Since.Time.Equal(led[0].Created.Time) {
			t.Errorf("get %s at %s: it led to %s since %v, and it was %v", image, then, got.Digest, got.Since, led)
		}
		words, ran := slices.Compact(slices.Sorted(maps.Values(judged))), map[string]string{}
		for i := range got.Runs {
			ran[shortThen(got.Runs[i].Spec.Digest)] = imageruns.At(&got.Runs[i], at).Verified
		}
		d.same("get", at, ran, ofImage)
		if want := cmp.Or(strings.Join(words, ", "), verdicts.VerifiedUnknown); got.Verified != want {
			t.Errorf("get %s at %s: verdict %s, and it was %s", image, then, got.Verified, want)
		}
		d.says("get", at, strings.Join(got.Unknown, "\n"), "")
	}

	out, errs, code = verb("describe", image)
	if code != 0 != unknown {
		t.Errorf("describe %s at %s: %d, and %d ran, and it led to %v: %s", image, then, code, len(ofImage), led, errs)
	} else if head, ran, _ := strings.Cut(out, "\nRan:\n"); code == 0 {
		d.same("describe", at, cells(ran, "DIGEST", "VERDICT"), ofImage)
		d.says("describe", at, errs, "")
		line := "\nDigest:    Unknown\n"
		if led != nil {
			line = fmt.Sprintf("\nDigest:    %s\nSince:     %s, ", cmp.Or(led[0].Image, "Unknown"), led[0].Created.UTC().Format(time.RFC3339))
		}
		if !strings.Contains(head, line) {
			t.Errorf("describe %s at %s: it led to %v, and it says\n%s", image, then, led, head)
		}
	}
	d.askHistory(at, image)
	d.askWindow(at, cluster)

	for door, more := range map[string]fields.Set{"imageruns of an image": {"image": image}, "imageruns of a namespace": {"namespace": "ns1"}, "imageruns": {}, "imageruns by verdict": {"verified": word}, "imageruns by workload": {"workload": fmt.Sprint("a", app), "cluster": cluster}} {
		more["at"] = then
		config, notes := withWarnings(d.config)
		ran := map[string]string{}
		if err := eachRun(t.Context(), config, "", more, func(page []imageruns.ImageRun) error {
			for i := range page {
				ran[shortThen(page[i].Spec.Digest)] = imageruns.At(&page[i], at).Verified
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		want := maps.Clone(all)
		switch {
		case more["verified"] != "":
			maps.DeleteFunc(want, func(_, is string) bool { return is != word })
		case more["image"] != "":
			want = ofImage
		case more["namespace"] != "":
			want = p.at(at, func(r *imageruns.ImageRun) bool { return r.Namespace == "ns1" })
		case more["workload"] != "":
			want = p.at(at, func(r *imageruns.ImageRun) bool {
				return r.Spec.Cluster == cluster && r.Spec.Workload == fmt.Sprint("Job/a", app)
			})
		}
		d.same(door, at, ran, want)
		d.says(door, at, strings.Join(notes.all, "\n"), more["cluster"])
	}
	d.askSQL(at, all)
	d.askConsole(at, all, word)
}

// askHistory asks where a tag had led by a moment.
func (d *doorsThen) askHistory(at time.Time, image string) {
	d.t.Helper()
	then, want := at.Format(time.RFC3339), d.past.led(image, at)
	code, out, errs := tidewaiter(d.t, "history", image, "--at", then, "-o", "json", "--data-dir", d.data)
	if code != 0 != (want == nil) {
		d.t.Errorf("history of %s at %s: %d, and it led to %v: %s", image, then, code, want, errs)
	} else if before := fmt.Sprintf("where %s led is not recorded before", image); want == nil && d.past.tags[image] != nil && !strings.Contains(errs, before) {
		d.t.Errorf("history of %s at %s does not say since when it is recorded: %s", image, then, errs)
	}
	if code != 0 {
		return
	}
	var got historyReport
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		d.t.Fatal(err)
	}
	same := slices.EqualFunc(got.Items, want, func(item historyItem, event imagev1.TagEvent) bool {
		return item.Digest == event.Image && item.Created.Time.Equal(event.Created.Time)
	})
	if !same {
		d.t.Errorf("history of %s at %s: %v, and it was %v", image, then, got.Items, want)
	}
}

// askWindow asks what ran in a cluster from a moment to another one.
func (d *doorsThen) askWindow(from time.Time, cluster string) {
	d.t.Helper()
	until := from.Add(time.Duration(from.Unix()%(40*60)) * time.Minute)
	want := map[string]string{}
	for i := range d.past.runs {
		r := &d.past.runs[i]
		began, ended := r.Spec.From.Time, d.past.ended.Add(time.Hour)
		if r.Status.Until != nil {
			ended = r.Status.Until.Time
		}
		if r.Spec.Cluster == cluster && !began.After(until) && (ended.After(from) || began.Equal(from)) {
			want[r.Namespace+"/"+r.Name] = ""
		}
	}
	args := []string{"ran", "--cluster", cluster, "--from", from.Format(time.RFC3339), "--until", until.Format(time.RFC3339), "--data-dir", d.data, "-o"}
	_, lines, _ := tidewaiter(d.t, append(args, "jsonl")...)
	found := map[string]string{}
	for decoder := json.NewDecoder(strings.NewReader(lines)); ; {
		var run imageruns.ImageRun
		if err := decoder.Decode(&run); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			d.t.Fatal(err)
		}
		found[run.Namespace+"/"+run.Name] = ""
	}
	d.same("ran -o jsonl until "+until.Format(time.RFC3339), from, found, want)
	_, text, _ := tidewaiter(d.t, append(args, "csv")...)
	if n := strings.Count(text, "\n") - 1; n != len(want) {
		d.t.Errorf("ran -o csv from %s until %s has %d, and %d ran", from, until, n, len(want))
	}
}

// askUnseen asks about a moment after all that is recorded: each door that tells what ran names
// every cluster, and SQL and -o csv have the gap.
func (d *doorsThen) askUnseen(at time.Time) {
	d.t.Helper()
	then := at.Format(time.RFC3339)
	says := func(door, text, cluster string) {
		d.t.Helper()
		for name := range d.past.gaps {
			if want := cluster == "" || cluster == name; strings.Contains(text, "cluster "+name+" has not been seen since "+d.past.ended.Format(time.RFC3339)) != want {
				d.t.Errorf("%s at %s: %s was not seen (asked about: %t), and it says\n%.1000s", door, then, name, want, text)
			}
		}
	}
	for door, args := range map[string][]string{
		"ran": {"ran", "--at", then}, "ran of an image": {"ran", "r.io/a1:v1", "--at", then}, "ran from": {"ran", "--from", then}, "ran of a cluster": {"ran", "--cluster", "c1", "--at", then},
		"get": {"get", "r.io/a1:v1", "--at", then}, "describe": {"describe", "r.io/a1:v1", "--at", then}, "images": {"images", "-A", "--cluster", "c1", "--at", then},
	} {
		_, out, errs := tidewaiter(d.t, append(args, "--data-dir", d.data)...)
		cluster := ""
		if slices.Contains(args, "c1") {
			cluster = "c1"
		}
		says(door, out+errs, cluster)
	}
	_, report, errs := tidewaiter(d.t, "report", "--from", then, "--until", at.Add(time.Second).Format(time.RFC3339), "-o", "json", "--data-dir", d.data)
	if n := len(reportUnseen.FindAllString(report, -1)); n != len(d.past.gaps) {
		d.t.Errorf("a report of %s says of %d clusters that they were not seen:\n%.1000s%s", then, n, report, errs)
	}
	client, err := pathClient(d.config)
	if err != nil {
		d.t.Fatal(err)
	}
	raw, err := client.Get().AbsPath("/console/running").Param("at", then).DoRaw(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	says("the console", consoleTime.ReplaceAllString(string(raw), "$1"), "")
	config, notes := withWarnings(d.config)
	if err := eachRun(d.t.Context(), config, "", fields.Set{"at": then}, func(page []imageruns.ImageRun) error {
		for i := range page {
			r := &page[i]
			if r.Status.Until != nil || len(r.Status.Unseen) == 0 || r.Status.Unseen[len(r.Status.Unseen)-1].Until != nil {
				d.t.Errorf("imageruns at %s: %s/%s goes on as if it was seen: until %v, unseen %v", then, r.Spec.Cluster, r.Name, r.Status.Until, r.Status.Unseen)
			}
		}
		return nil
	}); err != nil {
		d.t.Fatal(err)
	}
	says("imageruns", strings.Join(notes.all, "\n"), "")
	_, out, _ := tidewaiter(d.t, "ran", "--at", then, "-o", "csv", "--data-dir", d.data)
	for line := range strings.Lines(out) {
		if cells := strings.Split(strings.TrimSpace(line), ","); cells[14] != "unseenSince" && cells[14] != d.past.ended.Format(time.RFC3339) {
			d.t.Errorf("ran -o csv at %s: not unseen since the end of what is recorded: %s", then, line)
		}
	}
	var seen int
	if err := d.sql.QueryRow("SELECT count(*) FROM image_runs WHERE (ended IS NULL OR ended > ?1) AND unseen_since IS NULL AND cluster <> 'local'", then).Scan(&seen); err != nil {
		d.t.Fatal(err)
	}
	if seen > 0 {
		d.t.Errorf("SQL at %s: %d stretches go on as if they were seen", then, seen)
	}
}

// askSQL asks the view, which has the first verdict, and when the cluster was not seen meanwhile.
func (d *doorsThen) askSQL(at time.Time, all map[string]string) {
	rows, err := d.sql.Query("SELECT digest, verified_first, gaps FROM image_runs WHERE began <= ?1 AND (ended IS NULL OR ended > ?1)", at.Format(time.RFC3339))
	if err != nil {
		d.t.Fatal(err)
	}
	defer rows.Close()
	found, want := map[string]string{}, map[string]string{}
	for rows.Next() {
		var digest string
		var first sql.NullString
		var gaps int
		if err := rows.Scan(&digest, &first, &gaps); err != nil {
			d.t.Fatal(err)
		}
		found[shortThen(digest)] = fmt.Sprint(first.String, gaps > 0)
	}
	if err := rows.Err(); err != nil {
		d.t.Fatal(err)
	}
	for i := range d.past.runs {
		r := &d.past.runs[i]
		if _, ran := all[shortThen(r.Spec.Digest)]; !ran || r.Spec.From.After(at) || r.Status.Until != nil && !r.Status.Until.After(at) {
			continue
		}
		first := ""
		if len(r.Status.Verdicts) > 0 {
			first = r.Status.Verdicts[0].Verified
		}
		digest, unseen := shortThen(r.Spec.Digest), len(r.Status.Unseen) > 0
		if r.Status.Until == nil {
			unseen = slices.ContainsFunc(d.past.gaps[r.Spec.Cluster], func(g clusters.Gap) bool { return g.Until.After(r.Spec.From.Time) })
			// the gap since the records ended is written when the server has begun to record
			unseen = unseen || found[digest] == fmt.Sprint(first, true)
		}
		want[digest] = fmt.Sprint(first, unseen)
	}
	d.same("SQL", at, found, want)
}

// What a report says of a cluster; a row of the console, the digest in it, a verdict with its time,
// and a time.
var (
	reportUnseen   = regexp.MustCompile(`cluster c\d was not seen from \S+ to the end of this time`)
	consoleTime    = regexp.MustCompile(`<time datetime="([^"]+)"[^>]*>[^<]*</time>`)
	consoleRow     = regexp.MustCompile(`(?s)<tr><td class="first">.*?</tr>`)
	consoleDigest  = regexp.MustCompile(`ref=sha256(?::|%3[aA])([0-9a-f]{12})`)
	consoleVerdict = regexp.MustCompile(`</span><span class="by">since <time datetime="([^"]+)"`)
)

// askConsole asks the page, which shows all verdicts of what ran with their times.
func (d *doorsThen) askConsole(at time.Time, all map[string]string, word string) {
	client, err := pathClient(d.config)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, verdict := range []string{"", word} {
		raw, err := client.Get().AbsPath("/console/running").Param("at", at.Format(time.RFC3339)).Param("verified", verdict).DoRaw(d.t.Context())
		if err != nil {
			d.t.Fatal(err)
		}
		found, want := map[string]string{}, map[string]string{}
		for _, row := range consoleRow.FindAllString(string(raw), -1) {
			digest := consoleDigest.FindStringSubmatch(row)
			if digest == nil {
				d.t.Fatalf("a row of the console names no digest: %s", row)
			}
			found[digest[1]] = ""
			for _, v := range consoleVerdict.FindAllStringSubmatch(row, -1) {
				if v[1] <= d.past.ended.Format(time.RFC3339) { // the server judges what goes on again
					found[digest[1]] += v[1] + " "
				}
			}
		}
		for i := range d.past.runs {
			r := &d.past.runs[i]
			digest := shortThen(r.Spec.Digest)
			if is, ran := all[digest]; !ran || verdict != "" && is != verdict || r.Spec.From.After(at) || r.Status.Until != nil && !r.Status.Until.After(at) {
				continue
			}
			want[digest] = ""
			for _, v := range r.Status.Verdicts {
				want[digest] += v.Since.UTC().Format(time.RFC3339) + " "
			}
		}
		d.same("the console", at, found, want)
		d.says("the console", at, string(raw), "")
		if command := "tidewaiter ran --at " + at.Format(time.RFC3339) + " --verified " + verdict; verdict != "" && !strings.Contains(string(raw), "<code>"+command+"</code>") {
			d.t.Errorf("the console does not have the command %s", command)
		}
	}
}

package main

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/controllers/inventory"
)

// sideVerdicts are the words of verdicts, the worst first.
var sideVerdicts = []string{"False", "Unsigned", "Unknown", "Excepted", "NoPolicy", "ByIndex", "True"}

// worst is the worst of verdicts.
func worst(all []string) string {
	for _, word := range sideVerdicts {
		if slices.Contains(all, word) {
			return word
		}
	}
	return ""
}

// run runs a verb.
func (s *sides) run(args ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	return tidewaiter(s.t, append(args, "--kubeconfig", s.kubeconfig)...)
}

var podName = regexp.MustCompile(`(?m)^(east|west|local):\S+`)

// shownPods are the pods in the output of a verb.
func shownPods(stdout string) []string {
	names := podName.FindAllString(stdout, -1)
	slices.Sort(names)
	return slices.Compact(names)
}

// askVerbs asks the verbs of the command line, which end with exit codes. They are asked twice,
// while all clusters answer and while one does not: a reference by one verb and by the other then,
// and an image by half of its names and by the others then.
func (s *sides) askVerbs() {
	turn := s.turn("verbs")
	for i, ref := range s.references() {
		verified, code, found := "", cli.ExitNone, 1
		if ref.digest != "" {
			verified, found = s.verdict(ref.of, ref.tag, ref.digest, ""), 0
			if known, ok := map[string]int{"True": 0, "False": 1, "Unsigned": 1, "Excepted": 3}[verified]; ok {
				code = known
			}
		}
		if isTurn(turn, i, 2) {
			got, stdout, stderr := s.run("verify", "-o", "json", ref.text)
			var verdict verdictReport
			if ref.digest != "" {
				if err := json.Unmarshal([]byte(stdout), &verdict); err != nil {
					s.t.Errorf("verify %s: %v: %s%s", ref.text, err, stdout, stderr)
				}
			}
			s.is("verify", ref.text, []any{got, verdict.Digest, verdict.Verified}, []any{code, ref.digest, verified})
		}
		if isTurn(turn+1, i, 2) {
			got, stdout, stderr := s.run("get", ref.text)
			s.is("get", ref.text+"\n"+stdout+stderr, []any{got, found == 0 && strings.Contains(stdout, " "+cellOf(verified)+" ")}, []any{found, found == 0})
		}
	}
	for i, digest := range s.stored() {
		pods, want := s.podsOf(digest), cli.ExitOK
		if len(pods) == 0 && !s.whole(digest) {
			want = cli.ExitNone
		}
		asked := []string{digest, strings.TrimPrefix(digest, "sha256:")[:12]} // as its own table shows it
		for _, p := range s.in[digest] {
			asked = append(asked, p.name()+"@"+digest)
		}
		for j, text := range asked {
			if !isTurn(turn+i, j, 2) {
				continue
			}
			code, stdout, stderr := s.run("pods", text)
			s.is("pods", text+" "+stderr, []any{code, shownPods(stdout)}, []any{want, pods})
		}
	}
	for name, digest := range s.ghosts() {
		for _, verb := range []string{"get", "describe"} {
			code, stdout, stderr := s.run(verb, name)
			s.is(verb, name+" "+stdout+stderr, []any{code, strings.Contains(stdout+stderr, "runs, not imported")}, []any{exitAbsent, true})
		}
		code, stdout, stderr := s.run("pods", digest)
		s.is("pods", digest+" "+stderr, []any{code, shownPods(stdout)}, []any{cli.ExitOK, s.podsOf(digest)})
	}
	for i, tag := range s.tags() {
		if !isTurn(turn, i, 2) {
			continue
		}
		_, stdout, stderr := s.run("pods", tag.String())
		s.is("pods", tag.String()+" "+stderr, shownPods(stdout), s.podsWith(func(_ *sidePod, c *sideContainer) bool {
			return c.of == tag.place && c.tag == tag.tag || s.leads[tag] != "" && s.runs(c) == s.leads[tag]
		}))
	}
	for _, value := range drifts {
		_, stdout, _ := s.run("pods", "--outdated="+value)
		s.is("pods", "--outdated="+value, shownPods(stdout), s.podsSo(value))
	}
	for i, tag := range s.tags() {
		if !isTurn(turn+1, i, 2) {
			continue
		}
		pods := map[string][]string{}
		for _, p := range s.pods {
			naming := slices.DeleteFunc(slices.Clone(p.containers), func(c sideContainer) bool { return c.of != tag.place || c.tag != tag.tag })
			if value := s.driftOf(naming); len(naming) > 0 {
				pods[value] = append(pods[value], p.String())
			}
		}
		code, stdout, stderr := s.run("pods", "--outdated", tag.String())
		want, all := cli.ExitOK, pods["true"]
		if slices.Sort(all); len(all) == 0 && (len(pods["unknown"]) > 0 || !s.whole(s.leads[tag])) {
			want = cli.ExitNone
		}
		s.is("pods", "--outdated "+tag.String()+" "+stderr, []any{code, shownPods(stdout)}, []any{want, all})
	}
	for _, cluster := range []string{"east", "west", "local"} {
		s.askImagesOf(cluster)
	}
}

// ghosts are the digests that run and are not imported, by the names that pods have for them.
func (s *sides) ghosts() map[string]string {
	all := map[string]string{}
	for _, p := range s.pods {
		for _, c := range p.containers {
			if c.digest != "" && c.tag == "" && !s.isStored(c.digest) {
				all[c.image] = c.digest
			}
		}
	}
	return all
}

// askImagesOf asks for the images that the pods of a cluster run.
func (s *sides) askImagesOf(cluster string) {
	counts := map[string]map[string]bool{} // names of pods by row
	for _, p := range s.pods {
		if p.cluster != cluster {
			continue
		}
		for i := range p.containers {
			c := &p.containers[i]
			digest := "Unknown"
			if runs := s.runs(c); runs != "" {
				digest = strings.TrimPrefix(runs, "sha256:")[:12]
			}
			row := []string{p.namespace, c.image, digest, s.judged(p, c)}
			if key := strings.Join(row, " "); counts[key] == nil {
				counts[key] = map[string]bool{p.name: true}
			} else {
				counts[key][p.name] = true
			}
		}
	}
	var want, got []string
	for key, pods := range counts {
		cells := strings.Fields(key)
		want = append(want, strings.Join(append(cells, fmt.Sprint(len(pods))), " "))
	}
	_, stdout, _ := s.run("images", "--cluster", cluster, "-A")
	for line := range strings.Lines(stdout) {
		if cells := strings.Fields(line); len(cells) > 4 && !strings.HasPrefix(line, "  ") && cells[0] != "NAMESPACE" {
			cells[3], _, _ = strings.Cut(cells[3], ":")
			got = append(got, strings.Join(cells[:5], " "))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	s.is("images of a cluster", cluster, strings.Join(got, "\n"), strings.Join(want, "\n"))
}

// read reads a path of the server.
func (s *sides) read(path string) string {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.Config.Host+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s, %v: %s", path, resp.Status, err, body)
	}
	return string(body)
}

// totals are numbers about all.
type totals struct {
	images, verdicts, used map[string]int64 // by verdict: images, images in each place, and pods
	outdated, unknown      map[string]int   // pods, by cluster
}

func (s *sides) totals() totals {
	all := totals{map[string]int64{}, map[string]int64{}, map[string]int64{}, map[string]int{}, map[string]int{}}
	for _, word := range sideVerdicts {
		all.images[word], all.verdicts[word] = 0, 0
	}
	for digest, places := range s.in {
		var covered, each []string
		for _, p := range places {
			verified := s.verdict(p, "", digest, "")
			if each = append(each, verified); s.rule(p, "") != nil {
				covered = append(covered, verified)
			}
			all.verdicts[verified]++
		}
		all.images[cmpOr(worst(covered), worst(each))]++
	}
	for _, p := range s.pods {
		switch s.driftOf(p.containers) {
		case "true":
			all.outdated[p.cluster]++
		case "unknown":
			all.unknown[p.cluster]++
		}
	}
	for _, word := range sideVerdicts {
		all.used[word] = int64(len(s.podsJudged(word)))
	}
	return all
}

// askTotals asks for numbers about all: of the summary, the metrics, the console and verify --all.
func (s *sides) askTotals() {
	s.t.Helper()
	want, outdated, unknown := s.totals(), 0, 0
	for _, cluster := range []string{"east", "west", "local"} {
		outdated += want.outdated[cluster]
		unknown += want.unknown[cluster]
	}
	s.review.swept()
	var sum inventory.Summary
	counts := func() (got, right []any) {
		for _, word := range sideVerdicts {
			got, right = append(got, word, sum.Verified[word], sum.Used[word]), append(right, word, want.images[word], want.used[word])
		}
		if sum.Outdated != nil {
			got = append(got, *sum.Outdated, sum.OutdatedUnknown)
		}
		return got, append(right, outdated, unknown)
	}
	// counts follow what they count, and take their time
	within(time.Minute, func() bool {
		sum = inventory.Summary{}
		if err := json.Unmarshal([]byte(s.read("/tidewaiter/summary")), &sum); err != nil {
			s.t.Fatal(err)
		}
		got, right := counts()
		return fmt.Sprint(got) == fmt.Sprint(right)
	})
	got, right := counts()
	s.is("summary", "images and pods by verdict, outdated pods, and those that may be", got, right)
	s.is("summary", "images", sum.Images, len(s.in))
	s.is("summary", "what runs and is gone", *sum.Gone, 0)

	metrics := s.read("/metrics")
	for _, word := range sideVerdicts {
		s.is("metrics", "running_pods "+word, s.metric(metrics, `running_pods{verified="`+word+`"}`), want.used[word])
	}
	for _, cluster := range []string{"east", "west", "local"} {
		s.is("metrics", "outdated_pods "+cluster, s.metric(metrics, `outdated_pods{cluster="`+cluster+`"}`), want.outdated[cluster])
		s.is("metrics", "outdated_unknown_pods "+cluster, s.metric(metrics, `outdated_unknown_pods{cluster="`+cluster+`"}`), want.unknown[cluster])
		s.is("metrics", "cluster_current "+cluster, s.metric(metrics, `cluster_current{cluster="`+cluster+`"}`), 1)
	}
	s.askConsole(want, outdated, unknown)

	_, stdout, _ := tidewaiter(s.t, "verify", "--all", "--data-dir", s.data, "-o", "json")
	var p progressAt
	if err := json.Unmarshal([]byte(stdout), &p); err != nil {
		s.t.Fatal(err, stdout)
	}
	for _, word := range sideVerdicts {
		s.is("verify --all", "images by verdict, "+word, p.Verified[word], want.images[word])
		s.is("verify --all", "verdicts, "+word, p.Verdicts[word], want.verdicts[word])
	}
}

// metric is the value of a metric; "" if there is none.
func (s *sides) metric(all, name string) string {
	for line := range strings.Lines(all) {
		if value, ok := strings.CutPrefix(line, "tidewaiter_"+name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

var (
	concernShown = regexp.MustCompile(`<strong>([^<]+)</strong></a><span class="many">([^<]+)</span>`)
	concernFine  = regexp.MustCompile(`<li>([^<:]+): <span class="quiet">none`)
	shareShown   = regexp.MustCompile(`verdict=([A-Za-z]+)"[^\n]*?<span class="number">([^<]+)</span>`)
	// a pod that nothing owns is a workload of its own
	rowOfPod = regexp.MustCompile(`<td class="first"[^>]*><a href="[^"]*">([^<]+)</a><span class="by">[^<]* in (\S+) / ([^<]+)</span>`)
)

// attention are the numbers of the console's first page, by what they are about.
func (s *sides) attention() map[string]string {
	page, shown := s.read("/console/"), map[string]string{}
	for _, m := range concernFine.FindAllStringSubmatch(page, -1) {
		shown[m[1]] = "0"
	}
	for _, m := range concernShown.FindAllStringSubmatch(page, -1) {
		shown[m[1]] = m[2]
	}
	for _, m := range refusedShown.FindAllStringSubmatch(page, -1) {
		for title := range strings.SplitSeq(m[1], ", ") { // several have one reason
			shown[strings.ToUpper(title[:1])+title[1:]] = "unknown"
		}
	}
	for _, m := range shareShown.FindAllStringSubmatch(page, -1) {
		shown["share "+m[1]] = m[2]
	}
	return shown
}

// askConsole asks the pages of the console.
func (s *sides) askConsole(want totals, outdated, unknown int) {
	shown := s.attention()
	naming := func(verified string) int { return len(s.podsJudged(verified)) }
	var drifted any = outdated
	switch {
	case unknown > 0 && outdated == 0:
		drifted = "unknown"
	case unknown > 0:
		drifted = fmt.Sprint(outdated, "+")
	}
	for _, value := range drifts {
		var got []string
		for _, m := range rowOfPod.FindAllStringSubmatch(s.read("/console/running?outdated="+value), -1) {
			got = append(got, m[2]+":"+m[3]+":"+m[1])
		}
		slices.Sort(got)
		s.is("Running", "outdated="+value, slices.Compact(got), s.podsSo(value))
	}
	for title, n := range map[string]any{
		"Runs and is not verified": naming("False"), "Runs and is unsigned": naming("Unsigned"), "Runs and cannot be judged": naming("Unknown"),
		"Runs something else than its tag leads to": drifted, "Runs and is gone from its registry": 0,
		"Not verified": want.images["False"], "Unsigned": want.images["Unsigned"], "Verdict unknown": want.images["Unknown"], "Clusters that are away": 0,
	} {
		s.is("Attention", title, shown[title], n)
	}
	for _, word := range sideVerdicts {
		s.is("Attention", "images by verdict, "+word, shown["share "+word], want.images[word])
		var got []string
		for _, m := range rowOfPod.FindAllStringSubmatch(s.read("/console/running?verified="+word), -1) {
			got = append(got, m[2]+":"+m[3]+":"+m[1])
		}
		slices.Sort(got)
		s.is("Running", word, slices.Compact(got), s.podsJudged(word))
	}
}

// askSQL asks the views of the database.
func (s *sides) askSQL() {
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(s.data, "tidewaiter.db")+"?mode=ro")
	if err != nil {
		s.t.Fatal(err)
	}
	defer db.Close()
	query := func(text string, args ...any) (values []string) {
		rows, err := db.QueryContext(s.t.Context(), text, args...)
		if err != nil {
			s.t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var value string
			if err := rows.Scan(&value); err != nil {
				s.t.Fatal(err)
			}
			values = append(values, value)
		}
		if err := rows.Err(); err != nil {
			s.t.Fatal(err)
		}
		return values
	}
	s.is("SQL", "images", query("SELECT name FROM images ORDER BY name"), s.stored())
	for _, digest := range s.stored() {
		var leading []string
		for _, tag := range s.tags() {
			if s.leads[tag] == digest {
				leading = append(leading, tag.String())
			}
		}
		slices.Sort(leading)
		s.is("SQL", "tags that lead to "+digest, query("SELECT reference FROM image_references WHERE image = ? AND instr(reference, '@') = 0 ORDER BY reference", digest), leading)
		s.is("SQL", "pods of "+digest, query("SELECT DISTINCT cluster || ':' || namespace || ':' || pod FROM pod_images WHERE image_id LIKE '%@' || ? ORDER BY 1", digest), s.podsWith(func(_ *sidePod, c *sideContainer) bool {
			return strings.HasSuffix(c.imageID, "@"+digest)
		}))
	}
	var ghosts []string
	for _, p := range s.pods {
		for i, c := range p.containers {
			if c.digest != "" && !s.isStored(c.digest) {
				ghosts = append(ghosts, fmt.Sprint(p, " c", i))
			}
		}
	}
	slices.Sort(ghosts)
	s.is("SQL", "not imported", query(`SELECT p.cluster || ':' || p.namespace || ':' || p.pod || ' ' || p.container FROM pod_images p WHERE instr(p.image_id, '@') > 0
		AND NOT EXISTS (SELECT 1 FROM images i WHERE i.name = substr(p.image_id, instr(p.image_id, '@') + 1)) ORDER BY 1`), ghosts)
}

// askActs asks what acts would touch: reviews about every one.
func (s *sides) askActs() {
	for _, tag := range s.tags() {
		if s.leads[tag] != "" {
			s.foretell(s.untagged(tag))
		}
	}
	for _, at := range []*place{s.places[0], s.places[len(s.places)-1]} {
		s.foretell(s.lost(at.at))
	}
	for _, digest := range s.stored() {
		s.foretell(s.deleted(digest))
	}
	for i := range sideLayers {
		s.foretell(s.layer(i))
	}
}

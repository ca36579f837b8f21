package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/web/admission"
)

// is compares an answer with what is right.
func (s *sides) is(door, question string, got, want any) {
	s.t.Helper()
	if s.doors[door]++; fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("%s of %s says\n%v, want\n%v", door, question, got, want)
	}
}

// whole reports whether all pods that run an image are known.
func (s *sides) whole(digest string) bool { return !s.away && !s.unsure(digest) }

// cell is how many pods run an image, as a table says it.
func (s *sides) cell(digest string) string {
	n := len(s.podsOf(digest))
	switch {
	case s.whole(digest):
		return fmt.Sprint(n)
	case n == 0:
		return "Unknown"
	}
	return fmt.Sprint(n, "+")
}

// clusterPods are the pods that a selector selects.
func (s *sides) clusterPods(selector string) (all []clusters.ClusterPod) {
	s.t.Helper()
	raw, err := s.review.client.Get().AbsPath(clusterPodsPath).Param("fieldSelector", selector).DoRaw(s.t.Context())
	var list clusters.ClusterPodList
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		s.t.Fatalf("clusterpods with %s: %v: %s", selector, err, raw)
	}
	return list.Items
}

// known reports whether the server has all pods, with what their nodes tell.
func (s *sides) known() bool {
	all := s.clusterPods("")
	for _, p := range all {
		at := slices.IndexFunc(s.pods, func(one *sidePod) bool { return one.String() == p.Name })
		for i, c := range p.Spec.Containers {
			if at < 0 || c.ImageID != s.pods[at].containers[i].imageID {
				return false
			}
		}
	}
	return len(all) == len(s.pods)
}

// selectedPods are the names of the pods that a selector selects.
func (s *sides) selectedPods(selector string) (names []string) {
	s.t.Helper()
	for _, p := range s.clusterPods(selector) {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

var worlds = flag.String("worlds", "1,2", "seeds of the worlds of TestBothSidesHaveOneAnswer")

// What is asked from the side of references, and from that of images, of what runs, and of all at
// once, has one answer, and it is the right one. The name of a subtest is the seed of its world.
func TestBothSidesHaveOneAnswer(t *testing.T) {
	t.Parallel()
	oneCaller(t)
	for text := range strings.SplitSeq(*worlds, ",") {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			s := newSides(t, seed)
			soon(t, "the pods are known", func() bool {
				return s.known() && len(s.selectedPods("outdated=true")) == len(s.podsWith(func(_ *sidePod, c *sideContainer) bool { return s.outdated(c) != "" }))
			})
			s.askContainers()
			s.askReferences()
			s.askUse()
			s.askVerbs()
			s.askTotals()
			s.askSQL()
			s.askActs()
			s.askPrune()
			s.askUsers()
			s.askPages()
			s.askAway()
			s.doActs()
			n := 0
			for _, asked := range s.doors {
				n += asked
			}
			t.Logf("seed %d: %d questions, by door: %v; acts: %v", seed, n, s.doors, s.done)
			acts := 0
			for _, done := range s.done {
				acts += done
			}
			if acts < 22 { // two worlds have more than 43
				t.Errorf("only %d acts were done: %v", acts, s.done)
			}
		})
	}
}

// turn is how often a door was asked before: each time, it gets the next part of its questions.
func (s *sides) turn(door string) int {
	turn := s.turns[door]
	s.turns[door]++
	return turn
}

// isTurn reports whether the i-th of some questions is in a turn, which has every n-th.
func isTurn(turn, i, n int) bool { return *exhaustive || (i+turn)%n == 0 }

// askContainers asks what each container runs, and which pods have a verdict. It is called after
// every act: in each turn every verdict and every reason is selected by, and after twelve turns
// every verdict was, in every cluster and namespace.
func (s *sides) askContainers() {
	for _, p := range s.clusterPods("") {
		at := slices.IndexFunc(s.pods, func(one *sidePod) bool { return one.String() == p.Name })
		for i, c := range p.Spec.Containers {
			want := &s.pods[at].containers[i]
			s.is("clusterpods", p.Name+" "+c.Image+" "+c.ImageID, []any{c.Digest, c.Verified, c.Reason, c.Outdated, c.OutdatedUnknown != ""},
				[]any{want.digest, s.judged(s.pods[at], want), s.reason(s.pods[at], want), s.outdated(want), s.drift(want) == "unknown"})
		}
	}
	turn := s.turn("containers")
	where := []string{"", "east", "west", "local"}
	namespaces := append([]string{""}, sideNamespaces...)
	for i, verified := range verdicts.All {
		for j, cluster := range where {
			for k, namespace := range namespaces {
				if !isTurn(turn+i, j, len(where)) || !isTurn(turn+i, k, len(namespaces)) {
					continue
				}
				selector := "verified=" + verified
				if cluster != "" {
					selector += ",spec.cluster=" + cluster
				}
				if namespace != "" {
					selector += ",spec.namespace=" + namespace
				}
				s.is("clusterpods by verdict", selector, s.selectedPods(selector), s.podsWith(func(p *sidePod, c *sideContainer) bool {
					return (cluster == "" || p.cluster == cluster) && (namespace == "" || p.namespace == namespace) && s.judged(p, c) == verified
				}))
			}
		}
	}
	own := map[string]string{"KeyExpired": ""} // verdicts by their reasons; one is of none
	for _, p := range s.pods {
		for i := range p.containers {
			own[s.reason(p, &p.containers[i])] = s.judged(p, &p.containers[i])
		}
	}
	delete(own, "")
	for i, reason := range slices.Sorted(maps.Keys(own)) {
		for j, verified := range append([]string{""}, verdicts.All...) {
			if verified != own[reason] && !isTurn(turn+i, j, len(verdicts.All)+1) {
				continue
			}
			selector := "reason=" + reason
			if verified != "" {
				selector += ",verified=" + verified
			}
			s.is("clusterpods by reason", selector, s.selectedPods(selector), s.podsWith(func(p *sidePod, c *sideContainer) bool {
				return s.reason(p, c) == reason && (verified == "" || s.judged(p, c) == verified)
			}))
		}
	}
	not := s.podsSo("true")
	not = append(not, s.podsSo("false")...)
	slices.Sort(not)
	for i, so := range []struct {
		selector string
		pods     []string
	}{
		{"outdated=true", s.podsSo("true")}, {"outdated=unknown", s.podsSo("unknown")}, {"outdated=false", s.podsSo("false")}, {"outdated!=unknown", not},
	} {
		if isTurn(turn, i, 2) {
			s.is("clusterpods by drift", so.selector, s.selectedPods(so.selector), so.pods)
		}
	}
}

// named is a reference, and what it leads to.
type named struct {
	text, digest string
	of           *place
	tag          string
}

// references are all names of tags and of digests.
func (s *sides) references() (all []named) {
	for _, tag := range s.tags() {
		all = append(all, named{tag.String(), s.leads[tag], tag.place, tag.tag})
		if tag.mirror != "" {
			all = append(all, named{tag.mirror + ":" + tag.tag, s.leads[tag], tag.place, tag.tag})
		}
	}
	for _, digest := range s.stored() {
		for _, p := range s.in[digest] {
			all = append(all, named{p.name() + "@" + digest, digest, p, ""})
		}
	}
	return all
}

// askReferences asks what every reference means, for the pods of each namespace. Admission is asked
// about half of them, and about the others the next time.
func (s *sides) askReferences() {
	all, turn := s.references(), s.turn("references")
	for n, namespace := range append([]string{""}, sideNamespaces...) {
		var asked []answers.Question
		for _, ref := range all {
			asked = append(asked, answers.Question{Reference: ref.text, Namespace: namespace})
		}
		for i, answer := range s.review.ask(asked...) {
			ref := all[i]
			pods := s.podsOf(ref.digest)
			drifting := map[string]int{}
			for _, p := range s.pods {
				drifting[s.driftOf(slices.DeleteFunc(slices.Clone(p.containers), func(c sideContainer) bool {
					return ref.tag == "" || c.of != ref.of || c.tag != ref.tag
				}))]++
			}
			state, verified := answers.Found, ""
			if ref.digest == "" {
				state = answers.Gone
				pods = s.podsWith(func(_ *sidePod, c *sideContainer) bool { return c.of == ref.of && c.tag == ref.tag })
			} else if !s.isStored(ref.digest) {
				state = answers.NotImported // it was deleted, and the tag leads there
			} else {
				verified = s.verdict(ref.of, ref.tag, ref.digest, namespace)
			}
			got := []any{answer.State, answer.Meaning.Digest, "", "", "", "", ""}
			if answer.Verdict != nil {
				got[2] = answer.Verdict.Verified
			}
			if r := answer.Running; r != nil {
				got[3], got[4], got[5], got[6] = r.Pods, r.Outdated, r.OutdatedUnknown, r.Complete
			}
			s.is("review", ref.text+" for "+namespace, got, []any{state, ref.digest, verified, len(pods), drifting["true"], drifting["unknown"], s.whole(ref.digest)})
			if r := answer.Running; s.away || r != nil && !r.Complete {
				s.is("review's reason", ref.text, slices.ContainsFunc(answer.Unknowns, func(u answers.UnknownPart) bool { return u.Part == "running" }), true)
			}
			if state != answers.Found || namespace == "" || !isTurn(turn+n, i, 2) {
				continue
			}
			body := strings.Replace(string(review(ref.text)), `"namespace":"team"`, fmt.Sprintf(`"namespace":%q`, namespace), 1)
			admitted := askAdmission(s.t, s.http, s.Config.Host+admission.Path+"/east?timeout=5s", []byte(body))
			s.is("admission", ref.text+" for "+namespace, admitted.Allowed, verified != "False" && verified != "Unsigned")
		}
	}
}

// askUse asks which images are used, and by whom, and who uses an image: by the digest or by
// another name, which takes turns, as does whether an image is shown by itself or in the table of
// all.
func (s *sides) askUse() {
	turn, whole := s.turn("use"), map[string][]shown{}
	for _, row := range s.table("images", "") {
		whole[row["Name"]] = append(whole[row["Name"]], row)
	}
	for i, digest := range s.stored() {
		pods := s.podsOf(digest)
		rows := whole[digest]
		if isTurn(turn, i, 4) {
			rows = s.table("images", "metadata.name="+digest)
		}
		var each []string
		for _, p := range s.in[digest] {
			each = append(each, s.verdict(p, "", digest, "")+"@"+p.name())
		}
		slices.Sort(each)
		var shown []string
		if len(rows) == 1 {
			shown = strings.Split(rows[0]["Verdicts"], ",")
			slices.Sort(shown)
			s.is("images: PODS", digest, rows[0]["Pods"], s.cell(digest))
		}
		s.is("images: VERDICTS", digest, shown, each)
		names := []string{digest}
		for _, p := range s.in[digest] {
			names = append(names, p.name()+"@"+digest)
		}
		for j, name := range names {
			if isTurn(turn+i, j, 2) {
				s.is("clusterpods by image", name, s.selectedPods("image="+name), pods)
			}
		}
	}
	for i, tag := range s.tags() {
		if !isTurn(turn, i, 2) {
			continue
		}
		want := s.podsWith(func(_ *sidePod, c *sideContainer) bool {
			return c.of == tag.place && c.tag == tag.tag || s.leads[tag] != "" && s.runs(c) == s.leads[tag]
		})
		s.is("clusterpods by image", tag.String(), s.selectedPods("image="+tag.String()), want)
	}
	used := func(is func(*sidePod) bool) (digests []string) {
		all := map[string]bool{}
		for _, p := range s.pods {
			for i := range p.containers {
				if digest := s.runs(&p.containers[i]); is(p) && s.isStored(digest) {
					all[digest] = true
				}
			}
		}
		return slices.Sorted(maps.Keys(all))
	}
	selected := func(selector string) []string {
		names := s.selected(selector)
		slices.Sort(names)
		return names
	}
	ofUse := map[string][]string{"true": used(func(*sidePod) bool { return true })}
	for _, digest := range s.stored() {
		if !slices.Contains(ofUse["true"], digest) {
			is := fmt.Sprint(!s.whole(digest))
			is = map[string]string{"true": "unknown", "false": "false"}[is]
			ofUse[is] = append(ofUse[is], digest)
		}
	}
	for _, is := range []string{"true", "false", "unknown"} {
		s.is("images by use", "used="+is, selected("used="+is), ofUse[is])
	}
	for _, cluster := range []string{"east", "west", "local"} {
		s.is("images by use", "used-by="+cluster, selected("used-by="+cluster), used(func(p *sidePod) bool { return p.cluster == cluster }))
		for _, namespace := range sideNamespaces {
			s.is("images by use", "used-by="+cluster+"/"+namespace, selected("used-by="+cluster+"/"+namespace), used(func(p *sidePod) bool { return p.cluster == cluster && p.namespace == namespace }))
		}
	}
}

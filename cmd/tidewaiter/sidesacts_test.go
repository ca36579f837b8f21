package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
)

// sideAct is an act: how it is asked about, how it is done, and what is so after it.
type sideAct struct {
	what  string
	spec  answers.ImpactReviewSpec
	flags []string
	do    func()
	model func()
	// pods are those that an act touches which is not of policies, whether all are known, and how
	// many digests are undecided.
	pods func() (pods []string, whole bool, undecided int)
}

// ruling is an act that has other policies judge.
func (s *sides) ruling(what string, spec answers.ImpactReviewSpec, rules []*sideRule, flags ...string) sideAct {
	before := s.rules
	return sideAct{what: what, spec: spec, flags: flags, do: func() {
		for _, r := range rules {
			if !slices.Contains(before, r) {
				s.apply(r)
			}
		}
		for _, r := range before {
			if !slices.ContainsFunc(rules, func(other *sideRule) bool { return other.name == r.name && other.namespace == r.namespace }) {
				if err := s.policiesIn(r.namespace).Delete(s.t.Context(), r.name, metav1.DeleteOptions{}); err != nil {
					s.t.Fatal(err)
				}
			}
		}
	}, model: func() { s.rules = rules }}
}

// with are the policies after one was applied.
func (s *sides) with(r *sideRule) []*sideRule {
	return append(slices.DeleteFunc(slices.Clone(s.rules), func(other *sideRule) bool { return other.name == r.name && other.namespace == r.namespace }), r)
}

// applying applies a policy.
func (s *sides) applying(r sideRule) sideAct {
	raw, err := object(s.t, r.document(s.keys)).MarshalJSON()
	file := filepath.Join(s.t.TempDir(), "policy.yaml")
	if err == nil {
		err = os.WriteFile(file, []byte(r.document(s.keys)), 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return s.ruling(fmt.Sprintf("apply %+v", r), answers.ImpactReviewSpec{ApplyPolicies: []runtime.RawExtension{{Raw: raw}}}, s.with(&r), "--policy", file)
}

// removing deletes a policy.
func (s *sides) removing(namespace, name string) sideAct {
	key := strings.TrimPrefix(namespace+"/"+name, "/")
	return s.ruling("remove "+key, answers.ImpactReviewSpec{RemovePolicy: key}, slices.DeleteFunc(slices.Clone(s.rules), func(r *sideRule) bool { return r.namespace == namespace && r.name == name }), "--remove-policy", key)
}

// revoking has nobody trust a signer any more.
func (s *sides) revoking(signer string) sideAct {
	file := filepath.Join(s.t.TempDir(), "signer.pub")
	if err := os.WriteFile(file, s.keys[signer].PEM, 0o600); err != nil {
		s.t.Fatal(err)
	}
	rules := slices.Clone(s.rules)
	for i, r := range rules {
		if r.signer == signer {
			other := *r
			other.signer, rules[i] = "nobody", &other
		}
	}
	return s.ruling("revoke "+signer, answers.ImpactReviewSpec{RevokeSigner: string(s.keys[signer].PEM)}, rules, "--revoke-key", file)
}

// waiting waits until exceptions have ended. It is done by ending them.
func (s *sides) waiting() sideAct {
	until, err := time.Parse(time.RFC3339, letUntil)
	if err != nil {
		s.t.Fatal(err)
	}
	rules := slices.Clone(s.rules)
	for i, r := range rules {
		other := *r
		other.excepted, rules[i] = "", &other
	}
	return s.ruling("wait", answers.ImpactReviewSpec{At: &metav1.Time{Time: until.Add(time.Hour)}}, rules, "--at", until.Add(time.Hour).Format(time.RFC3339))
}

// untagging has the registry lose a tag.
func (s *sides) untagging(tag tagOf) sideAct {
	act := s.untagged(tag)
	act.do = func() {
		tag.lose()
		tag.at.tryTag(tag.repository+":"+tag.tag, pull.Limits{})
	}
	act.model = func() {
		s.led[tag] = append(s.led[tag], s.leads[tag])
		s.leads[tag] = ""
	}
	return act
}

// deleting deletes an image.
func (s *sides) deleting(digest string) sideAct {
	act := s.deleted(digest)
	act.do = func() {
		image := s.get(digest)
		image.Annotations[annotation.AllowDelete] = strings.Join([]string{annotation.TaggedReason, annotation.UsedReason, annotation.NeededReason, annotation.UnknownReason, annotation.WorkloadsReason}, ",")
		if _, err := s.images.Update(s.t.Context(), image, metav1.UpdateOptions{}); err != nil {
			s.t.Fatal(err)
		}
		if err := s.images.Delete(s.t.Context(), digest, metav1.DeleteOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
	act.model = func() { delete(s.in, digest) }
	return act
}

// judgements are the verdicts on what containers name, by pod and container, and on where images
// are, by digest, place and namespace: "" is for pods of namespaces without policies of their own.
// Tags are places, too.
func (s *sides) judgements() (ofPods, ofPlaces map[string]string) {
	ofPods, ofPlaces = map[string]string{}, map[string]string{}
	for _, p := range s.pods {
		for i := range p.containers {
			ofPods[fmt.Sprint(p, " ", i)] = s.judged(p, &p.containers[i])
		}
	}
	for digest, places := range s.in {
		for _, p := range places {
			for _, namespace := range append([]string{""}, sideNamespaces...) {
				ofPlaces[digest+" "+p.name()+"#"+namespace] = s.verdict(p, "", digest, namespace)
				for tag, leads := range s.leads {
					if tag.place == p && leads == digest {
						ofPlaces[digest+" "+tag.String()+"#"+namespace] = s.verdict(p, tag.tag, digest, namespace)
					}
				}
			}
		}
	}
	return ofPods, ofPlaces
}

// touches are the pods that an act of policies touches, what is known to be whole before it, and
// whether it is undecided for some.
func (s *sides) touches(before, after []*sideRule) (pods []string, whole, undecided bool) {
	whole = !s.away
	turned := func(p *place, tag, digest, namespace string) bool {
		s.rules = before
		was := s.verdict(p, tag, digest, namespace)
		s.rules = after
		is := s.verdict(p, tag, digest, namespace)
		s.rules = before
		return was != is
	}
	for _, p := range s.pods { // each container, also of a pod that another one touches
		for i := range p.containers {
			if c := &p.containers[i]; !slices.Contains(s.in[s.runs(c)], c.of) {
				s.rules = before
				was := s.alternatives(c.of, p.namespace)
				s.rules = after
				is := s.alternatives(c.of, p.namespace)
				s.rules = before
				undecided = undecided || !slices.Equal(was, is)
			}
		}
	}
	pods = s.podsWith(func(p *sidePod, c *sideContainer) bool {
		digest := s.runs(c)
		return slices.Contains(s.in[digest], c.of) && turned(c.of, c.tag, digest, p.namespace)
	})
	for _, namespace := range append([]string{""}, sideNamespaces...) {
		for digest, places := range s.in {
			for _, p := range places {
				names := []string{""}
				for tag := range s.leads {
					if tag.place == p && s.leads[tag] == digest {
						names = append(names, tag.tag)
					}
				}
				for _, pod := range s.pods {
					for i := range pod.containers {
						if c := &pod.containers[i]; c.of == p && s.runs(c) == digest {
							names = append(names, c.tag)
						}
					}
				}
				if slices.ContainsFunc(names, func(tag string) bool { return turned(p, tag, digest, namespace) }) && s.unsure(digest) {
					whole = false
				}
			}
		}
	}
	// What a pod may run counts, too: by the tag that it names.
	for _, p := range s.pods {
		for i := range p.containers {
			c := &p.containers[i]
			for _, digest := range s.mayRun(p, c) {
				if slices.Contains(s.in[digest], c.of) && turned(c.of, c.tag, digest, p.namespace) {
					whole = false
				}
			}
		}
	}
	return pods, whole && !undecided, undecided
}

// perform asks about an act, does it, and asks what is so then.
func (s *sides) perform(act sideAct) {
	s.t.Helper()
	rules := s.rules
	was, held := s.judgements()
	got, code, output := s.foretell(act)
	sum := got.Status.Summary
	said := fmt.Sprintf("%s (%+v %+v)", act.what, sum, got.Status.Unknowns)
	act.do()
	act.model()
	is, holds := s.judgements()
	if act.pods == nil {
		after := s.rules
		pods, whole, undecided := s.touches(rules, after)
		s.rules = after
		s.is("act foretold", said, []any{sum.Pods, sum.PodsComplete, sum.Undecided > 0}, []any{len(pods), whole, undecided})
		s.is("act's exit code", act.what+"\n"+output, code, exitOf(pods, whole))
		turned := map[string]bool{}
		for container, verified := range is {
			if was[container] != verified {
				pod, _, _ := strings.Cut(container, " ")
				turned[pod] = true
			}
		}
		s.is("act foretold", "whose verdict turns by "+act.what, slices.Sorted(maps.Keys(turned)), pods)
	}
	s.review.swept()
	s.askContainers()
	s.done["verdicts"]++
	turned := map[string][]string{} // the places by image and verdict
	for place, verified := range holds {
		before, ok := held[place]
		repository := s.repositoryOf(place)
		if !ok || before == verified || repository != place && before == held[repository] && verified == holds[repository] {
			continue // it did not turn, or its repository's verdict says it
		}
		if s.notified(place, before, verified) {
			digest, name, _ := strings.Cut(place, " ")
			turned[digest+" "+verified] = append(turned[digest+" "+verified], strings.TrimSuffix(name, "#"))
		}
	}
	s.askEvents(turned)
}

// askEvents asks whether an Event tells of each image that some place now trusts, or no longer.
func (s *sides) askEvents(turned map[string][]string) {
	s.t.Helper()
	for what, places := range turned {
		digest, verified, _ := strings.Cut(what, " ")
		reason := map[string]string{"True": "SignatureVerified", "False": "SignatureRejected"}[verified]
		if reason == "" {
			continue
		}
		soon(s.t, fmt.Sprint("an Event says that ", digest, " is ", verified, " in one of ", places), func() bool {
			list, err := s.core.CoreV1().Events("default").List(s.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + digest + ",reason=" + reason})
			if err != nil {
				s.t.Fatal(err)
			}
			return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
				return slices.ContainsFunc(places, func(place string) bool {
					name, namespace, _ := strings.Cut(place, "#")
					return strings.Contains(e.Message, " in "+name) && strings.Contains(e.Message, "namespace "+namespace) == (namespace != "")
				})
			})
		})
		s.doors["Events"]++
	}
}

// repositoryOf is the key of judgements without the tag.
func (s *sides) repositoryOf(where string) string {
	digest, rest, _ := strings.Cut(where, " ")
	name, namespace, _ := strings.Cut(rest, "#")
	i := slices.IndexFunc(s.places, func(p *place) bool { return strings.HasPrefix(name, p.name()+":") })
	if i < 0 {
		return where
	}
	return digest + " " + s.places[i].name() + "#" + namespace
}

// notified awaits the event about a verdict in one place: a repository, or a tag whose verdict was
// or is another than that of its repository. It reports whether there is one.
func (s *sides) notified(where, before, verified string) bool {
	s.t.Helper()
	digest, rest, _ := strings.Cut(where, " ")
	name, namespace, _ := strings.Cut(rest, "#")
	i := slices.IndexFunc(s.places, func(p *place) bool { return name == p.name() || strings.HasPrefix(name, p.name()+":") })
	at, tag := s.places[i], strings.TrimPrefix(strings.TrimPrefix(name, s.places[i].name()), ":")
	own := func(namespace string) bool {
		r := s.rule(at, namespace)
		return r != nil && r.namespace != ""
	}
	if namespace != "" && !own(namespace) {
		return false // it is that of everybody
	}
	pods := s.podsWith(func(p *sidePod, c *sideContainer) bool {
		return (p.namespace == namespace || namespace == "" && !own(p.namespace)) && c.of == at && (tag == "" || c.tag == tag) && s.runs(c) == digest && s.judged(p, c) == verified
	})
	subject := name + "@" + digest
	event := s.ear.awaitWith("verdict.turned", subject, func(t told) bool { return t.Data.Namespace == namespace && t.Data.VerifiedBefore == before })
	s.is("notification", subject+" for "+namespace, []any{event.Data.Verified, *event.Data.Pods}, []any{verified, len(pods)})
	if tag != "" {
		s.doors["notification of a tag alone"]++
	}
	return true
}

// doActs asks what acts would change, does them, and asks again: one after the other, in a world
// that each leaves changed.
func (s *sides) doActs() {
	s.t.Helper()
	s.away = false
	soon(s.t, "no cluster is away", func() bool { return s.metric(s.read("/metrics"), `cluster_current{cluster="west"}`) == "1" })
	a, b := s.places[0].at.registry.Host, s.places[len(s.places)-1].at.registry.Host
	s.askNobody()
	s.loseContent()
	s.pruneNow()
	for _, act := range []func() sideAct{
		func() sideAct {
			return s.applying(sideRule{name: "free", scope: a + "/free", signer: "ours", lax: true})
		},
		func() sideAct {
			return s.applying(sideRule{name: "copies", namespace: "other", scope: b + "/copies", signer: "ours", lax: true})
		},
		func() sideAct {
			return s.applying(sideRule{name: "exact", scope: a + "/prod/app", signer: "theirs", lax: true})
		},
		func() sideAct {
			return s.applying(sideRule{name: "prod", scope: a + "/prod", signer: "ours", lax: true})
		},
		func() sideAct { return s.removing("", "exact") },
		func() sideAct { return s.removing("", "prod") },
		func() sideAct {
			return s.applying(sideRule{name: "idle", namespace: "team", scope: a + "/prod", signer: "theirs"})
		},
		func() sideAct { return s.waiting() },
		func() sideAct { return s.removing("other", "copies") },
		func() sideAct { return s.applying(sideRule{name: "prod", scope: a + "/prod", signer: "ours"}) },
		// from one signer to the other: each is enough for a while
		func() sideAct {
			return s.applying(sideRule{name: "prod", scope: a + "/prod", signer: "ours", group: "move"})
		},
		func() sideAct {
			return s.applying(sideRule{name: "prod-next", scope: a + "/prod", signer: "theirs", group: "move", lax: true})
		},
		func() sideAct { return s.removing("", "prod") },
		func() sideAct { return s.removing("", "strict") },
		func() sideAct { return s.untagging(s.leading(0)) },
		func() sideAct { return s.untagging(s.leading(1)) },
		func() sideAct { return s.deleting(s.told()[0]) },
		func() sideAct { return s.deleting(ofSide(s, s.told()...)) },
		func() sideAct { return s.revoking("theirs") },
		func() sideAct { return s.revoking("ours") },
		func() sideAct { return s.removing("", "lax") },
		func() sideAct { return s.removing("team", "ours") },
	} {
		s.perform(act())
	}
	s.pruneNow()
	s.askTotals()
}

// foretell asks about an act, and compares what is said with what is so before it. The verb is
// asked about every act of policies, and about the others once for each kind of act and exit code,
// while all clusters answer and while one does not.
func (s *sides) foretell(act sideAct) (got *answers.ImpactReview, code int, output string) {
	s.t.Helper()
	got, err := s.review.impact(act.spec)
	if err != nil {
		s.t.Fatalf("%s: %v", act.what, err)
	}
	run := func() (code int, output string) {
		code, stdout, stderr := s.run(append([]string{"impact"}, act.flags...)...)
		return code, stdout + stderr
	}
	if act.pods == nil {
		code, output = run()
		return got, code, output
	}
	pods, whole, undecided := act.pods()
	sum := got.Status.Summary
	s.is("impact", fmt.Sprintf("%s (%+v %+v)", act.what, sum, got.Status.Unknowns), []any{sum.Pods, sum.PodsComplete, sum.Undecided}, []any{len(pods), whole, undecided})
	if !sum.PodsComplete {
		s.is("impact's reason", act.what, len(got.Status.Unknowns) > 0, true)
	}
	kind, _, _ := strings.Cut(act.what, " ")
	if want := exitOf(pods, whole); s.covered.isNew(fmt.Sprint("impact: ", kind, strings.HasPrefix(act.spec.Delete, "sha256:"), want, s.away)) {
		code, output = run()
		s.is("impact's exit code", act.what+"\n"+output, code, want)
	}
	return got, code, output
}

// exitOf is how the verb ends that says which pods are touched.
func exitOf(pods []string, whole bool) int {
	switch {
	case len(pods) > 0:
		return exitTouched
	case !whole:
		return cli.ExitSome
	}
	return cli.ExitOK
}

// told are the stored images whose digest is told by all that run them. Once an image is deleted,
// nobody knows which one has the config that a node tells.
func (s *sides) told() []string {
	return slices.DeleteFunc(s.stored(), func(digest string) bool {
		return len(s.podsWith(func(_ *sidePod, c *sideContainer) bool {
			return c.digest == digest && strings.HasPrefix(c.imageID, "docker://")
		})) > 0
	})
}

// leading is a tag that leads to an image.
func (s *sides) leading(n int) tagOf {
	return slices.DeleteFunc(s.tags(), func(tag tagOf) bool { return s.leads[tag] == "" })[n]
}

// askNobody asks about acts on what nobody knows.
func (s *sides) askNobody() {
	for _, flags := range [][]string{{"--registry", "127.0.0.1:1"}, {"--revoke-key", "nobody@example.com"}, {"--delete", "r.example.com/none:v1"}} {
		code, stdout, stderr := s.run(append([]string{"impact"}, flags...)...)
		s.is("act's exit code", fmt.Sprint(flags, stdout, stderr), code, cli.ExitSome)
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/prune"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/importer/registrytest"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
)

// untagged is the act that a registry has a tag no longer.
func (s *sides) untagged(tag tagOf) sideAct {
	return sideAct{what: "delete " + tag.String(), spec: answers.ImpactReviewSpec{Delete: tag.String()}, flags: []string{"--delete", tag.String()}, pods: func() ([]string, bool, int) {
		return s.podsWith(func(_ *sidePod, c *sideContainer) bool {
			return c.of == tag.place && c.tag == tag.tag
		}), s.whole(s.leads[tag]), 0
	}}
}

// deleted is the act that an image is deleted.
func (s *sides) deleted(digest string) sideAct {
	return sideAct{what: "delete " + digest, spec: answers.ImpactReviewSpec{Delete: digest}, flags: []string{"--delete", digest}, pods: func() ([]string, bool, int) {
		return s.podsWith(func(_ *sidePod, c *sideContainer) bool {
			// what a pod names can no longer be pulled, either
			return s.runs(c) == digest || c.tag != "" && s.leads[tagOf{c.of, c.tag}] == digest
		}), s.whole(digest), 0
	}}
}

// lost is the act that a registry does not answer any more.
func (s *sides) lost(at *harbour) sideAct {
	host := at.registry.Host
	return sideAct{what: "lose " + host, spec: answers.ImpactReviewSpec{LoseRegistry: host}, flags: []string{"--registry", host}, pods: func() ([]string, bool, int) {
		whole := !s.away
		for _, digest := range s.stored() {
			whole = whole && (s.whole(digest) || !slices.ContainsFunc(s.in[digest], func(p *place) bool { return p.at == at }))
		}
		return s.podsWith(func(_ *sidePod, c *sideContainer) bool {
			return c.of.at == at && !s.isGone(c) // what is gone cannot go again
		}), whole, 0
	}}
}

// isGone reports whether a registry no longer has the tag that a container names.
func (s *sides) isGone(c *sideContainer) bool {
	digest, has := s.leads[tagOf{c.of, c.tag}]
	return c.tag != "" && has && digest == ""
}

// layer is the act that a layer is taken away.
func (s *sides) layer(i int) sideAct {
	layer := sideLayer(i)
	return sideAct{what: "layer " + layer, spec: answers.ImpactReviewSpec{Layer: layer}, flags: []string{"--layer", layer}, pods: func() ([]string, bool, int) {
		ghosts := map[string]bool{} // what runs and is not imported may have it
		for _, p := range s.pods {
			for _, c := range p.containers {
				if c.digest != "" && !s.isStored(c.digest) {
					ghosts[c.digest] = true
				}
			}
		}
		whole := !s.away && len(ghosts) == 0
		for _, digest := range s.stored() {
			whole = whole && (s.whole(digest) || !strings.Contains(s.manifests[digest], layer))
		}
		return s.podsWith(func(_ *sidePod, c *sideContainer) bool {
			digest := s.runs(c)
			return s.isStored(digest) && strings.Contains(s.manifests[digest], layer)
		}), whole, len(ghosts)
	}}
}

func sideLayer(i int) string { return manifest.Digest(fmt.Append(nil, "layer ", i)) }

// has reports whether a registry answers with all of what a reference leads to: its manifest, its
// config and its layers.
func (s *sides) has(p *place, tagOrDigest string) bool {
	s.t.Helper()
	get := func(path string) (int, []byte) {
		req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+p.at.registry.Host+"/v2/"+p.repository+path, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			s.t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			s.t.Fatal(err)
		}
		return resp.StatusCode, body
	}
	status, raw := get("/manifests/" + tagOrDigest)
	if status != http.StatusOK {
		return false
	}
	var m struct {
		Config struct{ Digest string }
		Layers []struct{ Digest string }
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		s.t.Fatal(err)
	}
	for _, blob := range append(m.Layers, m.Config) {
		if status, _ := get("/blobs/" + blob.Digest); status != http.StatusOK {
			return false
		}
	}
	return true
}

// named are the containers whose reference can be pulled, and content those whose image can be
// pulled from all places where it is, by pod and container.
func (s *sides) pulled() (named, content map[string]bool) {
	named, content = map[string]bool{}, map[string]bool{}
	known := map[string]bool{} // by name: several containers have the same
	has := func(p *place, tagOrDigest string) bool {
		name := p.name() + " " + tagOrDigest
		if _, ok := known[name]; !ok {
			known[name] = s.has(p, tagOrDigest)
		}
		return known[name]
	}
	for _, p := range s.pods {
		for i := range p.containers {
			c := &p.containers[i]
			key, of := fmt.Sprint(p, " ", i), c.tag
			if of == "" {
				of = strings.TrimPrefix(c.image[strings.Index(c.image, "@"):], "@")
			}
			named[key] = has(c.of, of)
			digest := s.runs(c)
			content[key] = s.isStored(digest) && !slices.ContainsFunc(s.in[digest], func(p *place) bool { return !has(p, digest) })
		}
	}
	return named, content
}

// heal has registries answer again. What is gone stays gone.
func (s *sides) heal() {
	for _, p := range s.places {
		p.at.registry.Heal()
	}
	for tag, digest := range s.leads {
		if digest == "" {
			tag.lose()
		}
	}
}

// loseContent has registries not answer, and layers be gone, after it asked what that would touch,
// and compares the pods with those whose images can no longer be pulled. What is stored stays: the
// verdicts, and where tags lead.
func (s *sides) loseContent() {
	s.t.Helper()
	for _, at := range []*harbour{s.places[0].at, s.places[len(s.places)-1].at} {
		act := s.lost(at)
		s.foretell(act)
		before, _ := s.pulled()
		at.registry.Inject("", 0, registrytest.Status(http.StatusForbidden, "DENIED"))
		after, _ := s.pulled()
		tag := s.tags()[slices.IndexFunc(s.tags(), func(tag tagOf) bool { return tag.at == at && s.leads[tag] != "" })]
		tag.at.tryTag(tag.repository+":"+tag.tag, pull.Limits{})
		s.compare(act, func(key string, c *sideContainer) bool {
			// Of a reference that was never imported it is not known that it could not be pulled.
			return !after[key] && (before[key] || c.of.at == at && !s.isGone(c))
		})
		answer := s.review.ask(answers.Question{Reference: tag.String()})[0]
		s.is("review", tag.String()+" while its registry is away", []any{answer.State, answer.Meaning.Digest}, []any{answers.Found, s.leads[tag]})
		s.askContainers()
		s.heal()
	}
	for i := range sideLayers {
		act := s.layer(i)
		s.foretell(act)
		_, before := s.pulled()
		for _, p := range s.places {
			p.at.registry.Inject("/blobs/"+sideLayer(i)+"$", 0, registrytest.Status(http.StatusNotFound, "BLOB_UNKNOWN"))
		}
		_, after := s.pulled()
		s.compare(act, func(key string, _ *sideContainer) bool { return before[key] && !after[key] })
		s.askContainers()
		s.heal()
	}
}

// compare compares the pods that were foretold with those that an act has touched, by a function of
// a container and its key.
func (s *sides) compare(act sideAct, touched func(key string, c *sideContainer) bool) {
	s.t.Helper()
	s.done["content"]++
	pods, _, _ := act.pods()
	s.is("act done", act.what, s.podsWith(func(p *sidePod, c *sideContainer) bool {
		i := slices.IndexFunc(p.containers, func(other sideContainer) bool { return other == *c })
		return touched(fmt.Sprint(p, " ", i), c)
	}), pods)
}

// pruneNow prunes, after it asked what that would delete. What runs, what a tag leads to and what
// may run stays, and all doors say so.
func (s *sides) pruneNow() {
	s.t.Helper()
	s.done["prune"]++
	s.askPrune()
	var goes []string
	for digest, d := range s.prune() {
		if d.Decision != prune.Keep {
			goes = append(goes, digest)
		}
	}
	slices.Sort(goes)
	before, want := s.stored(), cli.ExitOK
	if slices.ContainsFunc(before, func(digest string) bool { return !s.needed(digest) && !s.whole(digest) }) {
		want = cli.ExitSome // it is kept because it is not known whether it runs
	}
	for range 2 { // what is marked first is deleted then
		code, stdout, stderr := s.run("prune", "--keep-younger-than", "0s", "--keep-tag-revisions", "0", "--grace", "0s", "--confirm")
		s.is("prune's exit code", stdout+stderr, code, want)
	}
	for _, digest := range before {
		if !s.needed(digest) && s.whole(digest) {
			delete(s.in, digest)
		}
	}
	var stored []string
	list, err := s.images.List(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, image := range list.Items {
		stored = append(stored, image.Name)
	}
	slices.Sort(stored)
	s.is("prune done", "what stays", stored, s.stored())
	s.is("prune done", "what goes", slices.DeleteFunc(before, func(digest string) bool { return slices.Contains(stored, digest) }), goes)
	s.review.swept()
	s.askContainers()
	s.askUse()
	s.askReferences()
}

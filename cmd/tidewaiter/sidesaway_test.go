package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	restclient "k8s.io/client-go/rest"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/imageapi/prune"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/controllers/inventory"
	"github.com/tidewaiter/tidewaiter/internal/image/annotation"
	"github.com/tidewaiter/tidewaiter/web/admin"
)

// askAway asks again while a cluster does not answer: what is known stays, and nothing counts as
// none.
func (s *sides) askAway() {
	s.t.Helper()
	s.clusters["west"].Hang(true)
	s.away = true
	defer s.clusters["west"].Hang(false)
	first := answers.Question{Reference: s.stored()[0]}
	soon(s.t, "the cluster counts as away", func() bool { return len(s.review.ask(first)[0].Unknowns) > 0 })
	s.askReferences()
	s.askUse()
	s.askVerbs()
	if _, stdout, stderr := s.run("images", "--cluster", "west", "-A"); !strings.Contains(stderr, "west") {
		s.t.Errorf("images says nothing of the cluster that is away: %s%s", stdout, stderr)
	}
	s.askActs()
	s.askRulings()
	s.askPrune()
	metrics := s.read("/metrics")
	for cluster, current := range map[string]string{"east": "1", "west": "0", "local": "1"} {
		s.is("metrics", "cluster_current "+cluster+" while one is away", s.metric(metrics, `cluster_current{cluster="`+cluster+`"}`), current)
	}
	soon(s.t, "what runs is counted again", func() bool {
		var sum inventory.Summary
		if err := json.Unmarshal([]byte(s.read("/tidewaiter/summary")), &sum); err != nil {
			s.t.Fatal(err)
		}
		return slices.ContainsFunc(sum.Unknown, func(why string) bool { return strings.Contains(why, "west") })
	})
	shown := s.attention()
	s.is("Attention", "clusters that are away", shown["Clusters that are away"], 1)
	s.is("Attention", "what runs and is gone", shown["Runs and is gone from its registry"], "unknown")
	for title, n := range map[string]int{
		"Runs and is not verified": len(s.podsJudged("False")), "Runs and is unsigned": len(s.podsJudged("Unsigned")), "Runs and cannot be judged": len(s.podsJudged("Unknown")),
		"Runs something else than its tag leads to": len(s.podsSo("true")),
	} {
		want := fmt.Sprint(n, "+")
		if n == 0 {
			want = "unknown"
		}
		s.is("Attention", title+" while a cluster is away", shown[title], want)
	}
	for _, query := range []string{"", "?verified=Excepted", "?reason=KeyExpired", "?outdated=true", "?cluster=west"} {
		s.is("Running", query+" while a cluster is away says that it is", strings.Contains(s.read("/console/running"+query), "west"), true)
	}
	s.askPages()
}

// askRulings asks what acts about policies would touch, and does none.
func (s *sides) askRulings() {
	s.t.Helper()
	now := s.rules
	for _, act := range []sideAct{
		s.applying(sideRule{name: "free", scope: s.places[0].at.registry.Host + "/free", signer: "ours", lax: true}), s.removing("", "prod"), s.waiting(), s.revoking("theirs"),
	} {
		act.model()
		then := s.rules
		pods, whole, undecided := s.touches(now, then)
		s.rules = now
		got, code, output := s.foretell(act)
		sum := got.Status.Summary
		s.is("act foretold", fmt.Sprintf("%s (%+v %+v)", act.what, sum, got.Status.Unknowns), []any{sum.Pods, sum.PodsComplete, sum.Undecided > 0}, []any{len(pods), whole, undecided})
		s.is("act's exit code", act.what+"\n"+output, code, exitOf(pods, whole))
	}
	code, stdout, stderr := s.run("impact", "--package", "nosuch")
	s.is("act's exit code", "a package\n"+stdout+stderr, code, cli.ExitSome)
}

// needed reports whether pods run an image, or a tag leads to it.
func (s *sides) needed(digest string) bool {
	return len(s.podsOf(digest)) > 0 || slices.ContainsFunc(s.tags(), func(tag tagOf) bool { return s.leads[tag] == digest })
}

// askPrune asks what prune would do with each image.
func (s *sides) askPrune() {
	decided := s.prune()
	for _, digest := range s.stored() {
		d, unknown := decided[digest], false
		needed := s.needed(digest)
		if !needed {
			unknown = !s.whole(digest)
		}
		s.is("prune", fmt.Sprintf("%s %+v", digest, d), []any{d.Decision == prune.Keep, d.Reason == annotation.UnknownReason}, []any{needed || unknown, unknown})
	}
}

// sideUsers are users by their roles, which end with a slash and a namespace if they have one
// there, and the doors that are open to them.
var sideUsers = map[string]string{
	"cluster-admin": "images tags streams packages policies clusterpods clusters runs teamruns review impact local pods team summary metrics verification spool receivers",
	"view":          "images tags streams packages policies clusterpods clusters runs teamruns review impact local pods team", "tidewaiter:image-viewer": "images tags streams packages policies review impact team",
	"tidewaiter:cluster-viewer": "clusterpods clusters runs teamruns local", "tidewaiter:summary-viewer": "summary", "tidewaiter:metrics": "metrics", "tidewaiter:policy-editor": "policies",
	"tidewaiter:pruner": "images tags streams team review", "tidewaiter:registry": "images streams team",
	"tidewaiter:verifier": "verification", "tidewaiter:queue-viewer": "spool receivers", "view/team": "teamruns local pods team", "edit/team": "teamruns local pods team", "nobody": "",
}

// askUsers asks as users with different roles.
func (s *sides) askUsers() {
	s.t.Helper()
	text := s.tags()[len(s.tags())-1].String()
	review := func(kind string) string {
		return fmt.Sprintf(`{"apiVersion":"tidewaiter.dev/v1","kind":%q,"spec":{"references":[{"reference":%q}]}}`, kind, text)
	}
	const ours = "/apis/tidewaiter.dev/v1/"
	doors := map[string][2]string{ // paths and bodies
		"images": {"/apis/image.openshift.io/v1/images?limit=1"}, "tags": {"/apis/image.openshift.io/v1/namespaces/default/imagetags?limit=1"},
		"streams": {"/apis/image.openshift.io/v1/imagestreams?limit=1"}, "team": {"/apis/image.openshift.io/v1/namespaces/team/imagestreams?limit=1"},
		"packages": {ours + "imagepackages?limit=1"}, "clusters": {ours + "clusters?limit=1"}, "runs": {ours + "imageruns?limit=1"}, "teamruns": {ours + "namespaces/team/imageruns?limit=1"},
		"policies": {"/apis/config.openshift.io/v1/clusterimagepolicies?limit=1"}, "receivers": {"/tidewaiter/receivers"},
		"clusterpods": {clusterPodsPath + "?limit=1"}, "review": {ours + answers.Resource, review(answers.Kind)},
		"impact": {impactsPath, fmt.Sprintf(`{"apiVersion":"tidewaiter.dev/v1","kind":"ImpactReview","spec":{"delete":%q}}`, text)},
		"local":  {ours + "namespaces/team/localreferencereviews", review("LocalReferenceReview")}, "pods": {"/api/v1/namespaces/team/pods?limit=1"},
		"summary": {"/tidewaiter/summary"}, "metrics": {"/metrics"}, "verification": {admin.VerificationPath}, "spool": {admin.SpoolPath},
	}
	for user, open := range sideUsers {
		role, namespace, _ := strings.Cut(user, "/")
		if role != "nobody" {
			bind(s.t, s.core, user, role, namespace)
		}
		config := as(s.Config, user)
		client, err := restclient.HTTPClientFor(config)
		if err != nil {
			s.t.Fatal(err)
		}
		for door, at := range doors {
			method := http.MethodGet
			if at[1] != "" {
				method = http.MethodPost
			}
			req, err := http.NewRequestWithContext(s.t.Context(), method, config.Host+at[0], bytes.NewReader([]byte(at[1])))
			if err != nil {
				s.t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			resp, err := client.Do(req)
			if err != nil {
				s.t.Fatal(err)
			}
			resp.Body.Close()
			want := http.StatusForbidden
			if slices.Contains(strings.Fields(open), door) {
				if want = http.StatusOK; at[1] != "" {
					want = http.StatusCreated
				}
			}
			s.is("users", user+" at "+door, resp.StatusCode, want)
		}
		client.CloseIdleConnections()
	}
	// Who may read images sees how many pods run them, and not which.
	viewer := newReviewer(s.t, as(s.Config, "tidewaiter:image-viewer"))
	for _, digest := range s.stored() {
		answer := viewer.ask(answers.Question{Reference: digest})[0]
		s.is("users", "an image-viewer of "+digest, []any{answer.Running.Pods, len(answer.Running.Names), len(answer.Running.Clusters), len(answer.NeededBy)}, []any{len(s.podsOf(digest)), 0, 0, 0})
	}
}

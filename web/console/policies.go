package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// Paths of the API.
const (
	clusterPoliciesPath = "/apis/config.openshift.io/v1/clusterimagepolicies"
	policiesPath        = "/apis/config.openshift.io/v1/imagepolicies"
	verificationPath    = "/tidewaiter/verification"
)

// policyView is a policy and its status.
type policyView struct {
	Name, Namespace, Root, Match text
	Alternatives                 text
	File                         string
	Scopes                       []text
	Applied, Covers, Satisfiable condition
	Exceptions                   condition // zero if there are none
}

// sweep is the progress of judging all images again.
type sweep struct {
	Number   int64 `json:"sweep"`
	Running  bool  `json:"running"`
	Total    int64 `json:"total"`
	Examined int64 `json:"examined"`
	Changed  int64 `json:"changed"`
	Failed   int64 `json:"failed"`
}

// Share is the percentage of images that are done.
func (s *sweep) Share() int64 {
	if s.Total <= 0 {
		return 100
	}
	return min(100, s.Examined*100/s.Total)
}

// policiesView has the data of the page of policies.
type policiesView struct {
	Policies                       []*policyView
	Refused, RefusedSweep, Trouble *notice
	Sweep                          *sweep
	MayVerify                      bool
	Asked                          string
	Namespace                      string
	Answer                         *referenceAnswer
}

// policyViews reads the policies of the cluster and of namespaces.
func (v *visit) policyViews() (all []*policyView, err error) {
	for _, path := range []string{clusterPoliciesPath, policiesPath} {
		var l list[imagePolicy]
		if err := v.call.get(v.ctx(), path, url.Values{"limit": {"1000"}}, &l); err != nil {
			return all, err
		}
		for _, p := range l.Items {
			all = append(all, &policyView{
				Name: p.Metadata.Name, Namespace: p.Metadata.Namespace, Root: p.Spec.Policy.RootOfTrust.PolicyType, Match: p.Spec.Policy.SignedIdentity.MatchPolicy, Scopes: p.Spec.Scopes, Alternatives: p.Spec.Alternatives,
				File:    printable.Line(p.Metadata.Annotations["tidewaiter.dev/policy-file"], 256),
				Applied: find(p.Status.Conditions, "Applied"), Covers: find(p.Status.Conditions, "CoversImages"), Satisfiable: find(p.Status.Conditions, "Satisfiable"),
				Exceptions: find(p.Status.Conditions, "Exceptions"),
			})
		}
		if l.Metadata.Continue != "" {
			return all, fmt.Errorf("there are more than %s policies, and the others are not looked at", thousands(len(l.Items)))
		}
	}
	return all, nil
}

// policies shows the policies, and how they judge a reference.
func (v *visit) policies() error {
	query := v.r.URL.Query()
	data := &policiesView{Asked: strings.TrimSpace(printable.Line(query.Get("try"), 1024)), Namespace: strings.TrimSpace(printable.Line(query.Get("namespace"), 256))}
	var err error
	if data.Policies, err = v.policyViews(); isCode(err, http.StatusUnauthorized) {
		return err
	}
	data.Refused = noticeOf("list policies", err)
	data.Sweep = &sweep{}
	if err := v.call.get(v.ctx(), verificationPath, nil, data.Sweep); isCode(err, http.StatusUnauthorized) {
		return err
	} else if err != nil {
		data.Sweep, data.RefusedSweep = nil, noticeOf("see how far verification is", err)
	}
	data.MayVerify = data.Sweep != nil && v.may("post", verificationPath)
	p := &page{Name: "policies", Title: "Policies", Nav: "policies", Data: data, Commands: []string{"kubectl get clusterimagepolicies,imagepolicies -A"}}
	if data.Asked != "" {
		switch got, err := v.reviewOf(reviewSpec{References: []question{{Reference: text(data.Asked), Namespace: text(data.Namespace)}}}); {
		case isCode(err, http.StatusUnauthorized):
			return err
		case err != nil:
			data.Trouble = noticeOf("ask about references", err)
		default:
			data.Answer, p.AsOf = &got.References[0], got.AsOf
		}
		p.Commands = append(p.Commands, "tidewaiter verify "+quoted(data.Asked))
	}
	return v.show(p)
}

// verify starts a sweep that judges all images again.
func (v *visit) verify() error {
	if err := v.call.post(v.ctx(), verificationPath, nil, nil, nil); err != nil {
		return err
	}
	v.goTo(Root + "policies#sweep")
	return nil
}

package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// countUpTo is how far things are counted: a page says "100+" rather than read everything.
const countUpTo = 100

// concern is something that may need somebody.
type concern struct {
	Title, About, Link string
	Count              int
	More               bool // there are more than Count
	Oldest             time.Time
	Grave              bool
	Refused            *notice
}

// share is how many images have a verdict.
type share struct {
	Verified string
	Count    int
	More     bool
	Width    int // of a bar, in percent of the widest
}

// attentionView is what the first page shows.
type attentionView struct {
	Concerns []*concern
	Fine     []*concern // that were asked and have nothing
	Refused  []*concern
	Shares   []share
	Total    int64 // of images; -1 if it is not known
	Why      *notice
}

// counted is a count of a list, as far as it was read.
type counted struct {
	n      int
	more   bool
	oldest time.Time
}

// count reads the beginning of a list.
func (v *visit) count(path, selector string) (c counted, err error) {
	query := url.Values{"limit": {fmt.Sprint(countUpTo)}}
	if selector != "" {
		query.Set("fieldSelector", selector)
	}
	var l list[struct {
		Metadata objectMeta `json:"metadata"`
	}]
	err = v.call.do(v.ctx(), http.MethodGet, path, query, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", nil, &l)
	if c.n, c.more = len(l.Items), l.Metadata.Continue != ""; c.more {
		return c, err // the oldest may be among the others
	}
	for _, item := range l.Items {
		if at := item.Metadata.Created; c.oldest.IsZero() || at.Before(c.oldest) {
			c.oldest = at
		}
	}
	return c, err
}

// attention shows what needs somebody.
func (v *visit) attention() error {
	data := &attentionView{Total: -1}
	images := func(selector string) func(*concern) error {
		return func(c *concern) error {
			got, err := v.count(imagesPath, selector)
			c.Count, c.More, c.Oldest = got.n, got.more, got.oldest
			return err
		}
	}
	all := []struct {
		*concern
		ask func(*concern) error
	}{
		{&concern{Title: "Runs and is not verified", About: "pods use images whose signatures no policy trusts", Link: link("images", "verdict", "False", "used", "true"), Grave: true}, images("signatures.verified=False,used=true")},
		{&concern{Title: "Runs and is not signed", About: "a policy demands a signature of these images, and there is none", Link: link("images", "verdict", "Unsigned", "used", "true"), Grave: true}, images("signatures.verified=Unsigned,used=true")},
		{&concern{Title: "Runs something else than its tag leads to", About: "pods name a tag that has moved since they started", Link: link("running", "outdated", "true")}, v.countOutdated},
		{&concern{Title: "Not verified", About: "images with signatures of which none is trusted", Link: link("images", "verdict", "False"), Grave: true}, images("signatures.verified=False")},
		{&concern{Title: "Not signed", About: "images of which a policy demands a signature", Link: link("images", "verdict", "Unsigned")}, images("signatures.verified=Unsigned")},
		{&concern{Title: "Verdict unknown", About: "images whose signatures could not all be read or judged", Link: link("images", "verdict", "Unknown")}, images("signatures.verified=Unknown")},
		{&concern{Title: "Imports that failed", About: "pushes that were given up", Link: Root + "activity#queue", Grave: true}, v.countDead},
		{&concern{Title: "Clusters that are away", About: "what is known of their pods is old", Link: Root + "running"}, v.countAway},
		{&concern{Title: "Policies that do nothing", About: "no image is covered, or no signature can meet them", Link: Root + "policies"}, v.countIdlePolicies},
	}
	verdicts := []string{"True", "ByIndex", "False", "Unsigned", "NoPolicy", "Unknown"}
	shares, sharesErr := make([]share, len(verdicts)), error(nil)
	errs := make([]error, len(all))
	var group errgroup.Group
	group.SetLimit(4)
	for i := range all {
		group.Go(func() error { errs[i] = all[i].ask(all[i].concern); return nil })
	}
	for i, verified := range verdicts {
		group.Go(func() error {
			c, err := v.count(imagesPath, "signatures.verified="+verified)
			shares[i] = share{Verified: verified, Count: c.n, More: c.more}
			return err
		})
	}
	group.Go(func() error {
		var l list[struct{}]
		err := v.call.do(v.ctx(), http.MethodGet, imagesPath, url.Values{"limit": {"1"}}, "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", nil, &l)
		if err == nil && (l.Metadata.Remaining != nil || l.Metadata.Continue == "") {
			data.Total = int64(len(l.Items))
			if l.Metadata.Remaining != nil {
				data.Total += *l.Metadata.Remaining
			}
		}
		return err
	})
	sharesErr = group.Wait()
	for i, one := range all {
		switch err := errs[i]; {
		case isCode(err, http.StatusUnauthorized):
			return err
		case err != nil:
			one.Refused = noticeOf("see this", err)
			data.Refused = append(data.Refused, one.concern)
		case one.Count > 0:
			data.Concerns = append(data.Concerns, one.concern)
		default:
			data.Fine = append(data.Fine, one.concern)
		}
	}
	if data.Why = noticeOf("list images", sharesErr); data.Why == nil {
		widest := 1
		for _, s := range shares {
			widest = max(widest, s.Count)
		}
		for i := range shares {
			shares[i].Width = shares[i].Count * 100 / widest
		}
		data.Shares = shares
	}
	return v.show(&page{Name: "attention", Title: "Attention", Nav: "attention", Data: data, Commands: []string{
		"kubectl get images --field-selector signatures.verified=False,used=true", "tidewaiter pods --outdated", "tidewaiter spool list --state dead",
	}})
}

func (v *visit) countOutdated(c *concern) error {
	got, err := v.count(podsPath, "outdated=true")
	c.Count, c.More, c.Oldest = got.n, got.more, got.oldest
	return err
}

func (v *visit) countDead(c *concern) error {
	var s spool
	err := v.call.get(v.ctx(), spoolPath, url.Values{"state": {"dead"}}, &s)
	for _, j := range s.Jobs {
		if c.Count++; c.Oldest.IsZero() || j.Enqueued.Before(c.Oldest) {
			c.Oldest = j.Enqueued
		}
	}
	return err
}

func (v *visit) countAway(c *concern) error {
	var l list[cluster]
	err := v.call.get(v.ctx(), clustersPath, nil, &l)
	for _, one := range l.Items {
		if away := find(one.Status.Conditions, "Reachable"); away.Status != "True" {
			if c.Count++; c.Oldest.IsZero() || away.Since.Before(c.Oldest) {
				c.Oldest = away.Since
			}
		}
	}
	return err
}

func (v *visit) countIdlePolicies(c *concern) error {
	policies, err := v.policyViews()
	for _, p := range policies {
		if p.Idle() {
			c.Count++
		}
	}
	return err
}

// Idle reports whether a policy does nothing, as far as that is known.
func (p *policyView) Idle() bool {
	return p.Covers.Status == "False" || p.Satisfiable.Status == "False" || strings.EqualFold(string(p.Applied.Status), "False")
}

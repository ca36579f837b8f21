package console

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// countUpTo is how far things are counted for a page: it says "100+" rather than read everything, unless a sweep has counted them.
const countUpTo = 100

// summaryPath is where the API tells what is stored, in numbers.
const summaryPath = "/tidewaiter/summary"

// concern is something that may need somebody.
type concern struct {
	Title, About, Link string
	Count              int
	More               bool // there are more than Count
	Oldest             time.Time
	Counted            time.Time // when Count was found out, if not now
	Grave              bool
	Refused            *notice
	selector           string // of the images that are counted
}

// share is how many images have a verdict.
type share struct {
	Verified string
	Count    int
	More     bool
	Counted  time.Time // when Count was found out, if not now
	Width    int       // of a bar, in percent of the widest
}

// attentionView is what the first page shows.
type attentionView struct {
	Concerns []*concern
	Fine     []*concern // that were asked and have nothing
	Refused  []*concern
	Shares   []share
	Total    int64 // of images; -1 if it is not known
	Why      *notice
	Stored   *storedView
	NoStored *notice
}

// storedView is how much is stored, and what was pushed lately.
type storedView struct {
	summary
	Days  []pushDay
	Total int64 // of the pushes
}

// pushDay is a bar of the chart of pushes, in units of its drawing.
type pushDay struct {
	Name, Date text
	Tags       int64
	X, Y, High int
}

// The drawing of the chart of pushes.
const (
	chartHigh = 72
	chartStep = 40
)

// storedOf lays out what is stored.
func storedOf(s *summary) *storedView {
	v, most := &storedView{summary: *s}, int64(1)
	for _, day := range s.Pushes {
		most = max(most, day.Tags)
	}
	for i, day := range s.Pushes[:min(len(s.Pushes), 31)] {
		one := pushDay{Name: day.Date, Date: day.Date, Tags: day.Tags, X: i * chartStep}
		if at, err := time.Parse(time.DateOnly, string(day.Date)); err == nil {
			one.Name = text(at.Format("Mon"))
		}
		if day.Tags > 0 {
			one.High = max(2, int(float64(day.Tags)/float64(most)*chartHigh))
		}
		one.Y = chartHigh - one.High
		v.Total += day.Tags
		v.Days = append(v.Days, one)
	}
	return v
}

// SharedPercent is how much smaller the layers are because images share them, in percent.
func (v *storedView) SharedPercent() int64 {
	if v.LayerBytes <= 0 {
		return 0
	}
	return 100 - int64(float64(v.DistinctLayerBytes)/float64(v.LayerBytes)*100)
}

// counts is how many images have a verdict, as far as a page counted, or as the last sweep did if that is more.
func (v *storedView) counts(verified string, n int, more bool) (int, bool, time.Time) {
	if v == nil || !more || v.Verified[verified] <= int64(n) {
		return n, more, time.Time{}
	}
	return int(v.Verified[verified]), false, v.ImagesAsOf
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
	policies := sync.OnceValues(v.policyViews)
	spooled := func(state string) func() ([]job, error) {
		return func() ([]job, error) {
			var s spool
			err := v.call.get(v.ctx(), spoolPath, url.Values{"state": {state}}, &s)
			return s.Jobs, err
		}
	}
	images := func(selector string) func(*concern) error {
		return func(c *concern) error {
			got, err := v.count(imagesPath, selector)
			c.Count, c.More, c.Oldest, c.selector = got.n, got.more, got.oldest, selector
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
		{&concern{Title: "Imports that failed", About: "pushes that were given up", Link: Root + "activity#queue", Grave: true}, countDead(spooled("dead"))},
		{&concern{Title: "Registries that are away", About: "pushes wait for them, and are tried again", Link: Root + "activity#queue"}, countRegistriesAway(spooled("waiting"))},
		{&concern{Title: "Clusters that are away", About: "what is known of their pods is old", Link: Root + "running"}, v.countAway},
		{&concern{Title: "Policies that do nothing", About: "no image is covered, or no signature can meet them", Link: Root + "policies"}, countPolicies(policies, (*policyView).Idle)},
		{&concern{Title: "Certificates and keys that end soon", About: "in 30 days no new signature can meet these policies", Link: Root + "policies"}, countPolicies(policies, (*policyView).EndsSoon)},
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
	var stored summary
	var storedErr error
	group.Go(func() error { storedErr = v.call.get(v.ctx(), summaryPath, nil, &stored); return nil })
	sharesErr = group.Wait()
	if data.NoStored = noticeOf("see how much is stored", storedErr); storedErr == nil {
		data.Stored = storedOf(&stored)
	}
	for _, one := range all {
		if verified, ok := strings.CutPrefix(one.selector, "signatures.verified="); ok {
			one.Count, one.More, one.Counted = data.Stored.counts(verified, one.Count, one.More)
		}
	}
	for i, one := range all {
		switch err := errs[i]; {
		case isCode(err, http.StatusUnauthorized):
			return err
		case err != nil:
			one.Refused = noticeOf("see this", err)
			if same := slices.IndexFunc(data.Refused, func(c *concern) bool { return *c.Refused == *one.Refused }); same >= 0 {
				data.Refused[same].Title += ", " + strings.ToLower(one.Title[:1]) + one.Title[1:]
				continue
			}
			data.Refused = append(data.Refused, one.concern)
		case one.Count > 0:
			data.Concerns = append(data.Concerns, one.concern)
		default:
			data.Fine = append(data.Fine, one.concern)
		}
	}
	if data.Why = noticeOf("list images", sharesErr); data.Why == nil {
		widest := 1
		for i := range shares {
			shares[i].Count, shares[i].More, shares[i].Counted = data.Stored.counts(shares[i].Verified, shares[i].Count, shares[i].More)
			widest = max(widest, shares[i].Count)
		}
		for i := range shares {
			shares[i].Width = shares[i].Count * 100 / widest
		}
		data.Shares = shares
	}
	return v.show(&page{Name: "attention", Title: "Attention", Nav: "attention", Data: data, Commands: []string{
		"kubectl get images --field-selector signatures.verified=False,used=true", "tidewaiter pods --outdated", "tidewaiter spool list --state dead", "kubectl get --raw " + summaryPath,
	}})
}

func (v *visit) countOutdated(c *concern) error {
	got, err := v.count(podsPath, "outdated=true")
	c.Count, c.More, c.Oldest = got.n, got.more, got.oldest
	return err
}

// countDead counts pushes that were given up.
func countDead(jobs func() ([]job, error)) func(*concern) error {
	return func(c *concern) error {
		all, err := jobs()
		for _, j := range all {
			if c.Count++; c.Oldest.IsZero() || j.Enqueued.Before(c.Oldest) {
				c.Oldest = j.Enqueued
			}
		}
		return err
	}
}

// countRegistriesAway counts the registries of which pushes wait that failed before.
func countRegistriesAway(jobs func() ([]job, error)) func(*concern) error {
	return func(c *concern) error {
		all, err := jobs()
		hosts := map[string]bool{}
		for _, j := range all {
			if host, _, ok := strings.Cut(string(j.Key), "/"); ok && j.Error != "" {
				hosts[host] = true
				if c.Oldest.IsZero() || j.Enqueued.Before(c.Oldest) {
					c.Oldest = j.Enqueued
				}
			}
		}
		c.Count = len(hosts)
		return err
	}
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

// countPolicies counts the policies of which something holds.
func countPolicies(policies func() ([]*policyView, error), holds func(*policyView) bool) func(*concern) error {
	return func(c *concern) error {
		all, err := policies()
		for _, p := range all {
			if holds(p) {
				c.Count++
			}
		}
		return err
	}
}

// Idle reports whether a policy does nothing, as far as that is known.
func (p *policyView) Idle() bool {
	return p.Covers.Status == "False" || p.Satisfiable.Status == "False" || strings.EqualFold(string(p.Applied.Status), "False")
}

// EndsSoon reports whether all that a policy trusts will have expired soon.
func (p *policyView) EndsSoon() bool {
	return p.Satisfiable.Status == "True" && p.Satisfiable.Reason == "EndsSoon"
}

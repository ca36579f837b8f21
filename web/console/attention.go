package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// countUpTo is how far things are counted for a page: it says "100+" rather than read everything,
// unless a sweep has counted them.
const countUpTo = 100

// summaryPath is where the API tells what is stored, in numbers.
const summaryPath = "/tidewaiter/summary"

// concern is something that may need somebody.
type concern struct {
	counted
	Title, About, Link string
	Grave              bool
	Refused            *notice
}

// share is how many images have a verdict.
type share struct {
	counted
	Verified string
	Width    int // of a bar, in percent of the widest
}

// attentionView has the data of the first page.
type attentionView struct {
	Concerns []*concern
	Fine     []*concern // that were asked and have nothing
	Refused  []*concern
	Shares   []share
	Total    int64 // of images; -1 if it is not known
	Why      *notice
	Stored   *storedView
	NoStored *notice
	Ending   []certificate // of the server, that end soon
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

// counted is a count of a list, as far as it was read.
type counted struct {
	Count   int
	More    bool // there are more than Count
	Oldest  time.Time
	Counted time.Time // when it was counted, if not now
}

// count counts a list, as far as a page counts.
func (v *visit) count(path, selector string) (counted, error) {
	return v.countTo(countUpTo, path, selector)
}

// countTo reads the beginning of a list. Of some lists the API finds out what matches when it reads
// them: then the beginning may have none although more follow.
func (v *visit) countTo(limit int, path, selector string) (c counted, err error) {
	var l list[struct {
		Metadata objectMeta `json:"metadata"`
	}]
	if err := v.call.getAs(v.ctx(), asNames, path, url.Values{"limit": {fmt.Sprint(limit)}, "fieldSelector": {selector}}, &l); err != nil {
		return c, err
	}
	if c.Count, c.More = len(l.Items), l.Metadata.Continue != ""; c.More {
		if c.Count == 0 {
			return c, unknown("The beginning of the list has none, and it was not read to its end.")
		}
		return c, nil // the oldest may be among the others
	}
	for i := range l.Items {
		if at := l.Items[i].Metadata.Created; c.Oldest.IsZero() || at.Before(c.Oldest) {
			c.Oldest = at
		}
	}
	return c, nil
}

// ofVerdict counts the images with a verdict. Those that are many are as the last sweep counted
// them. Until the first has ended, a page that may know the count soon reads few of them.
func (v *visit) ofVerdict(verified string, s *summary, refused error) (counted, error) {
	swept := counted{Count: int(s.Verified[verified]), Counted: s.ImagesAsOf}
	if swept.Count > 10*countUpTo {
		return swept, nil
	}
	limit := countUpTo
	if refused == nil && s.ImagesAsOf.IsZero() {
		limit = countUpTo / 10
	}
	c, err := v.countTo(limit, imagesPath, "signatures.verified="+verified)
	if c.More && swept.Count > c.Count {
		return swept, err
	}
	return c, err
}

// usedOfVerdict counts the images with a verdict that pods use. To find them the API reads all that
// pods use. If these are more than a page counts, they are as the server counted them last; refused
// is why it does not tell, and used counts them.
func (v *visit) usedOfVerdict(verified string, s *summary, refused error, used func() (counted, error)) (counted, error) {
	all := int64(0)
	for _, n := range s.Used {
		all += n
	}
	switch {
	case refused != nil:
		if c, err := used(); err != nil || c.More {
			return counted{}, cmp.Or(err, refused)
		}
	case s.UsedAsOf.IsZero():
		return counted{}, s.runningUnknown()
	case all > countUpTo:
		return s.running(counted{Count: int(s.Used[verified]), Counted: s.UsedAsOf})
	}
	c, err := v.count(imagesPath, "signatures.verified="+verified+",used=true")
	if err != nil {
		return c, err
	}
	return s.running(c)
}

// outdated counts the pods that run something else than their tag leads to. The API finds that out
// for each pod that it reads, so a page reads few of them if it is refused what the server has
// found.
func (v *visit) outdated(s *summary, refused error) (counted, error) {
	switch {
	case refused != nil:
		c, err := v.countTo(podRows, podsPath, "outdated=true")
		if c.More {
			return c, refused
		}
		return c, err
	case s.Outdated == nil:
		return counted{}, s.runningUnknown()
	}
	return s.running(counted{Count: int(*s.Outdated)})
}

// unknown is why something is not known, in a sentence.
type unknown string

func (u unknown) Error() string { return string(u) }

// runningUnknown is why the server does not know all that runs.
func (s *summary) runningUnknown() unknown {
	return unknown(cmp.Or(joined(s.GoneUnknown, "; "), "What runs is being counted for the first time."))
}

// running is a count of what runs. There may be more while not all that runs is known.
func (s *summary) running(c counted) (counted, error) {
	if len(s.GoneUnknown) > 0 {
		if c.Count == 0 {
			return c, s.runningUnknown()
		}
		c.More = true
	}
	return c, nil
}

// gone counts the images that run and that their registries no longer have.
func gone(s *summary, refused error) (counted, error) {
	switch {
	case refused != nil:
		return counted{}, refused
	case s.Gone == nil:
		return counted{}, s.runningUnknown()
	}
	return s.running(counted{Count: int(*s.Gone), Oldest: s.GoneSince, Counted: s.UsedAsOf})
}

// verdictWords are the verdicts, as the API has them.
var verdictWords = []string{"True", "ByIndex", "False", "Unsigned", "NoPolicy", "Excepted", "Unknown"}

// verdictChoices are the verdicts with the words that people read.
func verdictChoices() (all [][2]string) {
	for _, verified := range verdictWords {
		all = append(all, [2]string{verified, verdictOf(verified).Word})
	}
	return all
}

// certificateEndsSoon is how long before its end a certificate of the server is shown. The server
// renews its own earlier.
const certificateEndsSoon = 14 * 24 * time.Hour

// ending counts the server's certificates that end soon.
func (v *visit) ending(s *summary, refused error) (soon []certificate, c counted, err error) {
	if refused != nil {
		return nil, c, refused
	}
	for _, one := range s.Certificates {
		switch {
		case one.Unknown != "":
			err = unknown(one.Name + ": " + one.Unknown)
		case one.Ends.Sub(v.clock.Now()) <= certificateEndsSoon:
			soon = append(soon, one)
		}
	}
	if c.Count = len(soon); c.Count > 0 {
		c.More, err = err != nil, nil
	}
	return soon, c, err
}

// attention shows what needs somebody.
func (v *visit) attention() error {
	data, stored := &attentionView{Total: -1}, &summary{}
	storedErr := v.call.get(v.ctx(), summaryPath, nil, stored)
	if isCode(storedErr, http.StatusUnauthorized) {
		return storedErr
	}
	if data.NoStored = noticeOf("see how much is stored", storedErr); storedErr == nil {
		data.Stored = storedOf(stored)
	}
	ofVerdict := map[string]func() (counted, error){} // of which two places show the count
	for _, verified := range verdictWords {
		ofVerdict[verified] = sync.OnceValues(func() (counted, error) { return v.ofVerdict(verified, stored, storedErr) })
	}
	policies, clusters := sync.OnceValues(v.policyViews), sync.OnceValues(v.clusters)
	spooled := func(state string) func() ([]job, error) {
		return func() ([]job, error) {
			var s spool
			err := v.call.get(v.ctx(), spoolPath, url.Values{"state": {state}}, &s)
			return s.Jobs, err
		}
	}
	allUsed := sync.OnceValues(func() (counted, error) { return v.count(imagesPath, "used=true") })
	used := func(verified string) func() (counted, error) {
		return func() (counted, error) { return v.usedOfVerdict(verified, stored, storedErr, allUsed) }
	}
	all := []struct {
		*concern
		ask func() (counted, error)
	}{
		{&concern{Title: "Runs and is not verified", About: "pods use images whose signatures no policy trusts", Link: link("images", "verdict", "False", "used", "true"), Grave: true}, used("False")},
		{&concern{Title: "Runs and is not signed", About: "a policy demands a signature of these images, and there is none", Link: link("images", "verdict", "Unsigned", "used", "true"), Grave: true}, used("Unsigned")},
		{&concern{Title: "Runs something else than its tag leads to", About: "pods name a tag that has moved since they started", Link: link("running", "outdated", "true")}, func() (counted, error) { return v.outdated(stored, storedErr) }},
		{&concern{Title: "Runs and is gone from its registry", About: "another node could not pull these images", Link: link("images", "gone", "true", "used", "true"), Grave: true}, func() (counted, error) { return gone(stored, storedErr) }},
		{&concern{Title: "Not verified", About: "images with signatures of which none is trusted", Link: link("images", "verdict", "False"), Grave: true}, ofVerdict["False"]},
		{&concern{Title: "Not signed", About: "images of which a policy demands a signature", Link: link("images", "verdict", "Unsigned")}, ofVerdict["Unsigned"]},
		{&concern{Title: "Verdict unknown", About: "images whose signatures could not all be read or judged", Link: link("images", "verdict", "Unknown")}, ofVerdict["Unknown"]},
		{&concern{Title: "Imports that failed", About: "pushes that were given up", Link: Root + "activity#queue", Grave: true}, countDead(spooled("dead"))},
		{&concern{Title: "Registries that are away", About: "pushes wait for them, and are tried again", Link: Root + "activity#queue"}, countRegistriesAway(spooled("waiting"))},
		{&concern{Title: "Clusters that are away", About: "what is known of their pods is old", Link: Root + "running"}, countClusters(clusters, (*cluster).away)},
		{&concern{Title: "Access to clusters that ends soon", About: "in two weeks, or earlier, their pods cannot be followed any more", Link: Root + "running", Grave: true}, countClusters(clusters, (*cluster).endsSoon)},
		{&concern{Title: "Policies that do nothing", About: "no image is covered, or no signature can meet them", Link: Root + "policies"}, countPolicies(policies, (*policyView).idle)},
		{&concern{Title: "Certificates and keys that end soon", About: "in 30 days no new signature can meet these policies", Link: Root + "policies"}, countPolicies(policies, (*policyView).endsSoon)},
		{&concern{Title: "Exceptions that end soon", About: "in a week, or earlier, what they let through will not meet these policies", Link: Root + "policies"}, countPolicies(policies, (*policyView).exceptionEndsSoon)},
		{&concern{Title: "Certificates of this server that end soon", About: "in two weeks, or earlier, connections by them will fail", Link: "#certificates", Grave: true}, func() (c counted, err error) {
			data.Ending, c, err = v.ending(stored, storedErr)
			return c, err
		}},
	}
	shares, sharesErr := make([]share, len(verdictWords)), error(nil)
	errs := make([]error, len(all))
	var group errgroup.Group
	group.SetLimit(4)
	for i := range all {
		group.Go(func() error {
			all[i].counted, errs[i] = all[i].ask()
			return nil
		})
	}
	for i, verified := range verdictWords {
		group.Go(func() (err error) {
			shares[i].Verified = verified
			shares[i].counted, err = ofVerdict[verified]()
			return err
		})
	}
	group.Go(func() (err error) {
		data.Total, err = v.allImages()
		return err
	})
	sharesErr = group.Wait()
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

// add counts one more, which is since a time.
func (c *counted) add(since time.Time) {
	if c.Count++; c.Oldest.IsZero() || since.Before(c.Oldest) {
		c.Oldest = since
	}
}

// countDead counts pushes that were given up.
func countDead(jobs func() ([]job, error)) func() (counted, error) {
	return func() (c counted, err error) {
		all, err := jobs()
		for _, j := range all {
			c.add(j.Enqueued)
		}
		return c, err
	}
}

// countRegistriesAway counts the registries of which pushes wait that failed before.
func countRegistriesAway(jobs func() ([]job, error)) func() (counted, error) {
	return func() (c counted, err error) {
		all, err := jobs()
		hosts := map[string]bool{}
		for _, j := range all {
			if host, _, ok := strings.Cut(string(j.Key), "/"); ok && j.Error != "" && !strings.HasPrefix(string(j.Receiver), "notify/") {
				hosts[host] = true
				c.add(j.Enqueued)
			}
		}
		c.Count = len(hosts)
		return c, err
	}
}

// countClusters counts the followed clusters of which something holds by one of their conditions.
func countClusters(clusters func() ([]cluster, error), holds func(*cluster) (condition, bool)) func() (counted, error) {
	return func() (c counted, err error) {
		all, err := clusters()
		for i := range all {
			if by, ok := holds(&all[i]); ok {
				c.add(by.Since)
			}
		}
		return c, err
	}
}

// countPolicies counts the policies of which something holds by one of their conditions.
func countPolicies(policies func() ([]*policyView, error), holds func(*policyView) (condition, bool)) func() (counted, error) {
	return func() (c counted, err error) {
		all, err := policies()
		for _, p := range all {
			if by, ok := holds(p); ok {
				c.add(by.Since)
			}
		}
		return c, err
	}
}

// idle reports whether a policy does nothing, as far as that is known.
func (p *policyView) idle() (condition, bool) {
	for _, c := range []condition{p.Covers, p.Satisfiable, p.Applied} {
		if strings.EqualFold(string(c.Status), "False") {
			return c, true
		}
	}
	return condition{}, false
}

// endsSoon reports whether all that a policy trusts will have expired soon.
func (p *policyView) endsSoon() (condition, bool) {
	return p.Satisfiable, p.Satisfiable.Status == "True" && p.Satisfiable.Reason == "EndsSoon"
}

// exceptionEndsSoon reports whether an exception of a policy ends soon.
func (p *policyView) exceptionEndsSoon() (condition, bool) {
	return p.Exceptions, p.Exceptions.Status == "True" && p.Exceptions.Reason == "EndsSoon"
}

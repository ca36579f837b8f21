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

	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// countUpTo is how many objects a page counts: it shows "100+" rather than read all, unless a sweep
// has counted them.
const countUpTo = 100

// summaryPath is where the API serves counts of stored objects.
const summaryPath = "/tidewaiter/summary"

// concern is something that may need attention.
type concern struct {
	counted
	Title, About, Link string
	Next               string // what to do
	Grave              bool
	Refused            *notice
	// Where selects the pods of the workloads that the card names, Which the images that it names.
	Where, Which string
	Workloads    []*workload
	Whole        bool // these are all
	Images       []imageRow
	Unnamed      *notice // why it names none
}

// share is how many images have a verdict.
type share struct {
	counted
	Verified string
	Width    int // of a bar, in percent of all
}

// attentionView has the data of the first page.
type attentionView struct {
	Sentence string // what follows for somebody
	Concerns []*concern
	Alone    bool       // no cluster is followed
	Fine     []*concern // those with a count of 0
	Refused  []*concern
	Shares   []share
	Total    int64     // number of images; -1 if unknown
	Counted  time.Time // when Total and Shares were counted, if not now
	Why      *notice
	Stored   *storedView
	NoStored *notice
	Ending   []certificate // of the server, that end soon
	Moved    []overwritten // tags that moved although they must not
	Lost     []lost        // registries that may have lost their storage
}

// storedView shows how much is stored, and the pushes of the last days.
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

// counted is the count of a list, or of its beginning if it was not read to its end.
type counted struct {
	Count   int
	More    bool // there are more than Count
	Oldest  time.Time
	Counted time.Time // when it was counted, if not now
}

// count counts up to countUpTo objects of a list.
func (v *visit) count(path, selector string) (counted, error) {
	return v.countTo(countUpTo, path, selector)
}

// countTo counts the beginning of a list. Some selectors are computed for each object that the API
// reads: then the beginning may have no match although later objects have one.
func (v *visit) countTo(limit int, path, selector string) (c counted, err error) {
	c, _, err = v.countWarned(limit, path, selector)
	return c, err
}

// countWarned is countTo with the warnings that come with the list.
func (v *visit) countWarned(limit int, path, selector string) (c counted, warnings []text, err error) {
	var l list[struct {
		Metadata objectMeta `json:"metadata"`
	}]
	if warnings, err = v.call.getWarnedAs(v.ctx(), asNames, path, url.Values{"limit": {fmt.Sprint(limit)}, "fieldSelector": {selector}}, &l); err != nil {
		return c, nil, err
	}
	if c.Count, c.More = len(l.Items), l.Metadata.Continue != ""; c.More {
		if c.Count == 0 {
			return c, warnings, unknown("None at the beginning of the list; the rest was not read.")
		}
		return c, warnings, nil // the oldest may be among the others
	}
	for i := range l.Items {
		if at := l.Items[i].Metadata.Created; c.Oldest.IsZero() || at.Before(c.Oldest) {
			c.Oldest = at
		}
	}
	return c, warnings, nil
}

// orDoubted completes a count of a list of pods. The list warns of pods that are not known, as of a
// cluster that is away: there may be more, and that there is none is not known.
func orDoubted(c counted, warnings []text, err error) (counted, error) {
	switch {
	case err != nil || len(warnings) == 0:
		return c, err
	case c.Count == 0:
		return c, unknown(joined(warnings, "; "))
	}
	c.More = true
	return c, nil
}

// ofVerdict returns how many images have a verdict, from the server's last count of all images. If
// the caller may not read that count, or there is none yet, the page reads a few of the images.
func (v *visit) ofVerdict(verified string, s *summary, refused error) (counted, error) {
	limit := countUpTo
	if refused == nil && s.ImagesAsOf.IsZero() {
		limit = countUpTo / 10
	}
	all := counted{Count: int(s.Verified[verified]), Counted: s.ImagesAsOf}
	if refused == nil && !s.ImagesAsOf.IsZero() && (all.Count == 0 || all.Count > countUpTo) {
		return all, nil
	}
	c, err := v.countTo(limit, imagesPath, "signatures.verified="+verified)
	if refused != nil || s.ImagesAsOf.IsZero() {
		return c, err
	}
	all.Oldest = c.Oldest // unknown to a person who may not list images
	return all, nil
}

// usedOfVerdict counts the pods that name something with a verdict. The API computes that for each
// pod that it reads. If there are more pods than a page reads, the count is the server's last one;
// refused is why the page cannot read that count.
func (v *visit) usedOfVerdict(verified string, s *summary, refused error) (counted, error) {
	all := int64(0)
	for _, n := range s.Used {
		all += n
	}
	switch {
	case refused == nil && s.UsedAsOf.IsZero():
		return counted{}, s.runningUnknown()
	case refused == nil && all > podRows:
		return s.running(counted{Count: int(s.Used[verified]), Counted: s.UsedAsOf})
	case refused != nil:
		c, warnings, err := v.countWarned(podRows, podsPath, "verified="+verified)
		if c.More {
			return c, refused
		}
		return orDoubted(c, warnings, err)
	}
	c, err := v.countTo(podRows, podsPath, "verified="+verified)
	switch {
	case err != nil || c.More: // there are more pods than were counted
		return s.running(counted{Count: int(s.Used[verified]), Counted: s.UsedAsOf})
	}
	return s.running(c)
}

// outdated counts the pods that run another image than their tag leads to. It uses the server's
// count. If the page may not read that, it reads some pods, because the API computes this for each
// pod.
func (v *visit) outdated(s *summary, refused error) (counted, error) {
	switch {
	case refused != nil:
		c, err := v.countTo(podRows, podsPath, "outdated=true")
		if c.More {
			return c, refused
		}
		if err != nil {
			return c, err
		}
		others, warnings, err := v.countWarned(podRows, podsPath, "outdated=unknown")
		if c, err = orUnknown(c, int64(others.Count), err); others.Count > 0 {
			return c, err
		}
		return orDoubted(c, warnings, err)
	case s.Outdated == nil:
		return counted{}, s.runningUnknown()
	}
	c, err := s.running(counted{Count: int(*s.Outdated)})
	return orUnknown(c, s.OutdatedUnknown, err)
}

// orUnknown returns a count of outdated pods, or an error if it is 0 and unsure pods may be
// outdated.
func orUnknown(c counted, unsure int64, err error) (counted, error) {
	switch {
	case err != nil || unsure == 0:
		return c, err
	case c.Count == 0:
		return c, unknown(fmt.Sprintf("%s perhaps outdated: on Running, choose Not known for Drift.", tablecells.Clause(unsure, "pod", "are")))
	}
	c.More = true
	return c, nil
}

// unknown is an error that says why a count is not known.
type unknown string

func (u unknown) Error() string { return string(u) }

// runningUnknown returns why the server's counts of what runs are incomplete.
func (s *summary) runningUnknown() unknown {
	return unknown(cmp.Or(joined(s.GoneUnknown, "; "), "The first count of what runs has not ended."))
}

// running completes a count of what runs: if not all clusters are known, there may be more.
func (s *summary) running(c counted) (counted, error) {
	if len(s.GoneUnknown) > 0 {
		if c.Count == 0 {
			return c, s.runningUnknown()
		}
		c.More = true
	}
	return c, nil
}

// gone counts the images that run although their registries no longer have them.
func gone(s *summary, refused error) (counted, error) {
	switch {
	case refused != nil:
		return counted{}, refused
	case s.Gone == nil:
		return counted{}, s.runningUnknown()
	}
	return s.running(counted{Count: int(*s.Gone), Oldest: s.GoneSince, Counted: s.UsedAsOf})
}

// verdictChoices are the values of verdicts with their words on pages.
func verdictChoices() (all [][2]string) {
	for _, l := range looks {
		all = append(all, [2]string{l.Value, l.Word})
	}
	return all
}

// certificateEndsSoon is how long before its end the page shows a certificate of the server. The
// server renews its own certificates earlier.
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

// moved counts the tags that have moved although they must not.
func moved(s *summary, refused error) (c counted, err error) {
	switch {
	case refused != nil:
		return c, refused
	case s.Overwritten == nil:
		return c, unknown("The tags have not all been read yet.")
	}
	if c.Count = *s.Overwritten; c.Count == len(s.OverwrittenTags) {
		for i := range s.OverwrittenTags {
			if at := s.OverwrittenTags[i].Since; c.Oldest.IsZero() || at.Before(c.Oldest) {
				c.Oldest = at
			}
		}
	}
	return c, nil
}

// lost counts the registries that may have lost their storage.
func (s *summary) lost(refused error) (c counted, err error) {
	if refused != nil {
		return c, refused
	}
	for _, one := range s.LostRegistries {
		c.add(one.Since)
	}
	return c, nil
}

// attention shows what needs attention.
func (v *visit) attention() error {
	data, stored := &attentionView{Total: -1}, &summary{}
	storedErr := v.call.get(v.ctx(), summaryPath, nil, stored)
	if isCode(storedErr, http.StatusUnauthorized) {
		return storedErr
	}
	if data.NoStored = noticeOf("see how much is stored", storedErr); storedErr == nil {
		data.Stored = storedOf(stored)
	}
	ofVerdict := map[string]func() (counted, error){} // two places show each count
	for _, one := range looks {
		verified := one.Value
		ofVerdict[verified] = sync.OnceValues(func() (counted, error) { return v.ofVerdict(verified, stored, storedErr) })
	}
	policies, clusters := sync.OnceValues(v.policyViews), sync.OnceValues(v.clusters)
	spooled := func(state string) func() ([]queuedJob, bool, error) {
		return func() ([]queuedJob, bool, error) { return v.jobs(state) }
	}
	used := func(verified string) func() (counted, error) {
		return func() (counted, error) { return v.usedOfVerdict(verified, stored, storedErr) }
	}
	all := []struct {
		*concern
		ask func() (counted, error)
	}{
		{&concern{Title: "Runs and is not verified", About: "pods name images whose signatures their policies do not trust", Next: "see why, then sign the image or roll the workload back", Link: link("running", "verified", "False"), Where: "verified=False", Grave: true}, used("False")},
		{&concern{Title: "Runs and is unsigned", About: "a policy demands a signature of what these pods name, and there is none", Next: "sign the image, or roll the workload back", Link: link("running", "verified", "Unsigned"), Where: "verified=Unsigned", Grave: true}, used("Unsigned")},
		{&concern{Title: "Runs and cannot be judged", About: "it is not known whether what these pods name meets its policies", Next: "see why, and import what is not imported", Link: link("running", "verified", "Unknown"), Where: "verified=Unknown"}, used("Unknown")},
		{&concern{Title: "Runs and is gone from its registry", About: "another node could not pull these images", Next: "push the image again, or move the workload to another", Link: link("images", "gone", "true", "used", "true"), Which: "gone=true,used=true", Grave: true}, func() (counted, error) { return gone(stored, storedErr) }},
		{&concern{Title: "Runs something else than its tag leads to", About: "pods name a tag that has moved since they started", Next: "restart the workload to run what the tag leads to", Link: link("running", "outdated", "true"), Where: "outdated=true"}, func() (counted, error) { return v.outdated(stored, storedErr) }},
		{&concern{Title: "Tags that moved and must not", About: "they lead to another image than they did first, against a rule", Next: "accept the move, or move the tag back", Link: "#moved", Grave: true}, func() (counted, error) {
			data.Moved = stored.OverwrittenTags
			return moved(stored, storedErr)
		}},
		{&concern{Title: "Not verified", About: "images that have signatures, none of them trusted", Next: "sign them, or delete them", Link: link("images", "verdict", "False"), Which: "signatures.verified=False", Grave: true}, ofVerdict["False"]},
		{&concern{Title: "Unsigned", About: "images without the signature that a policy demands", Next: "sign them, or delete them", Link: link("images", "verdict", "Unsigned"), Which: "signatures.verified=Unsigned"}, ofVerdict["Unsigned"]},
		{&concern{Title: "Verdict unknown", About: "images whose signatures could not all be read or judged", Next: "open one: its page says what could not be read", Link: link("images", "verdict", "Unknown"), Which: "signatures.verified=Unknown"}, ofVerdict["Unknown"]},
		{&concern{Title: "Imports that failed", About: "pushes that were given up", Next: "retry or drop them", Link: Root + "activity#queue", Grave: true}, countDead(spooled("dead"), false)},
		{&concern{Title: "Notifications that failed", About: "their receivers did not take them", Next: "retry or drop them", Link: Root + "activity#queue"}, countDead(spooled("dead"), true)},
		{&concern{Title: "Registries that may have lost their storage", About: "most repositories in which they had images are empty; what is known of them is shown as it was seen last", Next: "restore the registry, or correct the credentials of this server", Link: "#lost", Grave: true}, func() (counted, error) {
			data.Lost = stored.LostRegistries
			return stored.lost(storedErr)
		}},
		{&concern{Title: "Registries that are away", About: "their pushes wait and are tried again", Next: "nothing, if they come back", Link: Root + "activity#queue"}, countRegistriesAway(spooled("waiting"))},
		{&concern{Title: "Clusters that are away", About: "their pods are shown as they were last seen", Next: "see why it cannot be reached", Link: Root + "running"}, countClusters(clusters, (*cluster).away)},
		{&concern{Title: "Access to clusters that ends soon", About: "within two weeks, their pods can no longer be followed", Next: "give the server a new kubeconfig", Link: Root + "running", Grave: true}, countClusters(clusters, (*cluster).endsSoon)},
		{&concern{Title: "Policies that do nothing", About: "no image is covered, or no signature can meet them", Next: "correct their scopes or keys", Link: Root + "policies"}, countPolicies(policies, (*policyView).idle)},
		{&concern{Title: "Certificates and keys that end soon", About: "within 30 days, new signatures can no longer meet these policies", Next: "add the next key to the policy", Link: Root + "policies"}, countPolicies(policies, (*policyView).endsSoon)},
		{&concern{Title: "Exceptions that end soon", About: "within a week, the images that they let through no longer meet these policies", Next: "sign the images, or extend the exception", Link: Root + "policies"}, countPolicies(policies, (*policyView).exceptionEndsSoon)},
		{&concern{Title: "Certificates of this server that end soon", About: "within two weeks, connections that use them fail", Next: "replace the files", Link: "#certificates", Grave: true}, func() (c counted, err error) {
			data.Ending, c, err = v.ending(stored, storedErr)
			return c, err
		}},
	}
	shares, sharesErr := make([]share, len(looks)), error(nil)
	errs := make([]error, len(all))
	var group errgroup.Group
	group.SetLimit(4)
	for i := range all {
		group.Go(func() error {
			if all[i].counted, errs[i] = all[i].ask(); errs[i] == nil && all[i].Count > 0 {
				errs[i] = v.name(all[i].concern)
			}
			return nil
		})
	}
	for i, one := range looks {
		group.Go(func() (err error) {
			shares[i].Verified = one.Value
			shares[i].counted, err = ofVerdict[one.Value]()
			return err
		})
	}
	group.Go(func() (err error) {
		if data.Counted = stored.ImagesAsOf; !data.Counted.IsZero() {
			data.Total = stored.Images
			return nil
		}
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
		data.share(shares)
	}
	followed, err := clusters()
	data.Alone = err == nil && !follows(followed)
	data.Sentence = data.sentence()
	return v.show(&page{Name: "attention", Title: "Attention", Nav: "attention", Data: data, Commands: []string{
		"kubectl get clusterpods --field-selector verified=False", "tidewaiter pods --outdated", "tidewaiter spool list --state dead", "kubectl get --raw " + summaryPath,
	}})
}

// share sets the images by verdict, with bars of the length of their part of all.
func (v *attentionView) share(all []share) {
	sum := 0
	for i := range all {
		sum += all[i].Count
	}
	for i := range all {
		if n := all[i].Count; n > 0 {
			all[i].Width = max(1, n*100/sum)
		}
	}
	v.Shares = all
}

// add counts one more, and keeps the earliest since.
func (c *counted) add(since time.Time) {
	if c.Count++; c.Oldest.IsZero() || since.Before(c.Oldest) {
		c.Oldest = since
	}
}

// countDead counts pushes, or notifications, that were given up.
func countDead(jobs func() ([]queuedJob, bool, error), notifications bool) func() (counted, error) {
	return func() (c counted, err error) {
		all, more, err := jobs()
		for _, j := range all {
			if j.isNotification() == notifications {
				c.add(j.Enqueued)
			}
		}
		if c.More = more; more && c.Count == 0 && err == nil {
			err = unknown(fmt.Sprintf("None of the first %d jobs that were given up; the others were not read.", len(all)))
		}
		return c, err
	}
}

// countRegistriesAway counts the registries whose pushes have failed and wait for the next attempt.
func countRegistriesAway(jobs func() ([]queuedJob, bool, error)) func() (counted, error) {
	return func() (c counted, err error) {
		all, more, err := jobs()
		hosts := map[string]bool{}
		for _, j := range all {
			if host, _, ok := strings.Cut(string(j.Key), "/"); ok && j.Error != "" && !j.isNotification() {
				hosts[host] = true
				c.add(j.Enqueued)
			}
		}
		if c.Count, c.More = len(hosts), more; more && c.Count == 0 && err == nil {
			err = unknown(fmt.Sprintf("None of the first %d pushes that wait has failed; the others were not read.", len(all)))
		}
		return c, err
	}
}

// countClusters counts the followed clusters for which holds is true.
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

// countPolicies counts the policies for which holds is true.
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

// idle reports whether a policy is known to do nothing.
func (p *policyView) idle() (condition, bool) {
	for _, c := range []condition{p.Covers, p.Satisfiable, p.Applied} {
		if strings.EqualFold(string(c.Status), "False") {
			return c, true
		}
	}
	return condition{}, false
}

// endsSoon reports whether all keys and certificates that a policy trusts expire soon.
func (p *policyView) endsSoon() (condition, bool) {
	return p.Satisfiable, p.Satisfiable.Status == "True" && p.Satisfiable.Reason == "EndsSoon"
}

// exceptionEndsSoon reports whether an exception of a policy ends soon.
func (p *policyView) exceptionEndsSoon() (condition, bool) {
	return p.Exceptions, p.Exceptions.Status == "True" && p.Exceptions.Reason == "EndsSoon"
}

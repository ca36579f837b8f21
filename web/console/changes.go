package console

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"
)

// feedPath is the path of the feed with the entries that Attention gained and lost.
const feedPath = Root + "changes.atom"

// Bounds on the changes of a page.
const (
	changedDays  = 7   // that may be asked about
	changedPages = 4   // pages of stretches that are read for each verdict that fails
	changedRows  = 200 // changes that are shown
)

// change is something that Attention gained or lost.
type change struct {
	At     time.Time
	Lost   bool // it no longer needs anybody
	Before bool // it happened at some time before At
	What   string
	By     text // more about it
	Link   string
}

// Sign says whether it is new in Attention, or over.
func (c *change) Sign() string {
	if c.Lost {
		return "Over"
	}
	return "New"
}

// changesView has the data of the page of changes.
type changesView struct {
	Days    int
	Since   time.Time
	Rows    []change
	More    bool      // not all changes were read or are shown
	Unknown []text    // what is not known about that time
	Refused []*notice // what could not be read
	none    error     // why nothing could be read
}

// changes shows what Attention gained and lost.
func (v *visit) changes() error {
	p := &page{Name: "changes", Title: "What changed", Nav: "attention", Feed: feedPath}
	if err := v.begin(p); err != nil {
		return err
	}
	data, err := v.changedInDays()
	if err != nil {
		return err
	}
	since := data.Since.Format(time.RFC3339)
	p.Data, p.Commands = data, []string{
		fmt.Sprintf("tidewaiter changes --since %dd", data.Days), "tidewaiter ran --from " + since + " --verified False", "tidewaiter ran --from " + since + " --verified Unsigned",
	}
	return v.show(p)
}

// changedInDays reads what changed in the days that the query asks about, the last one by default.
func (v *visit) changedInDays() (*changesView, error) {
	days, _ := strconv.Atoi(v.r.URL.Query().Get("days")) // anything but a number is a day
	days = min(max(days, 1), changedDays)
	data, err := v.changed(v.clock.Now().UTC().AddDate(0, 0, -days).Truncate(time.Second))
	if err == nil {
		data.Days = days
	}
	return data, err
}

// changed reads what changed since a time.
func (v *visit) changed(since time.Time) (*changesView, error) {
	data := &changesView{Since: since}
	sources := []struct {
		what string
		read func() (changesView, error)
	}{
		{"list what ran", func() (changesView, error) { return v.runsChanged(since, "False") }},
		{"list what ran", func() (changesView, error) { return v.runsChanged(since, "Unsigned") }},
		{"see what drifted", func() (changesView, error) { return v.runsDrifted(since) }},
		{"see which tags moved and must not", v.tagsOverwritten},
		{"list clusters", v.clustersChanged},
		{"list policies", v.policiesChanged},
		{"see which imports failed", v.importsGivenUp},
	}
	found, errs := make([]changesView, len(sources)), make([]error, len(sources))
	var group errgroup.Group
	group.SetLimit(4)
	for i, s := range sources {
		group.Go(func() (err error) {
			found[i], errs[i] = s.read()
			if isCode(errs[i], http.StatusUnauthorized) {
				return errs[i]
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if !slices.Contains(errs, nil) {
		data.none = errs[0]
	}
	for i, s := range sources {
		if n := noticeOf(s.what, errs[i]); n != nil && !slices.ContainsFunc(data.Refused, func(o *notice) bool { return *o == *n }) {
			data.Refused = append(data.Refused, n)
		}
		data.More = data.More || found[i].More
		data.Unknown = append(data.Unknown, found[i].Unknown...)
		for _, c := range found[i].Rows {
			if !c.At.Before(since) {
				data.Rows = append(data.Rows, c)
			}
		}
	}
	slices.Sort(data.Unknown)
	data.Unknown = slices.Compact(data.Unknown)
	slices.SortFunc(data.Rows, func(a, b change) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.What, b.What), cmp.Compare(a.By, b.By), cmp.Compare(a.Sign(), b.Sign()))
	})
	data.Rows = slices.Compact(data.Rows)
	if len(data.Rows) > changedRows {
		data.Rows, data.More = data.Rows[:changedRows], true
	}
	return data, nil
}

// runsChanged finds what began or ceased to run with a verdict that fails.
func (v *visit) runsChanged(since time.Time, verified string) (all changesView, err error) {
	ask := url.Values{"limit": {fmt.Sprint(ranRead)}, "fieldSelector": {"verified=" + verified + ",from=" + since.Format(time.RFC3339) + ",until=" + v.clock.Now().UTC().Format(time.RFC3339)}}
	for range changedPages {
		var runs list[imageRun]
		warnings, err := v.call.getWarned(v.ctx(), runsPath, ask, &runs)
		if err != nil {
			return all, err
		}
		all.Unknown = append(all.Unknown, warnings...)
		for i := range runs.Items {
			all.Rows = append(all.Rows, runs.Items[i].changes()...)
		}
		if all.More = runs.Metadata.Continue != ""; !all.More {
			break
		}
		ask.Set("continue", runs.Metadata.Continue)
	}
	return all, nil
}

// changes returns when a stretch began to need attention, and when that was over.
func (r *imageRun) changes() (all []change) {
	failed := false
	add := func(at time.Time, lost bool, does string) *change {
		all = append(all, change{
			At: at, Lost: lost, What: fmt.Sprintf("%s %s %s", r.Spec.Workload, does, r.Spec.Image),
			By: r.Spec.Cluster + " / " + r.Metadata.Namespace + ", " + r.Spec.Container, Link: workloadLink(r.Spec.Cluster, r.Metadata.Namespace, r.Spec.Workload),
		})
		return &all[len(all)-1]
	}
	was := look{}
	for i, one := range r.Status.Verdicts {
		at, now, cause := one.Since, verdictOf(one.Verified), text("")
		if i == 0 {
			at = r.Spec.From
		} else if one.Cause != "" {
			cause = " (" + one.Cause + ")"
		}
		switch fails := verdictPlace(one.Verified) < verdictPlace("Unknown"); {
		case fails && !failed:
			add(at, false, "runs").By += ": " + text(now.Word) + cause
		case !fails && failed:
			add(at, true, "runs").By += ": " + text(was.Word+" before, now "+now.Word) + cause
		}
		failed, was = verdictPlace(one.Verified) < verdictPlace("Unknown"), now
	}
	if failed && !r.Status.Until.IsZero() {
		c := add(r.Status.Until, true, "no longer runs")
		c.By, c.Before = c.By+": "+text(was.Word), r.EndUnseen()
	}
	return all
}

// tagsOverwritten finds the tags that moved and must not.
func (v *visit) tagsOverwritten() (all changesView, err error) {
	var s summary
	if err := v.call.get(v.ctx(), summaryPath, nil, &s); err != nil {
		return all, err
	}
	if s.Overwritten == nil {
		return all, unknown("The tags have not all been read yet.")
	}
	for _, t := range s.OverwrittenTags {
		all.Rows = append(all.Rows, change{At: t.Since, What: "The tag " + string(t.Reference) + " moved and must not", By: t.Message, Link: link("image", "ref", t.Reference)})
	}
	all.More = *s.Overwritten > len(s.OverwrittenTags)
	return all, nil
}

// clustersChanged finds the clusters that went away or came back.
func (v *visit) clustersChanged() (all changesView, err error) {
	clusters, err := v.clusters()
	for i := range clusters {
		c := &clusters[i]
		if c.Metadata.Name == ownCluster {
			continue
		}
		reachable, away := c.away()
		one := change{At: reachable.Since, Lost: !away, What: "The cluster " + string(c.Metadata.Name) + " can be reached", Link: Root + "running"}
		if away {
			one.What, one.By = "The cluster "+string(c.Metadata.Name)+" is away", reachable.Message
		}
		all.Rows = append(all.Rows, one)
		if credential, soon := c.endsSoon(); soon {
			all.Rows = append(all.Rows, change{At: credential.Since, What: "Access to the cluster " + string(c.Metadata.Name) + " ends soon", By: credential.Message, Link: Root + "running"})
		}
	}
	return all, err
}

// policiesChanged finds the policies that began to need attention.
func (v *visit) policiesChanged() (all changesView, err error) {
	policies, err := v.policyViews()
	for _, p := range policies {
		for what, holds := range map[string]func(*policyView) (condition, bool){
			"does nothing": (*policyView).idle, "has certificates or keys that end soon": (*policyView).endsSoon, "has an exception that ends soon": (*policyView).exceptionEndsSoon,
		} {
			if by, ok := holds(p); ok {
				all.Rows = append(all.Rows, change{At: by.Since, What: "The policy " + string(p.Name) + " " + what, By: by.Message, Link: Root + "policies"})
			}
		}
	}
	return all, err
}

// importsGivenUp finds the pushes and notifications that were given up, by when they were queued.
func (v *visit) importsGivenUp() (all changesView, err error) {
	jobs, more, err := v.jobs("dead")
	all.More = more
	for _, j := range jobs {
		what := "The import of "
		if j.isNotification() {
			what = "The notification of "
		}
		all.Rows = append(all.Rows, change{At: j.Enqueued, What: what + string(j.Key) + " failed", By: j.Error, Link: Root + "activity#queue"})
	}
	return all, err
}

// missing says what is not known about the time.
func (c *changesView) missing() (all []text) {
	all = slices.Clone(c.Unknown)
	for _, n := range c.Refused {
		all = append(all, text(n.Title+": "+n.Message))
	}
	if c.More {
		all = append(all, "there are more changes than these")
	}
	return all
}

// Changes is what Attention gained and lost in a time.
type Changes struct {
	// Since is when the time began; it ends now.
	Since time.Time `json:"since"`
	// Items are the changes, the newest first, at most 200.
	Items []Change `json:"items"`
	// Unknown says what is not known about the time.
	Unknown []string `json:"unknown,omitempty"`
}

// Change is something that Attention gained or lost.
type Change struct {
	// At is when it happened. If Before is true, it happened at some time before.
	At     time.Time `json:"at"`
	Before bool      `json:"before,omitempty"`
	// Attention is New if somebody is needed since, and Over if nobody is needed any longer.
	Attention string `json:"attention"`
	// What happened, and more about it.
	What string `json:"what"`
	By   string `json:"by,omitempty"`
}

// MaxChangesAge is the longest time before now for which [ReadChanges] may be asked.
const MaxChangesAge = changedDays * 24 * time.Hour

// ReadChanges reads what the pages of changes show, by calls of an API with the credential that it
// adds. An error means that nothing could be read.
func ReadChanges(ctx context.Context, api http.Handler, clock clock.PassiveClock, age time.Duration) (*Changes, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, Root+"changes", nil)
	if err != nil {
		return nil, err
	}
	v := &visit{Console: &Console{api: api, clock: clock}, r: r, call: &caller{api: api, from: r}}
	data, err := v.changed(clock.Now().UTC().Add(-min(age, MaxChangesAge)).Truncate(time.Second))
	if err == nil {
		err = data.none
	}
	if err != nil {
		return nil, err
	}
	all := &Changes{Since: data.Since, Items: []Change{}}
	for i := range data.Rows {
		c := &data.Rows[i]
		all.Items = append(all.Items, Change{At: c.At.UTC(), Before: c.Before, Attention: c.Sign(), What: c.What, By: string(c.By)})
	}
	for _, one := range data.missing() {
		all.Unknown = append(all.Unknown, string(one))
	}
	return all, nil
}

// feed is an Atom feed (RFC 4287). Its links are relative to its own address.
type feed struct {
	XMLName  xml.Name   `xml:"http://www.w3.org/2005/Atom feed"`
	Title    string     `xml:"title"`
	Subtitle string     `xml:"subtitle,omitempty"` // what is not known
	ID       string     `xml:"id"`
	Updated  time.Time  `xml:"updated"`
	Author   string     `xml:"author>name"`
	Links    []feedLink `xml:"link"`
	Entries  []feedItem `xml:"entry"`
}

type feedLink struct {
	Rel  string `xml:"rel,attr"`
	Href string `xml:"href,attr"`
}

type feedItem struct {
	Title   string    `xml:"title"`
	ID      string    `xml:"id"`
	Updated time.Time `xml:"updated"`
	Link    feedLink  `xml:"link"`
	Summary string    `xml:"summary"`
}

// feedID makes an ID that a feed reader recognizes.
func feedID(of string) string {
	sum := sha256.Sum256([]byte(of))
	return "tag:tidewaiter.dev,2026:" + hex.EncodeToString(sum[:16])
}

// changesFeed serves what Attention gained and lost as a feed.
func (v *visit) changesFeed() error {
	data, err := v.changedInDays()
	if err != nil {
		return err
	}
	f := &feed{Title: "Tidewaiter: what Attention gained and lost", ID: feedID(v.r.Host + feedPath), Updated: data.Since, Author: "Tidewaiter", Links: []feedLink{{"self", v.r.URL.RequestURI()}, {"alternate", Root + "changes"}}}
	if missing := data.missing(); len(missing) > 0 {
		f.Subtitle = "Not known: " + joined(missing, "; ")
	}
	if len(data.Rows) > 0 {
		f.Updated = data.Rows[0].At
	}
	for i := range data.Rows {
		c := &data.Rows[i]
		at := c.At.UTC()
		f.Entries = append(f.Entries, feedItem{
			Title: c.Sign() + ": " + c.What, ID: feedID(fmt.Sprint(c.Sign(), "\n", c.What, "\n", c.Link, "\n", at.Format(time.RFC3339))),
			Updated: at, Link: feedLink{"alternate", c.Link}, Summary: string(c.By),
		})
	}
	defer v.call.turn.work()()
	body, err := xml.MarshalIndent(f, "", " ")
	if err != nil {
		return err
	}
	v.w.Header().Set("Content-Type", "application/atom+xml; charset=utf-8")
	send(v.w, v.r, http.StatusOK, append([]byte(xml.Header), body...))
	return nil
}

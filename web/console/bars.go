package console

import (
	"slices"
	"strings"
	"time"
)

const (
	// barWidth is the width of a line of time, in units of its drawing.
	barWidth = 1000
	// maxBars is how many lines of time a page draws together.
	maxBars = 8
)

// bars show what ran when: a line of time for each workload, or for each image, on one axis.
type bars struct {
	From time.Time // where the lines begin; they end now
	Rows []*bar
	More bool // there are more than Rows
	Gaps bool // of some of the time it is not known whether it ran
}

// bar is a line of time.
type bar struct {
	Name, By text
	Link     string
	Parts    []barPart
}

// barPart is a part of a line in which something ran with one verdict, or could not be seen.
type barPart struct {
	X, Wide int
	Tone    string // as that of a look
	Unseen  bool
	Says    string
}

// Says is the line in words.
func (b *bar) Says() string {
	var all []string
	for _, p := range b.Parts {
		all = append(all, p.Says)
	}
	return strings.Join(all, "; ")
}

// barsOf draws stretches of time. of names the line to which a stretch belongs.
func barsOf(runs []imageRun, now time.Time, of func(*imageRun) bar) *bars {
	if len(runs) == 0 {
		return nil
	}
	all := &bars{From: now}
	for i := range runs {
		if from := runs[i].Spec.From; from.Before(all.From) {
			all.From = from
		}
	}
	type place struct{ name, by text }
	places := map[place]*bar{}
	for i := range runs {
		one := of(&runs[i])
		at := place{one.Name, one.By}
		if places[at] == nil {
			if len(all.Rows) == maxBars {
				all.More = true
				continue
			}
			places[at] = &one
			all.Rows = append(all.Rows, &one)
		}
		for _, s := range runs[i].spans(now) {
			places[at].Parts = append(places[at].Parts, all.part(s, now))
			all.Gaps = all.Gaps || s.unseen
		}
	}
	for _, b := range all.Rows { // what is unseen lies over what ran
		slices.SortStableFunc(b.Parts, func(x, y barPart) int {
			if x.Unseen != y.Unseen {
				return map[bool]int{true: 1, false: -1}[x.Unseen]
			}
			return x.X - y.X
		})
	}
	return all
}

// span is a time, and what is known about it.
type span struct {
	from, until time.Time // until is zero if it goes on
	verdict     look
	unseen      bool
}

// spans splits a stretch by its verdicts, and adds the times in which it was not seen.
func (r *imageRun) spans(now time.Time) (all []span) {
	from := r.Spec.From
	for i, v := range r.Status.Verdicts {
		one := span{from: from, until: r.Status.Until, verdict: verdictOf(v.Verified)}
		if i+1 < len(r.Status.Verdicts) {
			one.until = r.Status.Verdicts[i+1].Since
		}
		if i == 0 && r.Status.VerdictsDropped > 0 {
			one.verdict = look{Word: "Verdicts that are no longer kept", Tone: "unsure"}
		}
		from, all = one.until, append(all, one)
	}
	if len(all) == 0 {
		all = append(all, span{from: from, until: r.Status.Until, verdict: look{Word: "Ran, with an unknown verdict,", Tone: "unsure"}})
	}
	for _, gap := range r.Status.Unseen {
		all = append(all, span{from: gap.From, until: gap.Until, unseen: true})
	}
	return all
}

// part draws a span.
func (b *bars) part(s span, now time.Time) barPart {
	whole := max(now.Sub(b.From), time.Second)
	at := func(t time.Time) int {
		return int(float64(min(max(t.Sub(b.From), 0), whole)) / float64(whole) * barWidth)
	}
	until, end := "now", now
	if !s.until.IsZero() {
		until, end = when(s.until, now).At, s.until
	}
	p := barPart{X: min(at(s.from), barWidth-2), Tone: s.verdict.Tone, Unseen: s.unseen, Says: s.verdict.Word}
	p.Wide = max(2, at(end)-p.X) // what is short is still seen
	if s.unseen {
		p.Says = "Not seen"
	}
	p.Says += " from " + when(s.from, now).At + " until " + until
	return p
}

// lineOfWorkload names a line by the workload that ran an image.
func lineOfWorkload(r *imageRun) bar {
	return bar{Name: r.Spec.Workload, By: r.Spec.Cluster + " / " + r.Metadata.Namespace, Link: workloadLink(r.Spec.Cluster, r.Metadata.Namespace, r.Spec.Workload)}
}

// lineOfImage names a line by the image that ran.
func lineOfImage(r *imageRun) bar {
	if r.Spec.Digest == "" {
		return bar{Name: "unknown", By: r.Spec.Container}
	}
	return bar{Name: text(short(r.Spec.Digest)), By: r.Spec.Container, Link: link("image", "ref", r.Spec.Digest)}
}

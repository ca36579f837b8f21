package console

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// Bounds of the comparison of running images with their tags.
const (
	driftedRuns = 2000 // stretches that are read
	driftedTags = 500  // tags that these name, and as many images: the most questions of a review
)

// led is what a tag led to from a time on.
type led struct {
	At     time.Time
	Digest text // empty while the registry did not have the tag
}

// ledTo is what is recorded of where a tag led.
type ledTo struct {
	Items []led  // the oldest first
	Lists []text // the digests that the newest item lists, if it is an index
}

// drift says whether a container ran what its tag led to.
type drift int

const (
	driftUnknown drift = iota
	driftNone          // it ran that
	drifted            // it ran another image
)

// runsDrifted finds the workloads that began or ceased to run another image than their tag led to,
// by the records of what ran and of where tags led.
func (v *visit) runsDrifted(since time.Time) (all changesView, err error) {
	runs, err := v.runsOfTags(since, &all)
	if err != nil || len(runs) == 0 {
		return all, err
	}
	names := map[string]bool{}
	for i := range runs {
		names[runs[i].tag.String()] = true
	}
	tags, err := v.tagsLed(names, &all)
	if err != nil {
		return all, err
	}
	images, err := v.imagesLed(since, runs, tags, &all)
	if err != nil {
		return all, err
	}
	unknown := map[string]bool{}
	for i := range runs {
		changes, whole := runs[i].drift(since, v.clock.Now(), tags[runs[i].tag.String()], images)
		if all.Rows = append(all.Rows, changes...); !whole {
			unknown[runs[i].tag.String()] = true
		}
	}
	if len(unknown) > 0 {
		all.Unknown = append(all.Unknown, text(fmt.Sprintf("For %s it is not recorded all that time whether their pods ran what they led to, such as %s.", tablecells.Quantity(len(unknown), "tag"), slices.Min(slices.Collect(maps.Keys(unknown))))))
	}
	return all, nil
}

// tagRun is a stretch of a container that names a tag.
type tagRun struct {
	*imageRun
	tag reference.Reference
}

// within returns the part of a stretch that is after a time and before another.
func (r *tagRun) within(since, now time.Time) (from, end time.Time) {
	if from, end = r.Spec.From, now; from.Before(since) {
		from = since
	}
	if !r.Status.Until.IsZero() {
		end = r.Status.Until
	}
	return from, end
}

// runsOfTags lists the stretches since a time whose containers name a tag and no digest.
func (v *visit) runsOfTags(since time.Time, all *changesView) (runs []tagRun, err error) {
	ask := url.Values{"limit": {"500"}, "fieldSelector": {"from=" + since.Format(time.RFC3339) + ",until=" + v.clock.Now().UTC().Format(time.RFC3339)}}
	for read := 0; ; {
		var page list[imageRun]
		warnings, err := v.call.getWarned(v.ctx(), runsPath, ask, &page)
		if err != nil {
			return nil, err
		}
		all.Unknown = append(all.Unknown, warnings...)
		for i := range page.Items {
			if ref, err := reference.Parse(string(page.Items[i].Spec.Image)); err == nil && ref.Digest == "" && page.Items[i].Spec.Digest != "" {
				runs = append(runs, tagRun{&page.Items[i], ref.Pulled()})
			}
		}
		if page.Metadata.Continue == "" {
			return runs, nil
		}
		if read += len(page.Items); read >= driftedRuns {
			all.Unknown = append(all.Unknown, text(fmt.Sprintf("More than %s stretches ran, and the others were not compared with their tags.", thousands(read))))
			return runs, nil
		}
		ask.Set("continue", page.Metadata.Continue)
	}
}

// tagsLed asks where tags led.
func (v *visit) tagsLed(names map[string]bool, all *changesView) (map[string]*ledTo, error) {
	found := map[string]*ledTo{}
	answers, err := v.answersAbout(names, "tags were not compared with what runs.", all)
	for name, a := range answers {
		if a.Meaning.Tag == "" || a.Checked.Since.IsZero() {
			continue // its history is not known
		}
		to := &ledTo{Items: []led{{a.Checked.Since, a.Meaning.Digest}}}
		if a.State == "Gone" {
			to.Items[0].Digest = ""
		}
		for _, p := range a.Previous {
			to.Items = append(to.Items, led{p.Since, p.Digest})
		}
		slices.Reverse(to.Items)
		for _, p := range a.Meaning.Platforms {
			to.Lists = append(to.Lists, p.Digest)
		}
		found[name] = to
	}
	return found, err
}

// imagesLed asks about the images for which the histories of tags alone do not tell whether
// containers ran what the tags led to. An image that is not stored is nil.
func (v *visit) imagesLed(since time.Time, runs []tagRun, tags map[string]*ledTo, all *changesView) (map[string]*referenceAnswer, error) {
	names := map[string]bool{}
	for i := range runs {
		r := &runs[i]
		to := tags[r.tag.String()]
		if to == nil {
			continue
		}
		from, end := r.within(since, v.clock.Now())
		for j, one := range to.Items {
			last := j == len(to.Items)-1
			if one.At.After(end) || !last && !to.Items[j+1].At.After(from) {
				continue // the tag did not lead there while this ran
			}
			if one.Digest == "" || one.Digest == r.Spec.Digest || last && slices.Contains(to.Lists, r.Spec.Digest) {
				continue
			}
			names[string(r.Spec.Digest)], names[string(one.Digest)] = true, true
		}
	}
	answers, err := v.answersAbout(names, "images were not compared with what runs.", all)
	for name, a := range answers {
		if a.State != "Found" {
			answers[name] = nil
		}
	}
	return answers, err
}

// answersAbout asks what references mean, and says how many it did not ask about.
func (v *visit) answersAbout(names map[string]bool, unasked string, all *changesView) (map[string]*referenceAnswer, error) {
	if len(names) == 0 {
		return nil, nil
	}
	sorted := slices.Sorted(maps.Keys(names))
	if n := len(sorted) - driftedTags; n > 0 {
		all.Unknown = append(all.Unknown, text(thousands(n)+" "+unasked))
		sorted = sorted[:driftedTags]
	}
	got, err := v.review(false, sorted...)
	if err != nil {
		return nil, err
	}
	found := map[string]*referenceAnswer{}
	for i, name := range sorted {
		found[name] = &got.References[i]
	}
	return found, nil
}

// drift returns when a container began and ceased to run another image than its tag led to since a
// time. whole is false if that is not known for all of the time.
func (r *tagRun) drift(since, now time.Time, tag *ledTo, images map[string]*referenceAnswer) (all []change, whole bool) {
	if tag == nil {
		return nil, false
	}
	from, end := r.within(since, now)
	where := text(fmt.Sprintf("%s / %s, %s", r.Spec.Cluster, r.Metadata.Namespace, r.Spec.Container))
	add := func(at time.Time, lost, before bool, does, by string) {
		all = append(all, change{
			At: at, Lost: lost, Before: before, What: fmt.Sprintf("%s %s %s", r.Spec.Workload, does, r.Spec.Image),
			By: where + text(by), Link: workloadLink(r.Spec.Cluster, r.Metadata.Namespace, r.Spec.Workload),
		})
	}
	state, leads := tag.at(from, r, images)
	whole = state != driftUnknown
	other := func(leads text) string {
		return fmt.Sprintf(": it runs %s, and the tag leads to %s", reference.ShortDigest(string(r.Spec.Digest)), reference.ShortDigest(string(leads)))
	}
	const differs = "runs another image than its tag:"
	known := state // the last state that is known
	if state == drifted && !r.Spec.From.Before(since) {
		add(from, false, false, differs, other(leads))
	}
	for _, one := range tag.Items {
		if !one.At.After(from) || one.At.After(end) {
			continue
		}
		before := state == driftUnknown // it may have happened earlier
		state, leads = tag.at(one.At, r, images)
		switch {
		case state == driftUnknown:
			whole = false
			continue
		case state == drifted && known != drifted:
			add(one.At, false, before, differs, other(leads))
		case state == driftNone && known == drifted:
			add(one.At, true, before, "runs again what its tag leads to:", "")
		}
		known = state
	}
	if known == drifted && !r.Status.Until.IsZero() {
		add(end, true, r.EndUnseen(), "no longer runs another image than its tag:", other(leads))
	}
	return all, whole
}

// at compares what a container runs with what its tag led to at a time, as the API compares them
// now: with the image itself, and with what it lists if it is an index.
func (t *ledTo) at(at time.Time, r *tagRun, images map[string]*referenceAnswer) (_ drift, leads text) {
	i := len(t.Items) - 1
	for i >= 0 && t.Items[i].At.After(at) {
		i--
	}
	if i < 0 || t.Items[i].Digest == "" {
		return driftUnknown, ""
	}
	leads = t.Items[i].Digest
	if leads == r.Spec.Digest || i == len(t.Items)-1 && slices.Contains(t.Lists, r.Spec.Digest) {
		return driftNone, leads
	}
	to, runs := images[string(leads)], images[string(r.Spec.Digest)]
	if to == nil {
		return driftUnknown, leads // it may be an index that lists what runs
	}
	if slices.ContainsFunc(to.Meaning.Platforms, func(p platformImage) bool { return p.Digest == r.Spec.Digest }) {
		return driftNone, leads
	}
	if runs == nil && !slices.ContainsFunc(t.Items, func(one led) bool { return one.Digest == r.Spec.Digest }) {
		return driftUnknown, leads // the runtime may have told the digest of a config
	}
	return drifted, leads
}

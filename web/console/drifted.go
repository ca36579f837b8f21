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
	driftedAsks = 500  // questions of a review
)

// drift compares what a container ran with where its tag led from a time on.
type drift struct {
	Since    time.Time `json:"since"`
	Outdated text      `json:"outdated"` // True, False or Unknown
	Digest   text      `json:"digest"`   // where the tag led
}

// runsDrifted finds the workloads that began or ceased to run another image than their tag led to,
// by the records of what ran and of where tags led.
func (v *visit) runsDrifted(since time.Time) (all changesView, err error) {
	runs, err := v.runsOfTags(since, &all)
	if err != nil {
		return all, err
	}
	compared, err := v.drifts(since, runs)
	if err != nil {
		return all, err
	}
	unknown := map[text]bool{}
	for i := range runs {
		changes, whole := runs[i].drift(since, v.clock.Now(), compared[runs[i].question()])
		if all.Rows = append(all.Rows, changes...); !whole {
			unknown[runs[i].tag] = true
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
	tag text // the whole reference
}

// question asks how what ran compares with the tag.
func (r *tagRun) question() question { return question{Reference: r.tag, Runs: r.Spec.Digest} }

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
			if ref, err := reference.Parse(string(page.Items[i].Spec.Image)); err == nil && ref.Digest == "" && reference.IsDigest(string(page.Items[i].Spec.Digest)) {
				runs = append(runs, tagRun{&page.Items[i], text(ref.Pulled().String())})
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

// drifts gets the API's comparisons of what ran with the tags.
func (v *visit) drifts(since time.Time, runs []tagRun) (map[question][]drift, error) {
	var questions []question
	compared := map[question][]drift{}
	for i := range runs {
		q := runs[i].question()
		if _, asked := compared[q]; !asked {
			compared[q] = nil
			questions = append(questions, q)
		}
	}
	for some := range slices.Chunk(questions, driftedAsks) {
		got, err := v.reviewOf(reviewSpec{References: some, DriftSince: &since})
		if err != nil {
			return nil, err
		}
		for i, q := range some {
			compared[q] = got.References[i].Drift
		}
	}
	return compared, nil
}

// drift returns when a container began and ceased to run another image than its tag led to since a
// time, by how the two compare from that time on. whole is false if that is not known for all of
// the time.
func (r *tagRun) drift(since, now time.Time, compared []drift) (all []change, whole bool) {
	from, end := r.Spec.From, now
	if from.Before(since) {
		from = since
	}
	if !r.Status.Until.IsZero() {
		end = r.Status.Until
	}
	where := text(fmt.Sprintf("%s / %s, %s", r.Spec.Cluster, r.Metadata.Namespace, r.Spec.Container))
	add := func(at time.Time, lost, before bool, does, by string) {
		all = append(all, change{
			At: at, Lost: lost, Before: before, What: fmt.Sprintf("%s %s %s", r.Spec.Workload, does, r.Spec.Image),
			By: where + text(by), Link: workloadLink(r.Spec.Cluster, r.Metadata.Namespace, r.Spec.Workload),
		})
	}
	other := func(led text) string {
		return fmt.Sprintf(": it runs %s, and the tag leads to %s", reference.ShortDigest(string(r.Spec.Digest)), reference.ShortDigest(string(led)))
	}
	const differs, isOutdated, isUnknown = "runs another image than its tag:", "True", "Unknown"
	state, known := drift{Outdated: isUnknown}, drift{Outdated: isUnknown} // now, and the last that is known
	rest := compared
	for len(rest) > 0 && !rest[0].Since.After(from) {
		state, rest = rest[0], rest[1:]
	}
	if whole = state.Outdated != isUnknown; whole {
		known = state
	}
	if state.Outdated == isOutdated && !r.Spec.From.Before(since) {
		add(from, false, false, differs, other(state.Digest))
	}
	for _, one := range rest {
		if one.Since.After(end) {
			break
		}
		before := state.Outdated == isUnknown // it may have happened earlier
		state = one
		switch {
		case one.Outdated == isUnknown:
			whole = false
			continue
		case one.Outdated == isOutdated && known.Outdated != isOutdated:
			add(one.Since, false, before, differs, other(one.Digest))
		case one.Outdated != isOutdated && known.Outdated == isOutdated:
			add(one.Since, true, before, "runs again what its tag leads to:", "")
		}
		known = one
	}
	if known.Outdated == isOutdated && !r.Status.Until.IsZero() {
		add(end, true, r.EndUnseen(), "no longer runs another image than its tag:", other(known.Digest))
	}
	return all, whole
}

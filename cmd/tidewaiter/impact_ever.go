package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/tidewaiter/tidewaiter/cmd/internal/auditreport"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// everReview is a review of advisories with what ran at any time, as -o json prints it.
type everReview struct {
	*answers.ImpactReview `json:",inline"`

	// Ran are the stretches in which a touched image ran, those that go on first.
	Ran []touchedRun `json:"ran"`
	// RanOmitted is how many further ones there are.
	RanOmitted int `json:"ranOmitted,omitempty"`

	// undecided is true if something else may have run that is touched.
	undecided bool
}

// touchedRun is a stretch in which a touched image ran.
type touchedRun struct {
	// Image is the digest of the touched image; what ran may be an index that lists it.
	Image      string   `json:"image"`
	Advisories []string `json:"advisories,omitempty"`

	Run imageruns.ImageRun `json:"run"`
}

// ever returns the records of images that a review touches, and counts the other records of which
// it is unknown whether the review touches them.
func (r *advisoryReviews) ever(ctx context.Context, review *answers.ImpactReview, limit int) (*everReview, error) {
	e := &everReview{ImpactReview: review, Ran: []touchedRun{}}
	names := map[string][]string{}
	for _, row := range r.rows {
		if row.Effect == answers.NotAffected {
			continue
		}
		for _, a := range row.Advisories {
			names[row.Image] = append(names[row.Image], a.ID)
		}
	}
	config, notes := withWarnings(r.Config)
	ran := map[string]bool{} // stretches, by namespace and name
	for i, digest := range slices.Sorted(maps.Keys(r.touched.images)) {
		r.note("what ran of %d of %s", i, tablecells.Quantity(r.touched.images.Len(), "image"))
		slices.Sort(names[digest])
		if err := eachRun(ctx, config, "", fields.Set{"image": digest}, func(page []imageruns.ImageRun) error {
			for _, run := range page {
				if key := run.Namespace + "/" + run.Name; !ran[key] {
					ran[key] = true
					e.Ran = append(e.Ran, touchedRun{digest, slices.Compact(names[digest]), run})
				}
			}
			if len(e.Ran) > 2*maxRan {
				e.cut(maxRan)
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	e.cut(limit)
	if err := r.undecided(ctx, e, ran); err != nil {
		return nil, err
	}
	for _, text := range notes.all {
		e.unknown(text)
	}
	return e, nil
}

func (e *everReview) unknown(text string) {
	e.Status.Unknowns = append(e.Status.Unknowns, answers.UnknownPart{Part: "ran", Reason: text})
}

// cut keeps the first stretches: those that go on, then those that ended last.
func (e *everReview) cut(limit int) {
	slices.SortFunc(e.Ran, func(a, b touchedRun) int {
		x, y := a.Run.Status.Until, b.Run.Status.Until
		switch {
		case x == nil && y != nil:
			return -1
		case x != nil && y == nil:
			return 1
		case x != nil && !x.Equal(y):
			return y.Compare(x.Time)
		}
		return cmp.Or(b.Run.Spec.From.Compare(a.Run.Spec.From.Time), cmp.Compare(a.Run.Namespace, b.Run.Namespace), cmp.Compare(a.Run.Name, b.Run.Name))
	})
	if over := len(e.Ran) - limit; over > 0 {
		e.Ran, e.RanOmitted = e.Ran[:limit], e.RanOmitted+over
	}
}

// undecided counts the other images that ran and whose packages the server does not know, including
// images that it no longer has.
func (r *advisoryReviews) undecided(ctx context.Context, e *everReview, touched map[string]bool) error {
	config, _ := withWarnings(r.Config)
	var others []imageruns.ImageRun // one for each image
	seen, unnamed, read := map[onPlatform]bool{}, 0, 0
	if err := eachRun(ctx, config, "", fields.Set{}, func(page []imageruns.ImageRun) error {
		for i := range page {
			run := &page[i]
			switch one := imageOn(run); {
			case touched[run.Namespace+"/"+run.Name]:
			case one.digest == "":
				unnamed++
			case !seen[one]:
				seen[one] = true
				others = append(others, imageruns.ImageRun{Spec: imageruns.ImageRunSpec{Digest: one.digest, Platform: one.platform}})
			}
		}
		read += len(page)
		r.note("%s of what ran", tablecells.Quantity(read, "record"))
		return nil
	}); err != nil {
		return err
	}
	known, _ := r.haveSBOMs(ctx, others)
	without := 0
	for _, answer := range known {
		if answer != auditreport.SBOMYes {
			without++
		}
	}
	if without > 0 {
		e.unknown(fmt.Sprintf("no SBOM is here of %s that ran at some time, so it is not known whether the act touches it", tablecells.Quantity(without, "image")))
	}
	if unnamed > 0 {
		e.unknown(fmt.Sprintf("it is not known which image ran in %s of time", tablecells.Quantity(unnamed, "stretch")))
	}
	e.undecided = without+unnamed > 0
	return nil
}

// print prints what ran.
func (e *everReview) print(out io.Writer) error {
	if len(e.Ran) == 0 {
		_, err := fmt.Fprintln(out, "\nnothing that is touched is recorded to have run")
		return err
	}
	fmt.Fprintln(out, "\nWhat ran:")
	t := cli.Table{Columns: []string{"WHERE", "WORKLOAD", "IMAGE", "DIGEST", "FROM", "UNTIL", "UNSEEN", "ADVISORY"}, Fixed: []string{"FROM", "UNTIL"}}
	for i := range e.Ran {
		one := &e.Ran[i]
		run := &one.Run
		advisory := tablecells.None
		if n := len(one.Advisories); n > 0 {
			if advisory = one.Advisories[0]; n > 1 {
				advisory += fmt.Sprintf(",+%d", n-1)
			}
		}
		t.Rows = append(t.Rows, []string{run.Spec.Cluster + "/" + run.Namespace, run.Spec.Workload, run.Spec.Image, digestCell(run.Spec.Digest), minute(run.Spec.From), untilCell(run), imageruns.UnseenFor(run), advisory})
	}
	err := t.Print(out)
	if e.RanOmitted > 0 {
		_, err = fmt.Fprintf(out, "and %d more; --max-rows lists more of them\n", e.RanOmitted)
	}
	return err
}

// exit is how the verb ends: as without what ran before, unless that is touched, or may be.
func (e *everReview) exit() error {
	switch err := impactExit(&e.Status); {
	case len(e.Ran) > 0:
		return &cli.Exit{Code: exitTouched}
	case err == nil && e.undecided:
		return &cli.Exit{Code: cli.ExitSome, Err: fmt.Errorf("it is unknown whether something that ran is touched")}
	default:
		return err
	}
}

package main

import (
	"archive/zip"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/tidewaiter/tidewaiter/imageapi/answers"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/packages/advisories"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// Bounds of a review of advisories. A request has at most 3 MiB.
const (
	maxBatch  = 4 << 20
	maxPacked = 2 << 20 // when packed
)

// eachAdvisory reads the advisories of a file, a folder, a ZIP archive, or, for -, of in. It gives
// yield the errors of a folder's or an archive's files, too.
func eachAdvisory(name string, in io.Reader, yield func(*advisories.Advisory, error) error) error {
	if name == "-" {
		return advisories.Read(in, yield)
	}
	// one reads a file among others
	one := func(name string, open func() (io.ReadCloser, error)) error {
		if filepath.Ext(name) != ".json" {
			return nil
		}
		var stop error
		r, err := open()
		if err == nil {
			err = advisories.Read(r, func(a *advisories.Advisory, err error) error {
				stop = yield(a, err)
				return stop
			})
			r.Close()
		}
		if err != nil && stop == nil {
			stop = yield(nil, fmt.Errorf("%s: %w", printable.Line(name, 128), err))
		}
		return stop
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return filepath.WalkDir(name, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			return one(path, func() (io.ReadCloser, error) { return os.Open(path) })
		})
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	archive, err := zip.NewReader(f, info.Size())
	if errors.Is(err, zip.ErrFormat) {
		return advisories.Read(f, yield)
	}
	if err != nil {
		return err
	}
	for _, entry := range archive.File {
		if err := one(entry.Name, entry.Open); err != nil {
			return err
		}
	}
	return nil
}

// advisoryReviews has the server review advisories, many at a time, and adds the answers up.
type advisoryReviews struct {
	*looker
	spec   answers.ImpactReviewSpec
	note   func(format string, args ...any)
	packed bytes.Buffer
	zip    *gzip.Writer
	size   int // of what is in packed
	held   int

	advisories, withdrawn int
	unread                int
	first                 *advisories.Advisory

	sum      answers.ImpactReviewStatus
	reviews  int
	rows     map[string]*answers.ImpactRow // by image and name
	touched  touchedNames
	unknowns map[answers.UnknownPart]bool
}

// touchedNames are the names in answers, each once.
type touchedNames struct{ images, references, pods, workloads, notAffected sets.Set[string] }

// advised reviews the advisories that the flag names. ran is nil without --ever.
func (o *impactOptions) advised(cmd *cobra.Command, l *looker) (review *answers.ImpactReview, ran *everReview, what string, err error) {
	r := &advisoryReviews{looker: l, spec: o.spec, note: func(string, ...any) {}, rows: map[string]*answers.ImpactRow{}, unknowns: map[answers.UnknownPart]bool{}, touched: touchedNames{sets.New[string](), sets.New[string](), sets.New[string](), sets.New[string](), sets.New[string]()}}
	r.spec.Named, r.zip, r.sum.Summary.PodsComplete = true, gzip.NewWriter(&r.packed), true
	if f, ok := cmd.ErrOrStderr().(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		r.note = func(format string, args ...any) { fmt.Fprintf(f, "\r\x1b[K"+format, args...) }
	}
	defer r.note("")
	if err := eachAdvisory(o.advisories, cmd.InOrStdin(), func(a *advisories.Advisory, err error) error {
		if err != nil {
			r.misread(err)
			return nil
		}
		return r.add(cmd, a)
	}); err != nil {
		return nil, nil, "", cli.WithHint(fmt.Errorf("--advisory %s: %w", o.advisories, err), "it is a document in the OSV format, a folder or a ZIP archive with such documents, or - for standard input")
	}
	if r.advisories+r.withdrawn == 0 {
		for u := range r.unknowns {
			return nil, nil, "", fmt.Errorf("--advisory %s: %s", o.advisories, u.Reason)
		}
		return nil, nil, "", cli.WithHint(fmt.Errorf("--advisory %s: no advisory is there", o.advisories), "documents in the OSV format are in files whose name ends in .json")
	}
	if err := r.send(cmd); err != nil {
		return nil, nil, "", err
	}
	review = &answers.ImpactReview{Status: *r.finish(int(cmp.Or(o.spec.MaxRows, 500)))}
	review.APIVersion, review.Kind = answers.GroupVersion.String(), answers.ImpactKind
	switch {
	case r.advisories == 1 && r.withdrawn == 0:
		what = "what the advisory " + strings.Join(r.first.Names(), ", ") + " touches"
	default:
		what = "what " + tablecells.Quantity(r.advisories, "advisory") + " touch"
		if r.withdrawn > 0 {
			what += fmt.Sprintf(", without %d that were withdrawn", r.withdrawn)
		}
	}
	if o.spec.Image != "" {
		what += " in " + o.spec.Image
	}
	if o.ever {
		if ran, err = r.ever(cmd.Context(), review, int(cmp.Or(o.spec.MaxRows, 500))); err != nil {
			return nil, nil, "", ranFailed(err, "", l.Server)
		}
	}
	return review, ran, what, nil
}

// misread notes that a document cannot be read.
func (r *advisoryReviews) misread(err error) {
	r.sum.Summary.Unchecked++
	r.sum.Summary.PodsComplete = false
	if r.unread++; r.unread == 1 {
		r.unknowns[answers.UnknownPart{Part: "advisories", Reason: fmt.Sprintf("what some advisories are about is not known: %s", printable.Line(err.Error(), 0))}] = true
	}
}

// add adds an advisory to those that are sent next.
func (r *advisoryReviews) add(cmd *cobra.Command, a *advisories.Advisory) error {
	if a.Withdrawn != "" {
		r.withdrawn++
		return nil
	}
	if r.advisories++; r.first == nil {
		r.first = a
	}
	document, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if len(document) > maxBatch {
		r.misread(fmt.Errorf("%s has more than %d MiB", a.ID, maxBatch>>20))
		return nil
	}
	if r.size+len(document) > maxBatch || r.packed.Len() > maxPacked {
		if err := r.send(cmd); err != nil {
			return err
		}
	}
	r.size += len(document)
	r.held++
	_, err = r.zip.Write(document)
	return err
}

// send has the server review what was added.
func (r *advisoryReviews) send(cmd *cobra.Command) error {
	if r.held == 0 {
		return nil
	}
	if err := r.zip.Close(); err != nil {
		return err
	}
	spec := r.spec
	spec.Advisories = r.packed.Bytes()
	examined := int32(0)
	for next := true; next; next = spec.Continue != "" {
		r.note("%s, %s", tablecells.Quantity(r.advisories, "advisory"), tablecells.Quantity(examined, "image"))
		review, err := r.impact(cmd.Context(), &spec)
		if err != nil {
			return err
		}
		examined += review.Status.Summary.Examined
		r.merge(&review.Status)
		spec.Continue = review.Status.Continue
	}
	r.sum.Summary.Examined = max(r.sum.Summary.Examined, examined)
	r.packed.Reset()
	r.zip.Reset(&r.packed)
	r.size, r.held = 0, 0
	return nil
}

// merge adds an answer to the sum.
func (r *advisoryReviews) merge(s *answers.ImpactReviewStatus) {
	first := r.reviews == 0
	r.reviews++
	all := &r.sum.Summary
	if first {
		r.sum.AsOf = s.AsOf
	}
	all.Unlisted = max(all.Unlisted, s.Summary.Unlisted)
	all.Undecided = max(all.Undecided, s.Summary.Undecided)
	all.Pods, all.Workloads = max(all.Pods, s.Summary.Pods), max(all.Workloads, s.Summary.Workloads)
	all.Unchecked += s.Summary.Unchecked
	all.PodsComplete = all.PodsComplete && s.Summary.PodsComplete
	if t := s.Touched; t != nil {
		r.touched.images.Insert(t.Images...)
		r.touched.references.Insert(t.References...)
		r.touched.pods.Insert(t.Pods...)
		r.touched.workloads.Insert(t.Workloads...)
		r.touched.notAffected.Insert(t.NotAffected...)
	}
	for i := range s.Rows {
		row := &s.Rows[i]
		key := row.Image + " " + row.Name()
		if known := r.rows[key]; known == nil {
			r.rows[key] = row
		} else {
			if known.Effect == answers.NotAffected && row.Effect != answers.NotAffected {
				row.AddAdvisories(known.Advisories...)
				row.OmittedAdvisories += known.OmittedAdvisories
				*known = *row
				continue
			}
			known.AddAdvisories(row.Advisories...)
			known.OmittedAdvisories += row.OmittedAdvisories
		}
	}
	for _, u := range s.Unknowns {
		r.unknowns[u] = true
	}
	if len(r.rows) > 4*maxRowsHeld {
		r.cut(maxRowsHeld)
	}
}

// maxRowsHeld is how many rows an answer may have.
const maxRowsHeld = 5000

// cut keeps the first rows.
func (r *advisoryReviews) cut(most int) []answers.ImpactRow {
	keys := slices.SortedFunc(maps.Keys(r.rows), func(a, b string) int { return answers.CompareImpactRows(*r.rows[a], *r.rows[b]) })
	var kept []answers.ImpactRow
	for i, key := range keys {
		if i < most {
			kept = append(kept, *r.rows[key])
		} else {
			delete(r.rows, key)
		}
	}
	return kept
}

// finish returns the sum.
func (r *advisoryReviews) finish(most int) *answers.ImpactReviewStatus {
	s := &r.sum.Summary
	names := &r.touched
	s.Images, s.References, s.NotAffected = int32(names.images.Len()), int32(names.references.Len()), int32(names.notAffected.Difference(names.references).Len())
	pods, workloads := int32(names.pods.Len()), int32(names.workloads.Len())
	if r.reviews > 1 && s.Pods > pods {
		s.PodsComplete = false // the caller may not see which pods these are, so there may be others
	}
	s.Pods, s.Workloads = max(s.Pods, pods), max(s.Workloads, workloads)
	r.sum.Rows = r.cut(most)
	r.sum.OmittedRows = s.References + s.NotAffected - int32(len(r.sum.Rows))
	if r.unread > 1 {
		r.unknowns[answers.UnknownPart{Part: "advisories", Reason: fmt.Sprintf("documents that are not advisories, or cannot be read: %d", r.unread)}] = true
	}
	r.sum.Unknowns = slices.SortedFunc(maps.Keys(r.unknowns), func(a, b answers.UnknownPart) int {
		return cmp.Or(cmp.Compare(a.Part, b.Part), cmp.Compare(a.Reason, b.Reason))
	})
	return &r.sum
}

// printAdvised prints the rows of advisories, with the first advisory of each.
func printAdvised(out io.Writer, review *answers.ImpactReview) error {
	t := cli.Table{Columns: []string{"PODS", "EFFECT", "ADVISORY", "PACKAGE", "FIXED IN", "FIXED HERE", "REFERENCE"}}
	for i := range review.Status.Rows {
		row := &review.Status.Rows[i]
		if len(row.Advisories) == 0 {
			continue
		}
		a := &row.Advisories[0]
		id := a.ID
		if more := len(row.Advisories) - 1 + int(row.OmittedAdvisories); more > 0 {
			id += fmt.Sprintf(",+%d", more)
		}
		pods := tablecells.None
		if r := row.Running; r != nil {
			pods = tablecells.Count(int(r.Pods), r.Complete)
		}
		here := tablecells.None // a tag of the same repository
		if a.FixedBy != "" {
			here = a.FixedBy[strings.LastIndexByte(a.FixedBy, ':')+1:]
		}
		t.Rows = append(t.Rows, []string{
			pods, string(row.Effect), id, strings.TrimSpace(a.Package.Name + " " + a.Package.Version), cmp.Or(a.Fixed, tablecells.None), here, row.Name(),
		})
	}
	return t.Print(out)
}

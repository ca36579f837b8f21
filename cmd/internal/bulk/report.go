package bulk

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/importer"
	"github.com/tidewaiter/tidewaiter/importer/pull"
	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/image/manifest"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// Outputs are the values of -o.
func Outputs() []string { return []string{"name", "json", "jsonl", "yaml", "wide"} }

// report prints the result of each reference: results to standard output, in the chosen format and
// as they come, failures and warnings to standard error.
type report struct {
	dryRun   bool
	out      io.Writer
	errOut   io.Writer
	hint     string // the last printed hint
	progress *progress
	print    func(reference string, result *importer.Result) error
	isBrief  bool // print does not need the contents of Images
	// prints a reference without a result; nil if only standard error shows it
	printBare func(Line) error
	finish    func(Summary) error
	// references without a result that the summary lists
	bare []Line
	// names that the lists of registries and repositories have
	listed int

	Done, Failed int
	skipped      int                 // artifacts, which are not images
	outcomes     map[string]int      // of references that are done
	reasons      map[pull.Reason]int // of references that failed
	untried      int                 // because of an interruption
	Failures     *failures           // nil if no file is written
	printErr     error
}

// NewReport reports on images that go to a destination; "" is a dry run.
func NewReport(format, destination string, out, errOut io.Writer, progress *progress) *report {
	r := &report{
		dryRun: destination == "", out: out, errOut: errOut, progress: progress, finish: func(Summary) error { return nil },
		outcomes: map[string]int{}, reasons: map[pull.Reason]int{},
	}
	switch format {
	case "name":
		r.print, r.isBrief = r.printName, true
	case "json":
		list := &jsonList{w: out, destination: destination}
		r.print, r.printBare, r.finish = r.printItems(list.add), r.keepBare, list.end
	case "jsonl":
		lines := json.NewEncoder(out)
		if destination != "" {
			r.printErr = lines.Encode(map[string]string{"destination": destination})
		}
		r.printBare = func(l Line) error { return lines.Encode(l) }
		r.print = func(reference string, result *importer.Result) error {
			return r.printJSONLine(lines, reference, result)
		}
		r.finish = func(s Summary) error { return lines.Encode(map[string]Summary{"report": s}) }
	case "yaml":
		list := &yamlList{w: out, destination: destination}
		r.print, r.printBare, r.finish = r.printItems(list.add), r.keepBare, list.end
	case "wide":
		w := printers.GetNewTabWriter(out)
		fmt.Fprintln(w, "REFERENCE\tDIGEST\tRESULT\tIMAGES\tPLATFORM\tMEDIA TYPE")
		r.print = func(reference string, result *importer.Result) error { return r.printWide(w, reference, result) }
		r.finish = func(Summary) error { return w.Flush() }
	default:
		r.print, r.isBrief = r.printLine, true
	}
	return r
}

// Add reports the result of a reference or a failed list. For a list, reference is a pattern in the
// form that -f reads. It may be called from any goroutine.
func (r *report) Add(reference string, result *importer.Result, err error) {
	r.progress.Done(func() {
		r.warnOf(reference, result)
		if isInterrupted(err) {
			r.leave(reference)
			return
		}
		if pull.ReasonOf(err) == pull.NotAnImage {
			r.skipped++
			fmt.Fprintf(r.errOut, "skipped: %s\n", printable.Text(err.Error()))
			r.without(Line{Reference: reference, Outcome: "skipped", Reason: pull.NotAnImage, Error: err.Error()})
			return
		}
		if err != nil {
			reason := cmp.Or(pull.ReasonOf(err), pull.Failed)
			r.Failed++
			r.reasons[reason]++
			r.Failures.write(reference, string(reason))
			text, hint := cli.Explain("import", err)
			if listed := strings.TrimSuffix(strings.TrimSuffix(reference, allTagsSuffix), wholeRegistrySuffix); !strings.Contains(text, listed) {
				text = reference + ": " + text
			}
			fmt.Fprintf(r.errOut, "error: %s\n", printable.Text(text))
			if hint != "" && hint != r.hint {
				fmt.Fprintf(r.errOut, "hint: %s\n", hint)
				r.hint = hint
			}
			r.without(Line{Reference: reference, Outcome: "failed", Reason: reason, Error: err.Error()})
			return
		}
		r.Done++
		r.outcomes[r.outcome(result)]++
		r.printErr = errors.Join(r.printErr, r.print(reference, result))
	})
}

// gone reports that the registry neither lists nor has a tag that was imported before. This is a
// result, not a failure.
func (r *report) gone(reference string, result *importer.Result, why error) {
	r.progress.Done(func() {
		r.warnOf(reference, result)
		r.Done++
		r.outcomes["gone"]++
		fmt.Fprintf(r.errOut, "gone: %s: the registry no longer has it\n", reference)
		r.without(Line{Reference: reference, Outcome: "gone", Reason: pull.ReasonOf(why), Error: why.Error()})
	})
}

// warnOf prints the warnings of a result, if there is one.
func (r *report) warnOf(reference string, result *importer.Result) {
	if result == nil {
		return
	}
	for _, w := range result.Warnings {
		fmt.Fprintf(r.errOut, "warning: %s: %s\n", reference, printable.Text(w))
	}
}

func isInterrupted(err error) bool {
	return errors.Is(err, context.Canceled) || pull.ReasonOf(err) == pull.Canceled
}

// without reports a reference without a result, for programs.
func (r *report) without(l Line) {
	if r.printBare != nil {
		r.printErr = errors.Join(r.printErr, r.printBare(l))
	}
}

// maxBare bounds the references without a result that a summary lists; it counts them all.
const maxBare = 10_000

// keepBare keeps a reference without a result for the summary.
func (r *report) keepBare(l Line) error {
	if len(r.bare) < maxBare {
		r.bare = append(r.bare, l)
	}
	return nil
}

// fromFile is Add for an image of a file, which cannot be tried again by its reference.
func (r *report) fromFile(source, reference string, result *importer.Result, err error) {
	failures := r.Failures
	r.Failures = nil
	r.Add(reference, result, err)
	if r.Failures = failures; err != nil && pull.ReasonOf(err) != pull.NotAnImage {
		reason := cmp.Or(pull.ReasonOf(err), pull.Failed)
		if isInterrupted(err) {
			reason = "interrupted"
		}
		failures.note("%s of %s: %s", reference, source, reason)
	}
}

// warn prints warnings that are about no single reference.
func (r *report) warn(warnings []string) {
	for _, w := range warnings {
		r.progress.noteOnce("warning: " + w)
	}
}

// skip reports a reference, or a pattern, that was not tried because of an interruption.
func (r *report) skip(reference string) {
	r.progress.aside(func() { r.leave(reference) })
}

func (r *report) leave(reference string) {
	r.untried++
	r.Failures.write(reference, "interrupted")
	r.without(Line{Reference: reference, Outcome: "not tried"})
}

// Sum summarizes the outcomes of all references, and the cost, in a line.
func (r *report) Sum(traffic pull.Traffic, took time.Duration) {
	if all := r.Done + r.Failed + r.skipped + r.untried; all < 2 {
		return
	}
	var parts []string
	for _, outcome := range slices.Sorted(maps.Keys(r.outcomes)) {
		parts = append(parts, fmt.Sprintf("%d %s", r.outcomes[outcome], outcome))
	}
	if r.Failed > 0 {
		var reasons []string
		for _, reason := range slices.Sorted(maps.Keys(r.reasons)) {
			reasons = append(reasons, fmt.Sprintf("%d %s", r.reasons[reason], reason))
		}
		parts = append(parts, fmt.Sprintf("%d failed (%s)", r.Failed, strings.Join(reasons, ", ")))
	}
	if r.skipped > 0 {
		parts = append(parts, fmt.Sprintf("%d skipped (no images)", r.skipped))
	}
	if r.untried > 0 {
		parts = append(parts, fmt.Sprintf("%d not tried", r.untried))
	}
	fmt.Fprintf(r.errOut, "%s; %s, %.1f MB, %s\n", strings.Join(parts, ", "), table.Quantity(traffic.Requests, "request"), float64(traffic.Bytes)/1e6, took.Round(100*time.Millisecond))
}

// ErrNothing is the error of a batch that is empty although nothing failed.
var ErrNothing = errors.New("there was nothing to import")

// End closes the output, reports the costs, and turns the reported failures, and err if the batch
// as a whole failed, into the command's result.
func (r *report) End(err error, traffic pull.Traffic, took time.Duration) error {
	r.progress.End()
	r.Sum(traffic, took)
	if printErr := errors.Join(r.printErr, r.finish(r.summary(traffic, took))); printErr != nil {
		err = errors.Join(err, fmt.Errorf("printing the results: %w", printErr))
	}
	code := cli.ExitOK
	switch {
	case err == nil && r.Done+r.Failed+r.skipped+r.untried == 0:
		return &cli.Exit{Code: cli.ExitNothing, Err: r.nothing()}
	case errors.Is(err, ErrNothing):
		return &cli.Exit{Code: cli.ExitNothing, Err: err}
	case r.Done == 0:
		code = cli.ExitNone
	case r.Failed > 0 || err != nil:
		code = cli.ExitSome
	}
	if r.Failed > 0 {
		fmt.Fprintf(r.errOut, "%d of %s failed\n", r.Failed, table.Quantity(r.Done+r.Failed, "reference"))
	}
	if code == cli.ExitOK {
		return nil
	}
	return &cli.Exit{Code: code, Err: err}
}

// nothing returns the error for an import that had nothing to import.
func (r *report) nothing() error {
	if r.listed == 0 {
		return cli.WithHint(fmt.Errorf("%w: no repository or tag is listed", ErrNothing), "signatures and attestations under tags such as sha256-….sig are not counted as tags")
	}
	return cli.WithHint(fmt.Errorf("%w: %d listed, and the selection leaves none", ErrNothing, r.listed),
		"--include, --exclude, --newest and --changed-since choose among them; --dry-run shows what would be imported")
}

// outcome returns a word or two for what happened to a reference's Images.
func (r *report) outcome(result *importer.Result) string {
	if r.dryRun {
		return "dry run"
	}
	word := "unchanged"
	for _, i := range result.Images {
		switch {
		case i.Action == importer.Created:
			return "imported"
		case i.Action == importer.Updated:
			word = "updated"
		}
	}
	return word
}

func (r *report) printLine(reference string, result *importer.Result) error {
	detail := r.outcome(result)
	if n := len(result.Images); n > 1 {
		detail += ", " + table.Quantity(n, "image")
	}
	if result.Mirror != "" {
		detail += ", from " + result.Mirror
	}
	if skipped := skippedChildren(result); skipped != "" {
		detail += ", skipped " + skipped
	}
	_, err := fmt.Fprintf(r.out, "%s %s (%s)\n", reference, result.Digest, detail)
	return err
}

// skippedChildren returns how many entries of an index were not imported and why, without
// attestations.
func skippedChildren(result *importer.Result) string {
	reasons := map[string]int{}
	for _, s := range result.Skipped {
		if s.Reason != importer.SkippedAttestation {
			reasons[s.Reason]++
		}
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		parts = append(parts, fmt.Sprintf("%d: %s", reasons[reason], reason))
	}
	return strings.Join(parts, ", ")
}

func (r *report) printName(_ string, result *importer.Result) error {
	_, err := fmt.Fprintf(r.out, "image.%s/%s\n", imagev1.GroupName, result.Digest)
	return err
}

func (r *report) printWide(w io.Writer, reference string, result *importer.Result) error {
	var platforms []string
	for _, i := range result.Images {
		if i.Platform != "" {
			platforms = append(platforms, i.Platform)
		}
	}
	_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", reference, result.Digest, r.outcome(result), len(result.Images),
		strings.Join(platforms, ","), result.Images[0].Image.DockerImageManifestMediaType)
	return err
}

// printItems returns a function that prints the Images of a reference with add: first the Image
// that it leads to, then the platforms.
func (r *report) printItems(add func(*imagev1.Image) error) func(string, *importer.Result) error {
	return func(_ string, result *importer.Result) error {
		for _, i := range result.Images {
			if err := r.complete(i.Image); err != nil {
				return err
			}
			if err := add(i.Image); err != nil {
				return err
			}
		}
		return nil
	}
}

// complete sets the fields of an Image that the server would show to a client.
func (r *report) complete(image *imagev1.Image) error {
	image.SetGroupVersionKind(imagev1.GroupVersion.WithKind("Image"))
	if !r.dryRun {
		return nil
	}
	return manifest.Derive(image) // without a dry run, the server does this
}

// jsonList writes a v1 List item by item, so a long list needs no memory.
type jsonList struct {
	w           io.Writer
	destination string
	items       int
}

func (l *jsonList) add(image *imagev1.Image) error {
	before := ",\n"
	if l.items == 0 {
		before = l.head() + "[\n"
	}
	l.items++
	data, err := json.MarshalIndent(image, "        ", "    ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.w, "%s        %s", before, data)
	return err
}

// head is the text before the items: the beginning of a List, and their destination.
func (l *jsonList) head() string {
	destination := ""
	if l.destination != "" {
		quoted, _ := json.Marshal(l.destination) // a string always marshals
		destination = fmt.Sprintf("    \"destination\": %s,\n", quoted)
	}
	return "{\n    \"apiVersion\": \"v1\",\n    \"kind\": \"List\",\n" + destination + "    \"items\": "
}

func (l *jsonList) end(s Summary) error {
	after := "\n    ],\n"
	if l.items == 0 {
		after = l.head() + "[],\n"
	}
	data, err := json.MarshalIndent(s, "    ", "    ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.w, "%s    \"report\": %s\n}\n", after, data)
	return err
}

// yamlList is jsonList in YAML.
type yamlList struct {
	w           io.Writer
	destination string
	items       int
}

func (l *yamlList) add(image *imagev1.Image) error {
	if l.items == 0 {
		if _, err := io.WriteString(l.w, l.head()+"\n"); err != nil {
			return err
		}
	}
	l.items++
	data, err := yaml.Marshal([]*imagev1.Image{image})
	if err != nil {
		return err
	}
	_, err = l.w.Write(data)
	return err
}

func (l *yamlList) head() string {
	destination := ""
	if l.destination != "" {
		quoted, _ := json.Marshal(l.destination) // JSON is YAML, too
		destination = fmt.Sprintf("destination: %s\n", quoted)
	}
	return "apiVersion: v1\nkind: List\n" + destination + "items:"
}

func (l *yamlList) end(s Summary) error {
	before := ""
	if l.items == 0 {
		before = l.head() + " []\n"
	}
	data, err := yaml.Marshal(map[string]Summary{"report": s})
	if err != nil {
		return err
	}
	_, err = io.WriteString(l.w, before+string(data))
	return err
}

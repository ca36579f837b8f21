package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	imagev1 "github.com/openshift/api/image/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"

	"github.com/tidewaiter/tidewaiter/imageapi/manifest"
	"github.com/tidewaiter/tidewaiter/importer"
)

// outputs are the values of -o.
func outputs() []string { return []string{"name", "json", "yaml", "wide"} }

// report prints what became of each reference: results to standard output, in
// the chosen format and as they come, failures and warnings to standard error.
type report struct {
	dryRun   bool
	out      io.Writer
	errOut   io.Writer
	progress *progress
	print    func(reference string, result *importer.Result) error
	finish   func() error

	done, failed int
	printErr     error
}

func newReport(format string, dryRun bool, out, errOut io.Writer, progress *progress) *report {
	r := &report{dryRun: dryRun, out: out, errOut: errOut, progress: progress, finish: func() error { return nil }}
	switch format {
	case "name":
		r.print = r.printName
	case "json":
		list := &jsonList{w: out}
		r.print, r.finish = r.printItems(list.add), list.end
	case "yaml":
		list := &yamlList{w: out}
		r.print, r.finish = r.printItems(list.add), list.end
	case "wide":
		w := printers.GetNewTabWriter(out)
		fmt.Fprintln(w, "REFERENCE\tDIGEST\tRESULT\tIMAGES\tPLATFORM\tMEDIA TYPE")
		r.print = func(reference string, result *importer.Result) error { return r.printWide(w, reference, result) }
		r.finish = w.Flush
	default:
		r.print = r.printLine
	}
	return r
}

// add tells what became of a reference. It may be called from any goroutine.
func (r *report) add(reference string, result *importer.Result, err error) {
	r.progress.done(func() {
		if result != nil {
			for _, w := range result.Warnings {
				fmt.Fprintf(r.errOut, "warning: %s: %s\n", reference, w)
			}
		}
		if err != nil {
			r.failed++
			text := err.Error()
			if !strings.Contains(text, reference) {
				text = reference + ": " + text
			}
			fmt.Fprintf(r.errOut, "error: %s\n", text)
			return
		}
		r.done++
		r.printErr = errors.Join(r.printErr, r.print(reference, result))
	})
}

// end closes the output and turns what was reported, and err if the batch as a
// whole failed, into the command's result.
func (r *report) end(err error) error {
	r.progress.end()
	if printErr := errors.Join(r.printErr, r.finish()); printErr != nil {
		err = errors.Join(err, fmt.Errorf("printing the results: %w", printErr))
	}
	code := exitOK
	switch {
	case r.done == 0:
		code = exitNone
	case r.failed > 0 || err != nil:
		code = exitSome
	}
	if r.failed > 0 {
		fmt.Fprintf(r.errOut, "%d of %d references failed\n", r.failed, r.done+r.failed)
	}
	if code == exitOK {
		return nil
	}
	return &exitError{code: code, err: err}
}

// outcome is what happened to the references' Images, in a word or two.
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
		detail += fmt.Sprintf(", %d images", n)
	}
	_, err := fmt.Fprintf(r.out, "%s %s (%s)\n", reference, result.Digest, detail)
	return err
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

// printItems prints the Image that a reference leads to with add.
func (r *report) printItems(add func(*imagev1.Image) error) func(string, *importer.Result) error {
	return func(_ string, result *importer.Result) error {
		image := result.Images[0].Image
		if r.dryRun {
			// The server would have derived this.
			if err := manifest.Derive(image); err != nil {
				return err
			}
		}
		image.SetGroupVersionKind(imagev1.GroupVersion.WithKind("Image"))
		return add(image)
	}
}

// jsonList writes a v1 List item by item, so that a long one needs no memory.
type jsonList struct {
	w     io.Writer
	items int
}

func (l *jsonList) add(image *imagev1.Image) error {
	before := ",\n"
	if l.items == 0 {
		before = "{\n    \"apiVersion\": \"v1\",\n    \"kind\": \"List\",\n    \"items\": [\n"
	}
	l.items++
	data, err := json.MarshalIndent(image, "        ", "    ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.w, "%s        %s", before, data)
	return err
}

func (l *jsonList) end() error {
	after := "\n    ]\n}\n"
	if l.items == 0 {
		after = "{\n    \"apiVersion\": \"v1\",\n    \"kind\": \"List\",\n    \"items\": []\n}\n"
	}
	_, err := io.WriteString(l.w, after)
	return err
}

// yamlList is jsonList in YAML.
type yamlList struct {
	w     io.Writer
	items int
}

func (l *yamlList) add(image *imagev1.Image) error {
	if l.items == 0 {
		if _, err := io.WriteString(l.w, "apiVersion: v1\nkind: List\nitems:\n"); err != nil {
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

func (l *yamlList) end() error {
	if l.items > 0 {
		return nil
	}
	_, err := io.WriteString(l.w, "apiVersion: v1\nkind: List\nitems: []\n")
	return err
}

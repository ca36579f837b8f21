package auditreport

import (
	"cmp"
	_ "embed"
	"encoding/csv"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/cli"
	"github.com/tidewaiter/tidewaiter/internal/printable"
	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

//go:embed report.html
var page string

var pages = template.Must(template.New("report").Funcs(template.FuncMap{
	"text": func(s string) string { return printable.Line(s, 0) }, "stamp": stamp, "gaps": gaps, "join": strings.Join,
	"short": short, "about": (*Report).about, "verdicts": (*Report).verdictCounts,
	"quantity": func(n int, one string) string { return table.Quantity(n, one) },
}).Parse(page))

// HTML writes the report as one HTML file without scripts.
func (r *Report) HTML(out io.Writer) error { return pages.Execute(out, r) }

// columns of the CSV. The first one is the kind of line: report, policy, cluster, ran, tagMoved,
// exception or notKnown.
var columns = []string{
	"record", "cluster", "namespace", "workload", "container", "image", "digest", "platform", "from", "until", "endUnseen", "unseen",
	"verifiedFirst", "signersFirst", "verifiedLast", "signersLast", "policies", "sbom", "admission", "before", "by", "note",
}

// CSV writes a line for each part of the report. Cells that a spreadsheet would compute begin with
// an apostrophe.
func (r *Report) CSV(out io.Writer) error {
	w := csv.NewWriter(out)
	line := func(cells map[string]string) {
		row := make([]string, len(columns))
		for i, column := range columns {
			row[i] = cell(cells[column])
		}
		_ = w.Write(row) // Error returns the error
	}
	_ = w.Write(columns)
	line(map[string]string{"record": "report", "cluster": r.Cluster, "namespace": r.Namespace, "from": stamp(r.From), "until": stamp(r.Until), "note": r.Format + ", server " + r.Server.Version + ", revision " + cmp.Or(r.Server.Revision, table.None)})
	for _, p := range r.Policies {
		line(map[string]string{"record": "policy", "namespace": p.Namespace, "policies": p.Name, "digest": p.Digest})
	}
	for _, c := range r.Clusters {
		line(map[string]string{"record": "cluster", "cluster": c.Name, "from": optional(c.RecordedSince), "unseen": gaps(c.Unseen)})
	}
	for i := range r.Ran {
		one := &r.Ran[i]
		line(map[string]string{
			"record": "ran", "cluster": one.Cluster, "namespace": one.Namespace, "workload": one.Workload, "container": one.Container, "image": one.Image, "digest": one.Digest, "platform": one.Platform,
			"from": stamp(one.From), "until": optional(one.Until), "endUnseen": fmt.Sprint(one.EndUnseen), "unseen": gaps(one.Unseen),
			"verifiedFirst": one.First.Verified, "signersFirst": strings.Join(one.First.Signers, ", "), "verifiedLast": one.Last.Verified, "signersLast": strings.Join(one.Last.Signers, ", "),
			"policies": strings.Join(one.Last.Policies, ", "), "sbom": one.SBOM, "admission": one.Admission, "note": cmp.Or(one.Last.Message, one.Last.Reason),
		})
	}
	for _, m := range r.TagsMoved {
		line(map[string]string{"record": "tagMoved", "image": m.Reference, "digest": m.Digest, "before": m.Before, "from": stamp(m.At), "by": m.By})
	}
	for _, e := range r.Exceptions {
		line(map[string]string{"record": "exception", "image": e.Image, "digest": e.Digest, "policies": strings.Join(e.Policies, ", "), "until": e.Ends, "workload": strings.Join(e.Workloads, ", "), "note": e.Message})
	}
	for _, text := range r.NotKnown {
		line(map[string]string{"record": "notKnown", "note": text})
	}
	w.Flush()
	return w.Error()
}

// cell returns a text for a cell of CSV: on one line, and never a formula.
func cell(s string) string {
	if s = printable.Line(s, 0); s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}

func optional(t *metav1.Time) string {
	if t == nil {
		return ""
	}
	return stamp(*t)
}

func short(digest string) string {
	return strings.TrimPrefix(reference.ShortDigest(digest), "sha256:")
}

// about returns a text with the clusters and the namespace that the report is about.
func (r *Report) about() string {
	where := "all clusters"
	if r.Cluster != "" {
		where = "cluster " + r.Cluster
	}
	if r.Namespace != "" {
		where = "namespace " + r.Namespace + " of " + where
	}
	return where
}

// verdictCounts returns a text with the verdicts at the end, and the number of stretches with each.
func (r *Report) verdictCounts() string {
	var all []string
	for _, v := range slices.Sorted(maps.Keys(r.Summary.Verdicts)) {
		all = append(all, fmt.Sprintf("%s %d", v, r.Summary.Verdicts[v]))
	}
	return cmp.Or(strings.Join(all, ", "), table.None)
}

// Text writes the report for a terminal.
func (r *Report) Text(out io.Writer) error {
	s := &r.Summary
	fmt.Fprintf(out, "What ran in %s from %s to %s\n", printable.Line(r.about(), 0), stamp(r.From), stamp(r.Until))
	fmt.Fprintf(out, "Server:   %s, revision %s\n", r.Server.Version, cmp.Or(r.Server.Revision, table.None))
	fmt.Fprintf(out, "Ran:      %s of %s, %s\n", table.Quantity(s.Stretches, "stretch"), table.Quantity(s.Workloads, "workload"), table.Quantity(s.Images, "digest"))
	fmt.Fprintf(out, "Verdicts: %s\n", r.verdictCounts())
	print := func(title string, rows [][]string, columns ...string) {
		if len(rows) > 0 {
			fmt.Fprintf(out, "\n%s\n", title)
			_ = (&cli.Table{Columns: columns, Rows: rows, Fixed: []string{"FROM", "UNTIL", "WHEN"}}).Print(out)
		}
	}
	var rows [][]string
	for i := range r.Ran {
		one := &r.Ran[i]
		until := table.None
		if one.Until != nil {
			if until = minute(*one.Until); one.EndUnseen {
				until += "?"
			}
		}
		rows = append(rows, []string{
			one.Cluster + "/" + one.Namespace, one.Workload, one.Image, cmp.Or(short(one.Digest), table.Unknown), minute(one.From), until,
			one.First.Verified, one.Last.Verified, one.SBOM, one.Admission,
		})
	}
	print("What ran:", rows, "WHERE", "WORKLOAD", "IMAGE", "DIGEST", "FROM", "UNTIL", "FIRST", "LAST", "SBOM", "ADMISSION")
	rows = nil
	for _, m := range r.TagsMoved {
		rows = append(rows, []string{minute(m.At), m.Reference, cmp.Or(short(m.Digest), "<deleted>"), cmp.Or(short(m.Before), "<deleted>"), cmp.Or(m.By, table.Unknown)})
	}
	print("Tags that moved:", rows, "WHEN", "REFERENCE", "DIGEST", "BEFORE", "BY…")
	rows = nil
	for _, e := range r.Exceptions {
		rows = append(rows, []string{e.Image, cmp.Or(short(e.Digest), table.Unknown), strings.Join(e.Policies, ", "), e.Ends, e.Message})
	}
	print("Exceptions:", rows, "IMAGE", "DIGEST", "POLICY", "ENDS", "REASON…")
	if len(r.NotKnown) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(out, "\nNot known:\n")
	for _, text := range r.NotKnown {
		_, err = fmt.Fprintf(out, "  %s\n", printable.Line(text, 0))
	}
	return err
}

// minute returns a time without seconds, as tables show it.
func minute(t metav1.Time) string { return t.UTC().Format("2006-01-02 15:04") }

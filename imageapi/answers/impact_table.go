package answers

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/admit"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// impactTable is a review of an act as kubectl and tidewaiter impact show it, with a row for each
// reference.
var impactTable = table.Of[*ImpactReview]{
	Columns: []metav1.TableColumnDefinition{
		{Name: "Pods", Type: "string", Description: "Number of pods that run the image under this reference; a plus means that there may be more, Unknown that there may be some."},
		{Name: "Before", Type: "string", Description: "The verdict for this reference now, and moved if the pods run an image that the tag led to before."},
		{Name: "After", Type: "string", Description: "The verdict after the act, and denied if a cluster that asks on admission would then refuse a pod; Gone, Absent or NotImported if the reference means nothing any more."},
		{Name: "Effect", Type: "string", Description: "What the act does: Judged, Unpullable, Deleted, Incomplete, Contains, MayContain, NotAffected."},
		{Name: "Where", Type: "string", Description: "The clusters and namespaces of the pods, else a workload that needs the image."},
		{Name: "Reference", Type: "string", Description: "The reference; in brackets the namespace, if the verdict is for its pods alone."},
		{Name: "Image", Type: "string", Priority: 1, Description: "The digest of the image."},
		{Name: "Needed By", Type: "string", Priority: 1, Description: "Workloads that need the image."},
		{Name: "Why", Type: "string", Priority: 1, Description: "What the verdict after the act says; of a package or an advisory that was asked for, the versions, the fix, and who vouches for the SBOM."},
	},
	Rows: func(r *ImpactReview) (rows [][]any) {
		for i := range r.Status.Rows {
			rows = append(rows, impactCells(&r.Status.Rows[i]))
		}
		return rows
	},
}

// ImpactTable is a review of an act as kubectl shows it.
func ImpactTable(ctx context.Context, r *ImpactReview) (*metav1.Table, error) {
	return impactTable.ConvertToTable(ctx, r, nil)
}

// maxWhere is how many places a cell names.
const maxWhere = 2

func impactCells(row *ImpactRow) []any {
	var places []string
	if row.Running != nil {
		for _, in := range row.Running.Clusters {
			places = append(places, in.Cluster+"/"+in.Namespace)
		}
	}
	if len(places) == 0 {
		places = row.NeededBy
	}
	where := table.None
	if more := len(places) - maxWhere; more > 0 {
		where = fmt.Sprintf("%s,+%d", strings.Join(places[:maxWhere], ","), more)
	} else if len(places) > 0 {
		where = strings.Join(places, ",")
	}
	after := row.After.word()
	if row.After.Admission == admit.Deny.String() {
		after += " (denied)"
	}
	before := row.Before.word()
	if row.Before.State == Moved && row.Before.Verdict != nil {
		before += " (moved)"
	}
	needed, why := table.None, table.None
	if len(row.NeededBy) > 0 {
		needed = strings.Join(row.NeededBy, ",")
	}
	if v := row.After.Verdict; v != nil && v.Message != "" {
		why = v.Message
	}
	switch {
	case len(row.Packages) > 0:
		why = packagesCell(row)
	case len(row.Advisories) > 0:
		why = advisoriesCell(row)
	}
	return []any{row.Running.cell(), before, after, string(row.Effect), where, row.Name(), row.Image, needed, why}
}

// packagesCell is the packages of a row, with who vouches for them, and the statements of VEX
// documents.
func packagesCell(row *ImpactRow) string {
	var all []string
	for _, p := range row.Packages {
		text := p.cell()
		if p.Unknown != "" {
			text += ", maybe in the range: " + p.Unknown
		}
		all = append(all, text)
	}
	for _, s := range row.Statements {
		all = append(all, s.cell())
	}
	return strings.Join(all, "; ")
}

// advisoriesCell is the advisories of a row, with the package, its fix, and the statements of VEX
// documents.
func advisoriesCell(row *ImpactRow) string {
	var all []string
	for i := range row.Advisories {
		a := &row.Advisories[i]
		text := strings.Join(append([]string{a.ID}, a.Aliases...), ",") + ": " + a.Package.cell()
		if a.Package.Unknown != "" {
			text += ", maybe: " + a.Package.Unknown
		}
		if a.Fixed != "" {
			text += ", fixed in " + a.Fixed
		}
		if a.FixedBy != "" {
			text += ", and in " + a.FixedBy
		}
		if a.Statement != nil {
			text += ", " + a.Statement.cell()
		}
		all = append(all, text)
	}
	if n := row.OmittedAdvisories; n > 0 {
		all = append(all, fmt.Sprintf("and %d more", n))
	}
	return strings.Join(all, "; ")
}

func (p *ImpactPackage) cell() string {
	return fmt.Sprintf("%s %s (%s)", p.Name, cmp.Or(p.Version, "of unknown version"), vouchedCell(p.Vouched, p.VouchedBy))
}

func (s *ImpactStatement) cell() string {
	return fmt.Sprintf("VEX: %s %s, says %s (%s)", s.Vulnerability, s.Status, cmp.Or(s.Author, "nobody"), vouchedCell(s.Vouched, s.VouchedBy))
}

// vouchedCell shows who vouches for a document.
func vouchedCell(vouched, who string) string {
	switch {
	case vouched == verdicts.VerifiedTrue && who != "":
		return "vouched for by " + who
	case vouched == verdicts.VerifiedTrue:
		return "vouched for"
	}
	return vouched
}

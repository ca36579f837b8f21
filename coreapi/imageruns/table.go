package imageruns

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// runTable is `kubectl get imageruns`.
var runTable = table.Of[*ImageRun]{
	Columns: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "The beginning, and what tells it from others."},
		{Name: "Cluster", Type: "string", Description: "The cluster."},
		{Name: "Workload", Type: "string", Description: "The topmost owner of the pods."},
		{Name: "Container", Type: "string", Description: "The container."},
		{Name: "Image", Type: "string", Description: "The reference in the pods' specs."},
		{Name: "Digest", Type: "string", Description: "The beginning of the digest that ran."},
		{Name: "From", Type: "string", Description: "When it began, in UTC."},
		{Name: "Until", Type: "string", Description: "When it ended, in UTC; it runs while there is none. A question mark says that it is not known when it ended, and this is when that was found."},
		{Name: "Pods", Type: "integer", Description: "How many pods ran it at once at most."},
		{Name: "Verified", Type: "string", Description: "The last verdict that was known while it ran."},
		{Name: "Unseen", Type: "string", Description: "How long the cluster could not be seen meanwhile."},
		{Name: "Admission", Type: "string", Priority: 1, Description: "How it was admitted, if the cluster asked this server."},
		{Name: "Platform", Type: "string", Priority: 1, Description: "The nodes' operating system and architecture."},
		{Name: "At First", Type: "string", Priority: 1, Description: "The first verdict."},
		{Name: "Reason", Type: "string", Priority: 1, Description: "Why the last verdict was so."},
		{Name: "Signers", Type: "string", Priority: 1, Description: "Who had signed it."},
	},
	Rows: rows,
}

func rows(r *ImageRun) [][]any {
	last, first := RunVerdict{Verified: table.Unknown}, table.Unknown
	if n := len(r.Status.Verdicts); n > 0 {
		last, first = r.Status.Verdicts[n-1], r.Status.Verdicts[0].Verified
	}
	until := table.None
	if r.Status.Until != nil {
		if until = when(*r.Status.Until); EndUnseen(r) {
			until += "?"
		}
	}
	return [][]any{{
		r.Name, r.Spec.Cluster, r.Spec.Workload, r.Spec.Container, r.Spec.Image, cmp.Or(reference.ShortDigest(r.Spec.Digest), table.Unknown),
		when(r.Spec.From), until, int64(r.Status.MostPods), last.Verified, UnseenFor(r),
		cmp.Or(r.Status.Admission, table.Unknown), cmp.Or(r.Spec.Platform, table.Unknown), first, cmp.Or(last.Reason, table.None), cmp.Or(strings.Join(last.Signers, ", "), table.None),
	}}
}

// EndUnseen reports whether a stretch ended while the cluster could not be seen: then it is not
// known when.
func EndUnseen(r *ImageRun) bool {
	n := len(r.Status.Unseen)
	return r.Status.Until != nil && n > 0 && r.Status.Unseen[n-1].Until != nil && !r.Status.Unseen[n-1].Until.Before(r.Status.Until)
}

func when(t metav1.Time) string { return t.UTC().Format(time.RFC3339) }

// Unseen returns for how long a cluster could not be seen while a stretch lasted, without the time
// since when it cannot be seen now; since is nil if it can.
func Unseen(r *ImageRun) (all time.Duration, since *metav1.Time) {
	for i := range r.Status.Unseen {
		g := &r.Status.Unseen[i]
		if g.Until == nil {
			since = &g.From
			continue
		}
		all += g.Until.Sub(g.From.Time)
	}
	return all, since
}

// UnseenFor is Unseen as tables show it.
func UnseenFor(r *ImageRun) string {
	switch all, since := Unseen(r); {
	case since != nil && all > 0:
		return fmt.Sprintf("%s, and since %s", all, when(*since))
	case since != nil:
		return fmt.Sprintf("since %s", when(*since))
	case all == 0:
		return table.None
	default:
		return all.String()
	}
}

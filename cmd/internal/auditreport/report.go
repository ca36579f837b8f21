// Package auditreport makes an auditor's report of what ran in a period, from the server's records.
// A report depends only on the records: it contains neither the time at which it was made nor
// anything that happened after the period, and everything in it is sorted. So the same request
// always gives the same bytes.
package auditreport

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/coreapi/imageruns"
	"github.com/tidewaiter/tidewaiter/internal/image/verdicts"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// Format is the format of a report.
const Format = "tidewaiter.dev/report/v1"

// Whether an image has an SBOM.
const (
	SBOMYes       = "Yes"
	SBOMNoneFound = "NoneFound" // the server has none
	SBOMUnknown   = "Unknown"
)

// Report is what ran in a period. -o json prints all fields.
type Report struct {
	Format string `json:"format"`
	// From and Until are the period. Nothing in the report happened after Until.
	From  metav1.Time `json:"from"`
	Until metav1.Time `json:"until"`
	// Cluster and Namespace are set if the report is about only these.
	Cluster   string `json:"cluster,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Server    Server `json:"server"`
	// Policies are the server's policies now.
	Policies []Policy `json:"policies"`
	Summary  Summary  `json:"summary"`
	// Clusters are the followed clusters, if the caller may read them.
	Clusters   []Cluster   `json:"clusters"`
	Ran        []Ran       `json:"ran"`
	TagsMoved  []Move      `json:"tagsMoved"`
	Exceptions []Exception `json:"exceptions"`
	// NotKnown lists what is unknown about the period.
	NotKnown []string `json:"notKnown"`
}

// Server is the server that made the report.
type Server struct {
	Version string `json:"version"`
	// Revision is the newest resource version among the records of stretches that had ended by Until.
	Revision string `json:"revision,omitempty"`
}

// Policy is a policy that the server has.
type Policy struct {
	Namespace string `json:"namespace,omitempty"` // empty for a policy of the cluster
	Name      string `json:"name"`
	// Digest is the SHA-256 of its specification and annotations.
	Digest string `json:"digest"`
}

// Summary counts.
type Summary struct {
	Stretches int `json:"stretches"`
	Workloads int `json:"workloads"`
	Images    int `json:"images"` // digests
	// Verdicts counts the stretches by the verdict at their end.
	Verdicts map[string]int `json:"verdicts"`
}

// Cluster has the times for which it is known what ran in a cluster.
type Cluster struct {
	Name string `json:"name"`
	// RecordedSince is the time from which on records are complete.
	RecordedSince *metav1.Time `json:"recordedSince,omitempty"`
	// Unseen are the times in which the cluster could not be seen.
	Unseen []clusters.Gap `json:"unseen,omitempty"`
}

// Ran is a stretch in which a container of a workload ran an image.
type Ran struct {
	Cluster   string      `json:"cluster"`
	Namespace string      `json:"namespace"`
	Workload  string      `json:"workload"`
	Container string      `json:"container"`
	Image     string      `json:"image"`
	Digest    string      `json:"digest,omitempty"` // empty if unknown
	Platform  string      `json:"platform,omitempty"`
	From      metav1.Time `json:"from"`
	// Until is absent if the image still ran at the end of the period.
	Until *metav1.Time `json:"until,omitempty"`
	// EndUnseen is true if the stretch ended at an unknown time before Until.
	EndUnseen bool `json:"endUnseen,omitempty"`
	// Unseen are the gaps in which it is unknown whether the image ran. A gap without an end lasted
	// until the end of the period.
	Unseen []clusters.Gap `json:"unseen,omitempty"`
	// First and Last are the verdicts at the beginning and the end of the stretch, or of the period.
	First Verdict `json:"verdictFirst"`
	Last  Verdict `json:"verdictLast"`
	// Changes is how many other verdicts are known to have begun in the period.
	Changes int `json:"verdictChanges,omitempty"`
	// SBOM is Yes, NoneFound or Unknown.
	SBOM             string `json:"sbom"`
	Admission        string `json:"admission"`
	AdmissionMessage string `json:"admissionMessage,omitempty"`
}

// Verdict is a verdict with the time at which it was found.
type Verdict = imageruns.RunVerdict

// Move is a move of a tag to another image. Digest is empty if the registry no longer had the tag.
type Move struct {
	At        metav1.Time `json:"at"`
	Reference string      `json:"reference"`
	Before    string      `json:"before,omitempty"`
	Digest    string      `json:"digest,omitempty"`
	By        string      `json:"by,omitempty"`
}

// Exception is an exception of a policy that let an image run.
type Exception struct {
	Image    string   `json:"image"`
	Digest   string   `json:"digest,omitempty"`
	Policies []string `json:"policies,omitempty"`
	Ends     string   `json:"ends"`
	Message  string   `json:"message,omitempty"`
	// Workloads are CLUSTER/NAMESPACE/KIND/NAME.
	Workloads []string `json:"workloads"`
}

// New begins a report about a period.
func New(w imageruns.Window, cluster, namespace, version string) *Report {
	return &Report{
		Format: Format, From: second(w.From), Until: second(w.Until), Cluster: cluster, Namespace: namespace, Server: Server{Version: version},
		Policies: []Policy{}, Summary: Summary{Verdicts: map[string]int{}}, Clusters: []Cluster{}, Ran: []Ran{}, TagsMoved: []Move{}, Exceptions: []Exception{}, NotKnown: []string{},
	}
}

func second(t time.Time) metav1.Time { return metav1.NewTime(t.UTC().Truncate(time.Second)) }

func (r *Report) window() imageruns.Window {
	return imageruns.Window{From: r.From.Time, Until: r.Until.Time}
}

// Unknown adds a text to NotKnown.
func (r *Report) Unknown(format string, args ...any) {
	r.NotKnown = append(r.NotKnown, fmt.Sprintf(format, args...))
}

// Add adds the record of a stretch, up to the end of the period. sbom is whether the image has an
// SBOM: one of the constants.
func (r *Report) Add(run *imageruns.ImageRun, sbom string) {
	w := r.window()
	one := Ran{
		Cluster: run.Spec.Cluster, Namespace: run.Namespace, Workload: run.Spec.Workload, Container: run.Spec.Container, Image: run.Spec.Image, Digest: run.Spec.Digest,
		Platform: run.Spec.Platform, From: second(run.Spec.From.Time), Unseen: r.cut(run.Status.Unseen), SBOM: sbom,
		Admission: cmp.Or(run.Status.Admission, imageruns.AdmissionUnknown), AdmissionMessage: run.Status.AdmissionMessage,
	}
	if until := run.Status.Until; until != nil && !until.After(w.Until) {
		end := second(until.Time)
		one.Until, one.EndUnseen = &end, imageruns.EndUnseen(run)
		r.revise(run.ResourceVersion)
	}
	one.First, one.Last = w.First(run), w.Last(run)
	known, dropped := w.Verdicts(run)
	one.Changes = max(len(known)-1, 0)
	for _, v := range known {
		if v.ExceptionUntil != "" {
			r.except(&one, v)
		}
	}
	r.Ran = append(r.Ran, one)
	if dropped && len(run.Status.Verdicts) > 0 && run.Status.VerdictsDropped > 0 {
		r.Unknown("some verdicts on %s of %s in %s/%s, which began to run at %s, are no longer kept", one.Image, one.Workload, one.Cluster, one.Namespace, stamp(one.From))
	}
}

// revise raises Revision to the resource version of a record.
func (r *Report) revise(version string) {
	n, err := strconv.ParseInt(version, 10, 64)
	if known, _ := strconv.ParseInt(r.Server.Revision, 10, 64); err == nil && n > known {
		r.Server.Revision = version
	}
}

// cut returns the gaps in the period, cut at its end.
func (r *Report) cut(gaps []clusters.Gap) (all []clusters.Gap) {
	for _, g := range gaps {
		if g.From.After(r.Until.Time) || g.Until != nil && !g.Until.After(r.From.Time) {
			continue
		}
		one := clusters.Gap{From: second(g.From.Time)}
		if g.Until != nil && !g.Until.After(r.Until.Time) {
			end := second(g.Until.Time)
			one.Until = &end
		}
		all = append(all, one)
	}
	return all
}

// except adds an exception that let an image run.
func (r *Report) except(one *Ran, v Verdict) {
	workload := one.Cluster + "/" + one.Namespace + "/" + one.Workload
	for i := range r.Exceptions {
		e := &r.Exceptions[i]
		if e.Image == one.Image && e.Digest == one.Digest && e.Ends == v.ExceptionUntil && slices.Equal(e.Policies, v.Policies) {
			e.Message = min(e.Message, v.Message)
			e.Workloads = append(e.Workloads, workload)
			return
		}
	}
	r.Exceptions = append(r.Exceptions, Exception{one.Image, one.Digest, v.Policies, v.ExceptionUntil, v.Message, []string{workload}})
}

// Follow adds a followed cluster; records is nil if the cluster has no records.
func (r *Report) Follow(name string, records *clusters.ClusterRecords) {
	if r.Cluster != "" && r.Cluster != name {
		return
	}
	c := Cluster{Name: name}
	if records == nil {
		r.Unknown("what ran in cluster %s is not recorded yet", name)
	} else {
		since := second(records.Since.Time)
		c.RecordedSince, c.Unseen = &since, r.cut(records.Unseen)
		if r.From.Before(&since) {
			r.Unknown("what ran in cluster %s is recorded since %s, and not whole before", name, stamp(since))
		}
		open := false
		for _, g := range c.Unseen {
			if open = g.Until == nil; open {
				r.Unknown("cluster %s was not seen from %s to the end of this time, so it is not known what ran there then", name, stamp(g.From))
			} else {
				r.Unknown("cluster %s was not seen from %s to %s, so it is not known what ran there then", name, stamp(g.From), stamp(*g.Until))
			}
		}
		if until := second(records.Until.Time); !open && until.Before(&r.Until) {
			r.Unknown("what ran in cluster %s after %s was not yet recorded when this was asked", name, stamp(until))
		}
	}
	r.Clusters = append(r.Clusters, c)
}

// Finish sorts and counts everything. followed is true if all clusters were added.
func (r *Report) Finish(followed bool) {
	slices.SortFunc(r.Policies, func(a, b Policy) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	slices.SortFunc(r.Clusters, func(a, b Cluster) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(r.Ran, func(a, b Ran) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Container, b.Container),
			cmp.Compare(a.Image, b.Image), cmp.Compare(a.Digest, b.Digest), cmp.Compare(a.Platform, b.Platform), a.From.Compare(b.From.Time))
	})
	slices.SortFunc(r.TagsMoved, func(a, b Move) int {
		return cmp.Or(cmp.Compare(a.Reference, b.Reference), a.At.Compare(b.At.Time), cmp.Compare(a.Digest, b.Digest))
	})
	for i := range r.Exceptions {
		e := &r.Exceptions[i]
		slices.Sort(e.Workloads)
		e.Workloads = slices.Compact(e.Workloads)
	}
	slices.SortFunc(r.Exceptions, func(a, b Exception) int {
		return cmp.Or(cmp.Compare(a.Image, b.Image), cmp.Compare(a.Digest, b.Digest), cmp.Compare(a.Ends, b.Ends), slices.Compare(a.Policies, b.Policies))
	})
	r.count(followed)
	slices.Sort(r.NotKnown)
	r.NotKnown = slices.Compact(r.NotKnown)
}

// count fills in the summary, and adds what is unknown about stretches to NotKnown.
func (r *Report) count(followed bool) {
	workloads, digests := map[string]bool{}, map[string]bool{}
	known := map[string]bool{}
	for _, c := range r.Clusters {
		known[c.Name] = true
	}
	var digest, first, last, sbom, admission, ended int
	for i := range r.Ran {
		one := &r.Ran[i]
		workloads[one.Cluster+"/"+one.Namespace+"/"+one.Workload] = true
		digests[one.Digest] = true
		r.Summary.Verdicts[one.Last.Verified]++
		for n, unknown := range map[*int]bool{
			&digest: one.Digest == "", &first: one.First.Verified == verdicts.VerifiedUnknown, &last: one.Last.Verified == verdicts.VerifiedUnknown,
			&sbom: one.SBOM == SBOMUnknown, &admission: one.Admission == imageruns.AdmissionUnknown || one.Admission == imageruns.AdmissionUnknownAllowed, &ended: one.EndUnseen,
		} {
			if unknown {
				*n++
			}
		}
		if followed && !known[one.Cluster] {
			known[one.Cluster] = true
			r.Unknown("cluster %s is no longer followed, so it is unknown for which times its records are complete", one.Cluster)
		}
	}
	delete(digests, "")
	r.Summary.Stretches, r.Summary.Workloads, r.Summary.Images = len(r.Ran), len(workloads), len(digests)
	for _, n := range []struct {
		of   int
		what string
	}{
		{digest, "the digest of what ran is not known"}, {first, "the verdict at the beginning is not known"}, {last, "the verdict at the end is not known"},
		{sbom, "it is not known whether the image has an SBOM"}, {admission, "it is not known how it was admitted, or that it met the policies then"}, {ended, "it is not known when it ended"},
	} {
		if n.of > 0 {
			r.Unknown("%s for %s of %d", n.what, table.Quantity(n.of, "stretch"), len(r.Ran))
		}
	}
}

func stamp(t metav1.Time) string { return t.UTC().Format(time.RFC3339) }

// times returns a text with the beginning and the end of a gap.
func times(g clusters.Gap) string {
	if g.Until == nil {
		return "from " + stamp(g.From)
	}
	return stamp(g.From) + " to " + stamp(*g.Until)
}

func gaps(all []clusters.Gap) string {
	var texts []string
	for _, g := range all {
		texts = append(texts, times(g))
	}
	return strings.Join(texts, "; ")
}

package console

import (
	"encoding/csv"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tidewaiter/tidewaiter/internal/printable"
)

// Paths of the API.
const (
	podsPath     = "/apis/tidewaiter.dev/v1/clusterpods"
	clustersPath = "/apis/tidewaiter.dev/v1/clusters"
)

// maxExport bounds the containers of an export.
const maxExport = 100_000

const (
	// podRows is how many pods a page reads. For each, the API looks up its images.
	podRows = 50
	// podsSorted is how many pods a page reads to show all of their workloads in the order of need.
	podsSorted = 500
)

// runningRow is a container that runs, or should.
type runningRow struct {
	Cluster, Namespace, Pod, Container, Image, Digest, Verified, Outdated, OutdatedUnknown, Waiting, NotImported text
	Since                                                                                                        time.Time
}

// runningView has the data of the page Running.
type runningView struct {
	Filters                          map[string]string
	Filtered                         bool
	Clusters                         []clusterView
	Followed                         bool // a cluster is followed, besides the server's own pods
	Workloads                        []*workload
	Pods                             int   // that were read
	Total                            int64 // pods that match; -1 if that is not known
	Sorted                           bool  // all that match were read
	Next, Export                     string
	Refused, RefusedClusters         *notice
	Pod, Cluster, Namespace, Outdate string
	Verified                         string
	Verdicts                         [][2]string
	Warnings                         []text // of the API: whose pods are not known
	// At is the chosen time, in UTC as a form has it. Ran are the records of that time, nil if the
	// page shows the present.
	At  string
	Ran *ranView
	// OverTime has what the workload ran that the filters name; nil if they name none.
	OverTime *ranView
}

// clusterView is a cluster and the age of its data.
type clusterView struct {
	Name, Why text
	Pods      int
	Reachable bool
	Synced    bool
	LastSeen  time.Time
	Ends      text // a message if the credential ends soon; empty if it does not
}

// clusters reads the followed clusters.
func (v *visit) clusters() ([]cluster, error) {
	var l list[cluster]
	err := v.call.get(v.ctx(), clustersPath, nil, &l)
	return l.Items, err
}

// ownCluster is the name of the cluster that stands for the server's own pods.
const ownCluster = "local"

// follows reports whether a cluster is followed, besides the server's own pods.
func follows(all []cluster) bool {
	return slices.ContainsFunc(all, func(c cluster) bool { return c.Metadata.Name != ownCluster })
}

// away reports whether a cluster cannot be reached, so that its data is old.
func (c *cluster) away() (condition, bool) {
	reachable := find(c.Status.Conditions, "Reachable")
	return reachable, reachable.Status != "True"
}

// endsSoon reports whether the credential for a cluster ends soon, or has ended.
func (c *cluster) endsSoon() (condition, bool) {
	credential := find(c.Status.Conditions, "Credential")
	return credential, credential.Reason == "EndsSoon" || credential.Reason == "Ended"
}

// podSelector returns the filters in a query, and their field selector.
func podSelector(query url.Values) (values map[string]string, selector string) {
	values = map[string]string{}
	var terms []string
	for _, f := range [][2]string{{"cluster", "spec.cluster"}, {"namespace", "spec.namespace"}, {"pod", "pod"}, {"image", "image"}, {"outdated", "outdated"}, {"verified", "verified"}, {"reason", "reason"}} {
		if value := strings.TrimSpace(printable.Line(query.Get(f[0]), 1024)); value != "" {
			values[f[0]] = value
			terms = append(terms, f[1]+"="+escapeTerm(value))
		}
	}
	return values, strings.Join(terms, ",")
}

// running shows the containers that run.
func (v *visit) running() error {
	query := v.r.URL.Query()
	values, selector := podSelector(query)
	data := &runningView{Filters: values, Filtered: selector != ""}
	data.Pod, data.Cluster, data.Namespace, data.Outdate = values["pod"], values["cluster"], values["namespace"], values["outdated"]
	data.Verified, data.Verdicts = values["verified"], verdictChoices()
	clusters, err := v.clusters()
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	data.RefusedClusters, data.Followed = noticeOf("list clusters", err), follows(clusters)
	for i := range clusters {
		c := &clusters[i]
		reachable, away := c.away()
		shown := clusterView{Name: c.Metadata.Name, Pods: c.Status.Pods, Reachable: !away, Synced: find(c.Status.Conditions, "Synced").Status == "True", Why: reachable.Message, LastSeen: c.Status.LastSeen}
		if credential, soon := c.endsSoon(); soon {
			shown.Ends = credential.Message
		}
		data.Clusters = append(data.Clusters, shown)
	}
	if at := strings.TrimSpace(query.Get("at")); at != "" {
		data.Filtered = true
		return v.ranAt(data, at)
	}
	if err := v.readRunning(data, selector, query); err != nil {
		return err
	}
	if err := v.workloadOverTime(data); err != nil {
		return err
	}
	command := "kubectl get clusterpods"
	if selector != "" {
		command += " --field-selector " + quoted(selector)
	}
	return v.show(&page{Name: "running", Title: "Running", Nav: "running", Data: data, Commands: []string{command, "tidewaiter pods --outdated"}})
}

// readRunning reads what runs: all that matches if that is not more than podsSorted pods, else a
// page of it.
func (v *visit) readRunning(data *runningView, selector string, query url.Values) error {
	ask := url.Values{"limit": {fmt.Sprint(podRows)}}
	if selector != "" {
		ask.Set("fieldSelector", selector)
	}
	after := query.Get("continue")
	if after != "" {
		ask.Set("continue", after)
	}
	var pods list[clusterPod]
	var err error
	data.Warnings, err = v.call.getWarned(v.ctx(), podsPath, ask, &pods)
	if isCode(err, http.StatusGone) {
		ask.Del("continue")
		after = ""
		data.Warnings, err = v.call.getWarned(v.ctx(), podsPath, ask, &pods)
	}
	if data.Total = -1; err == nil && after == "" {
		err = v.readAllRunning(data, ask, &pods)
	}
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	data.Refused = noticeOf("list the pods of clusters", err)
	data.Pods, data.Workloads, data.Sorted = len(pods.Items), workloadsOf(pods.Items), after == "" && pods.Metadata.Continue == ""
	if pods.Metadata.Continue != "" {
		query.Set("continue", pods.Metadata.Continue)
		data.Next = Root + "running?" + query.Encode()
	}
	query.Del("continue")
	data.Export = Root + "running.csv?" + query.Encode()
	return nil
}

// readAllRunning completes the first page with the other pods, unless all together are more than
// podsSorted.
func (v *visit) readAllRunning(data *runningView, ask url.Values, pods *list[clusterPod]) error {
	data.Total = int64(len(pods.Items))
	if pods.Metadata.Continue == "" {
		return nil
	}
	if pods.Metadata.Remaining == nil {
		data.Total = -1 // the API computes what was asked for, and does not count it
	} else if data.Total += *pods.Metadata.Remaining; data.Total > podsSorted {
		return nil
	}
	ask.Set("limit", fmt.Sprint(podsSorted-podRows))
	ask.Set("continue", pods.Metadata.Continue)
	var rest list[clusterPod]
	if err := v.call.get(v.ctx(), podsPath, ask, &rest); err != nil {
		return err
	}
	pods.Items, pods.Metadata = append(pods.Items, rest.Items...), rest.Metadata
	if rest.Metadata.Continue == "" {
		data.Total = int64(len(pods.Items))
	}
	return nil
}

func containersOf(p *clusterPod) (all []runningRow) {
	for _, c := range p.Spec.Containers {
		all = append(all, runningRow{Cluster: p.Spec.Cluster, Namespace: p.Spec.Namespace, Pod: p.Spec.Name, Container: c.Name, Image: c.Image, Digest: c.Digest, Verified: c.Verified, Outdated: c.Outdated, OutdatedUnknown: c.OutdatedUnknown, Waiting: c.Waiting, NotImported: c.NotImported, Since: p.Spec.Since})
	}
	return all
}

// exportPage is how many pods an export reads at a time. It reads fewer if a page of them is too
// large.
const exportPage = 500

// runningCSV exports the running pods, page by page. Rows before them state what is unknown, such
// as the pods of a cluster that is away.
func (v *visit) runningCSV() error {
	_, selector := podSelector(v.r.URL.Query())
	ask := url.Values{}
	if selector != "" {
		ask.Set("fieldSelector", selector)
	}
	made, begun, limit := v.w.(*made), false, exportPage
	for rows := 0; rows < maxExport; {
		var pods list[clusterPod]
		ask.Set("limit", fmt.Sprint(limit))
		warnings, err := v.call.getWarned(v.ctx(), podsPath, ask, &pods)
		if errors.Is(err, errLargeAnswer) && limit > 1 {
			limit /= 2
			continue
		}
		if err != nil && !begun {
			return err
		}
		if err != nil {
			panic(http.ErrAbortHandler) // so that the browser notices that the file is incomplete
		}
		before, out, n := made.body.Len(), csv.NewWriter(made), 0
		if !begun {
			h := made.Header()
			h.Set("Content-Type", "text/csv; charset=utf-8")
			h.Set("Content-Disposition", `attachment; filename="running.csv"`)
			_ = out.Write([]string{"cluster", "namespace", "pod", "container", "image", "digest", "verified", "outdated", "waiting", "not imported", "since", "outdated unknown", "unknown"})
			for _, w := range warnings {
				_ = out.Write(append(make([]string, 12), inert(string(w))))
			}
		}
		for i := range pods.Items {
			for _, r := range containersOf(&pods.Items[i]) {
				n++
				cells := []string{string(r.Cluster), string(r.Namespace), string(r.Pod), string(r.Container), string(r.Image), string(r.Digest), string(r.Verified), string(r.Outdated), string(r.Waiting), string(r.NotImported), r.Since.UTC().Format(time.RFC3339), string(r.OutdatedUnknown), ""}
				for i := range cells {
					cells[i] = inert(cells[i])
				}
				_ = out.Write(cells)
			}
		}
		if out.Flush(); errors.Is(out.Error(), errLargePage) && limit > 1 {
			made.body.Truncate(before)
			limit /= 2
			continue
		}
		rows, begun = rows+n, true
		switch {
		case out.Error() != nil:
			panic(http.ErrAbortHandler)
		case pods.Metadata.Continue == "":
			return nil
		case made.flush() != nil:
			panic(http.ErrAbortHandler)
		}
		ask.Set("continue", pods.Metadata.Continue)
	}
	panic(http.ErrAbortHandler)
}

// inert makes a cell that no spreadsheet interprets as a formula.
func inert(cell string) string {
	if cell != "" && strings.ContainsRune("=+-@\t", rune(cell[0])) {
		return "'" + cell
	}
	return cell
}

package console

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// workload is a workload with the pods of it that were read, and what their containers run.
type workload struct {
	Cluster, Namespace, Kind, Name text
	Pods                           []text
	Runs                           []*workloadImage // the worst first
	Since                          time.Time        // when the oldest of the pods was created
}

// workloadImage is what containers of one name run in some of a workload's pods.
type workloadImage struct {
	Container, Image, Digest, Verified, Outdated, OutdatedUnknown, Waiting, NotImported text
	Pods                                                                                int
}

// need returns the image's place in the order of need: failed verdicts first, then images that
// drifted or do not run, then unknown ones.
func (r *workloadImage) need() int {
	all := verdictPlace(r.Verified) * 2
	if r.Outdated != "" || r.Waiting != "" || r.NotImported != "" {
		all = min(all, verdictPlace("Unknown")*2-1)
	}
	return all
}

// Link leads to the pods of a workload on the page of what runs.
func (w *workload) Link() string {
	return workloadLink(w.Cluster, w.Namespace, w.Name)
}

// workloadLink is the link to a workload, by its name or as KIND/NAME.
func workloadLink(cluster, namespace, workload text) string {
	return link("running", "cluster", cluster, "namespace", namespace, "pod", workload[strings.IndexByte(string(workload), '/')+1:])
}

// need returns the need of the worst image of a workload.
func (w *workload) need() int {
	if len(w.Runs) == 0 {
		return verdictPlace("Unknown") * 2
	}
	return w.Runs[0].need()
}

// workloadsOf groups pods by their workloads, with those that need attention first.
func workloadsOf(pods []clusterPod) (all []*workload) {
	type place struct{ cluster, namespace, workload text }
	type runs struct {
		*workload
		workloadImage
	}
	places, counted := map[place]*workload{}, map[runs]*workloadImage{}
	for i := range pods {
		p := &pods[i].Spec
		name := cmp.Or(p.Workload, "Pod/"+p.Name)
		at := place{p.Cluster, p.Namespace, name}
		w := places[at]
		if w == nil {
			w = &workload{Cluster: p.Cluster, Namespace: p.Namespace, Since: p.Since}
			kind, own, ok := strings.Cut(string(name), "/")
			if w.Kind, w.Name = text(kind), text(own); !ok {
				w.Kind, w.Name = "", name
			}
			places[at], all = w, append(all, w)
		}
		w.Pods = append(w.Pods, p.Name)
		if p.Since.Before(w.Since) {
			w.Since = p.Since
		}
		for _, c := range p.Containers {
			one := runs{w, workloadImage{c.Name, c.Image, c.Digest, c.Verified, c.Outdated, c.OutdatedUnknown, c.Waiting, c.NotImported, 0}}
			if counted[one] == nil {
				counted[one] = &workloadImage{}
				*counted[one] = one.workloadImage
				w.Runs = append(w.Runs, counted[one])
			}
			counted[one].Pods++
		}
	}
	for _, w := range all {
		slices.SortStableFunc(w.Runs, func(a, b *workloadImage) int { return cmp.Compare(a.need(), b.need()) })
	}
	slices.SortStableFunc(all, func(a, b *workload) int {
		return cmp.Or(cmp.Compare(a.need(), b.need()), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// Bounds on the names in a card.
const (
	named     = 5   // workloads or images
	namedPods = 500 // pods that are looked at for workloads
)

// name reads what a card names. Who may not list that still sees the server's count, and why it
// stays without names. The error is one that the whole page has.
func (v *visit) name(c *concern) (err error) {
	what := "list the pods of clusters"
	switch {
	case c.Where != "":
		c.Workloads, c.Whole, err = v.workloadsWith(c.Where)
	case c.Which != "":
		what = "list images"
		c.Images, err = v.imagesWith(c.Which)
	}
	if isCode(err, http.StatusUnauthorized) {
		return err
	}
	c.Unnamed = noticeOf(what, err)
	return nil
}

// imagesWith returns the first images that a selector has.
func (v *visit) imagesWith(selector string) (rows []imageRow, err error) {
	t, err := v.call.table(v.ctx(), imagesPath, url.Values{"limit": {fmt.Sprint(named)}, "includeObject": {"Metadata"}, "fieldSelector": {selector}})
	if err != nil {
		return nil, err
	}
	for i := range t.Rows {
		rows = append(rows, rowOf(t, &t.Rows[i]))
	}
	if len(rows) == 0 && t.Metadata.Continue != "" {
		return nil, unknown("None at the beginning of the list; the rest was not read.")
	}
	return rows, nil
}

// workloadsWith returns the first workloads whose pods a selector has; whole is true if these are
// all. The API computes some selectors for each pod, so a page of pods may have none.
func (v *visit) workloadsWith(selector string) (all []*workload, whole bool, err error) {
	var found []clusterPod
	ask := url.Values{"limit": {fmt.Sprint(podRows)}, "fieldSelector": {selector}}
	for looked := 0; looked < namedPods; looked += podRows {
		var pods list[clusterPod]
		if err := v.call.get(v.ctx(), podsPath, ask, &pods); err != nil {
			return nil, false, err
		}
		found = append(found, pods.Items...)
		all, whole = workloadsOf(found), pods.Metadata.Continue == ""
		if whole || len(all) > named {
			break
		}
		ask.Set("continue", pods.Metadata.Continue)
	}
	return all, whole, nil
}

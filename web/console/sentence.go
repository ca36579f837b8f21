package console

import (
	"fmt"
	"slices"
	"strings"

	tablecells "github.com/tidewaiter/tidewaiter/internal/table"
)

// sentence returns one sentence for a person who is responsible for the running pods.
func (v *attentionView) sentence() string {
	var parts []string
	for _, one := range []struct {
		where []string // of the cards that say it
		doing string
	}{
		{[]string{"verified=False", "verified=Unsigned"}, "images that fail their policy"},
		{[]string{"outdated=true"}, "another build than the tag leads to"},
		{[]string{"verified=Unknown"}, "images that cannot be judged"},
	} {
		if who := v.whoRuns(one.where); who != "" {
			parts = append(parts, who+" "+one.doing)
		}
	}
	if at := slices.IndexFunc(v.Concerns, func(c *concern) bool { return c.Title == "Runs and is gone from its registry" }); at >= 0 {
		parts = slices.Insert(parts, min(1, len(parts)), atLeast(v.Concerns[at].counted)+tablecells.Clause(v.Concerns[at].Count, "image", "run")+" and "+isGone(v.Concerns[at].Count)+" gone from the registry")
	}
	known := !slices.ContainsFunc(v.Refused, func(c *concern) bool { return strings.HasPrefix(c.Title, "Runs ") })
	switch {
	case len(parts) > 0:
		all := strings.Join(parts, "; ")
		return strings.ToUpper(all[:1]) + all[1:] + "." // it may begin with "at least"
	case !known:
		return "It is not known whether all that runs is in order."
	case v.Alone:
		return "No cluster is followed, so what runs there is not known."
	case len(v.Concerns) > 0:
		return fmt.Sprintf("What runs is in order; %s somebody.", tablecells.Clause(len(v.Concerns), "other thing", "need"))
	}
	return "What runs is in order."
}

func isGone(n int) string {
	if n == 1 {
		return "is"
	}
	return "are"
}

// atLeast is before a number that may be greater.
func atLeast(c counted) string {
	if c.More {
		return "at least "
	}
	return ""
}

// whoRuns says how many workloads, and where, the cards with these selectors are about: "3
// workloads in prod run". It counts pods if not all workloads are known, and is empty if there are
// none.
func (v *attentionView) whoRuns(where []string) string {
	var pods counted
	var all []*workload
	whole, both := true, false
	for _, c := range v.Concerns {
		if slices.Contains(where, c.Where) {
			both = pods.Count > 0
			pods.Count, pods.More, whole = max(pods.Count, c.Count), pods.More || c.More, whole && c.Whole
			all = append(all, c.Workloads...)
		}
	}
	if pods.Count == 0 {
		return ""
	}
	clusters, distinct := map[text]bool{}, map[string]bool{}
	for _, w := range all {
		clusters[w.Cluster], distinct[w.Link()+" "+string(w.Kind)] = true, true
	}
	if !whole || len(all) == 0 {
		pods.More = pods.More || both // a pod may be on both cards
		return atLeast(pods) + tablecells.Clause(pods.Count, "pod", "run")
	}
	in := ""
	switch {
	case len(clusters) > 1:
		in = fmt.Sprintf(" in %d clusters", len(clusters))
	case all[0].Cluster != ownCluster:
		in = " in " + string(all[0].Cluster)
	}
	noun, verb := "workloads", "run"
	if len(distinct) == 1 {
		noun, verb = "workload", "runs"
	}
	return fmt.Sprintf("%s%d %s%s %s", atLeast(pods), len(distinct), noun, in, verb)
}

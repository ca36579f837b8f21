package clusters

import (
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/reference"
	"github.com/tidewaiter/tidewaiter/internal/table"
)

// clusterTable is `kubectl get clusters`.
var clusterTable = table.Of[*Cluster]{
	Columns: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "The name in the configuration."},
		{Name: "Synced", Type: "string", Description: "Whether all pods have been read once."},
		{Name: "Reachable", Type: "string", Description: "Whether the data is up to date; if not, why."},
		{Name: "Last Seen", Type: "string", Description: "Time since the stored pods were last confirmed by the cluster."},
		{Name: "Pods", Type: "integer", Description: "How many of its pods are stored here."},
		{Name: "Recorded Since", Type: "string", Priority: 1, Description: "Since when it is recorded what ran, but for the gaps."},
		{Name: "Server", Type: "string", Priority: 1, Description: "The URL of the cluster's API."},
	},
	Rows: clusterRow,
}

func clusterRow(c *Cluster) [][]any {
	seen := "never"
	if c.Status.LastSeen != nil {
		seen = metatable.ConvertToHumanReadableDateType(*c.Status.LastSeen)
	}
	pods := any(int64(c.Status.Pods))
	if !meta.IsStatusConditionTrue(c.Status.Conditions, ConditionSynced) {
		pods = table.Unknown
	}
	recorded := table.None
	if r := c.Status.Records; r != nil {
		recorded = r.Since.UTC().Format(time.RFC3339)
	}
	return [][]any{{c.Name, state(c, ConditionSynced), state(c, ConditionReachable), seen, pods, recorded, c.Spec.Server}}
}

// state is a condition in a word: its status or, if it is not True, its reason.
func state(c *Cluster, condition string) string {
	found := meta.FindStatusCondition(c.Status.Conditions, condition)
	switch {
	case found == nil:
		return string(metav1.ConditionUnknown)
	case found.Status != metav1.ConditionTrue:
		return string(found.Status) + ", " + found.Reason
	}
	return string(found.Status)
}

// podTable is `kubectl get clusterpods`, with a row for each container.
var podTable = table.Of[*ClusterPod]{
	Columns: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "The cluster, the namespace and the pod."},
		{Name: "Container", Type: "string", Description: "The container."},
		{Name: "Image", Type: "string", Description: "The reference in the pod's spec."},
		{Name: "Digest", Type: "string", Description: "The beginning of the digest that runs; Unknown until the cluster reports it."},
		{Name: "Outdated", Type: "string", Description: "The beginning of the digest that the tag leads to now, if the container runs a different one; Unknown if it may."},
		{Name: "Verified", Type: "string", Description: "The verdict for that reference, by the policies that count for the pod's namespace; Unknown where the image is not here."},
		{Name: "Waiting", Type: "string", Description: "Why the container does not run."},
		{Name: "Since", Type: "string", Description: "Time since the pod was created."},
		{Name: "Not Imported", Type: "string", Description: "Why the image could not be imported; <none> if it is here or no import was tried."},
		{Name: "Node", Type: "string", Priority: 1, Description: "The node that the pod is bound to."},
		{Name: "Platform", Type: "string", Priority: 1, Description: "The node's operating system and architecture."},
		{Name: "Service Account", Type: "string", Priority: 1, Description: "The service account that the pod runs as."},
		{Name: "Message", Type: "string", Priority: 1, Description: "The cluster's message about an image that it cannot pull."},
		{Name: "Reason", Type: "string", Priority: 1, Description: "Why the verdict is so."},
		{Name: "Outdated Unknown", Type: "string", Priority: 1, Description: "Why it is not known whether the container is outdated; <none> if it is known."},
	},
	Rows: podRows,
}

func podRows(p *ClusterPod) [][]any {
	all := make([][]any, 0, len(p.Spec.Containers))
	for _, c := range p.Spec.Containers {
		all = append(all, []any{
			p.Name, c.Name, c.Image, cmp.Or(reference.ShortDigest(c.Digest), table.Unknown), driftCell(&c), cmp.Or(c.Verified, table.Unknown), cmp.Or(c.Waiting, table.None),
			metatable.ConvertToHumanReadableDateType(p.Spec.Since), cmp.Or(c.NotImported, table.None),
			cmp.Or(p.Spec.NodeName, table.None), cmp.Or(p.Spec.Platform, table.Unknown), cmp.Or(p.Spec.ServiceAccountName, table.None), cmp.Or(c.Message, table.None), cmp.Or(c.Reason, table.None), cmp.Or(c.OutdatedUnknown, table.None),
		})
	}
	return all
}

// driftCell is the digest that the tag leads to now, if the container runs something else.
func driftCell(c *ClusterPodContainer) string {
	if c.OutdatedUnknown != "" {
		return table.Unknown
	}
	return cmp.Or(reference.ShortDigest(c.Outdated), table.None)
}

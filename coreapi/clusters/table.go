package clusters

import (
	"cmp"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/printers"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"

	"github.com/tidewaiter/tidewaiter/imageapi/printable"
)

const (
	none    = "<none>"
	unknown = "<unknown>"
)

// clusterTable is `kubectl get clusters`.
var clusterTable = convertor(
	[]metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "The name in the configuration."},
		{Name: "Synced", Type: "string", Description: "Whether all pods have been read once."},
		{Name: "Reachable", Type: "string", Description: "Whether what is shown is as of now; if not, why."},
		{Name: "Last Seen", Type: "string", Description: "Time since the cluster showed its pods as they are stored here."},
		{Name: "Pods", Type: "integer", Description: "How many of its pods are stored here."},
		{Name: "Server", Type: "string", Priority: 1, Description: "The URL of the cluster's API."},
	},
	clusterRow,
	func(l *ClusterList) []Cluster { return l.Items },
)

func clusterRow(c *Cluster) [][]any {
	seen := "never"
	if c.Status.LastSeen != nil {
		seen = metatable.ConvertToHumanReadableDateType(*c.Status.LastSeen)
	}
	pods := any(int64(c.Status.Pods))
	if !meta.IsStatusConditionTrue(c.Status.Conditions, ConditionSynced) {
		pods = unknown
	}
	return [][]any{{c.Name, state(c, ConditionSynced), state(c, ConditionReachable), seen, pods, c.Spec.Server}}
}

// state is a condition in a word: its status, or why it is not True.
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
var podTable = convertor(
	[]metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: "The cluster, the namespace and the pod."},
		{Name: "Container", Type: "string", Description: "The container."},
		{Name: "Image", Type: "string", Description: "The reference as the pod has it."},
		{Name: "Digest", Type: "string", Description: "The beginning of the digest that runs; <unknown> until the cluster tells."},
		{Name: "Verified", Type: "string", Description: "The verdict for that reference; <unknown> where the image is not here."},
		{Name: "Waiting", Type: "string", Description: "Why the container does not run."},
		{Name: "Since", Type: "string", Description: "Time since the pod was created."},
		{Name: "Not Imported", Type: "string", Description: "Why the image is not here; <none> where it is, or before it was tried."},
		{Name: "Node", Type: "string", Priority: 1, Description: "The node that the pod is bound to."},
		{Name: "Platform", Type: "string", Priority: 1, Description: "The node's operating system and architecture."},
		{Name: "Service Account", Type: "string", Priority: 1, Description: "The service account that the pod runs as."},
		{Name: "Message", Type: "string", Priority: 1, Description: "What the cluster says about an image that it cannot have."},
	},
	podRows,
	func(l *ClusterPodList) []ClusterPod { return l.Items },
)

func podRows(p *ClusterPod) [][]any {
	all := make([][]any, 0, len(p.Spec.Containers))
	for _, c := range p.Spec.Containers {
		all = append(all, []any{
			p.Name, c.Name, c.Image, cmp.Or(shortDigest(c.Digest), unknown), cmp.Or(c.Verified, unknown), cmp.Or(c.Waiting, none),
			metatable.ConvertToHumanReadableDateType(p.Spec.Since), cmp.Or(c.NotImported, none),
			cmp.Or(p.Spec.NodeName, none), cmp.Or(p.Spec.Platform, unknown), cmp.Or(p.Spec.ServiceAccountName, none), cmp.Or(c.Message, none),
		})
	}
	return all
}

// shortDigest is as much of a digest as people compare.
func shortDigest(digest string) string {
	algorithm, _, _ := strings.Cut(digest, ":")
	return digest[:min(len(digest), len(algorithm)+13)]
}

// convertor prints objects of one kind, each in some rows, and their lists.
func convertor[T any, L any](columns []metav1.TableColumnDefinition, cells func(*T) [][]any, items func(*L) []T) printerstorage.TableConvertor {
	object := func(o *T, _ printers.GenerateOptions) ([]metav1.TableRow, error) {
		obj, ok := any(o).(runtime.Object)
		if !ok {
			return nil, fmt.Errorf("%T is no object", o)
		}
		var rows []metav1.TableRow
		for _, row := range cells(o) {
			for i, cell := range row {
				if text, ok := cell.(string); ok {
					row[i] = printable.Line(text, 0) // a cluster may tell anything
				}
			}
			rows = append(rows, metav1.TableRow{Cells: row, Object: runtime.RawExtension{Object: obj}})
		}
		return rows, nil
	}
	list := func(l *L, o printers.GenerateOptions) ([]metav1.TableRow, error) {
		var all []metav1.TableRow
		found := items(l)
		for i := range found {
			rows, err := object(&found[i], o)
			if err != nil {
				return nil, err
			}
			all = append(all, rows...)
		}
		return all, nil
	}
	return printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(func(h printers.PrintHandler) {
		for _, err := range []error{h.TableHandler(columns, object), h.TableHandler(columns, list)} {
			if err != nil {
				panic(err) // the functions have the wrong form
			}
		}
	})}
}

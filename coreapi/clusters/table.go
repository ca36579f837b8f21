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

	"github.com/tidewaiter/tidewaiter/coreapi/usage"
	"github.com/tidewaiter/tidewaiter/imageapi/printable"
	"github.com/tidewaiter/tidewaiter/imageapi/reference"
)

const (
	none    = "<none>"
	unknown = "<unknown>"
)

// Verified tells the verdict about an image for the reference that a container names; "" where the image is not known.
type Verified func(ref reference.Reference) string

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
	func() func(*Cluster) [][]any { return clusterRow },
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
func podTable(verified Verified) printerstorage.TableConvertor {
	return convertor(
		[]metav1.TableColumnDefinition{
			{Name: "Name", Type: "string", Format: "name", Description: "The cluster, the namespace and the pod."},
			{Name: "Container", Type: "string", Description: "The container."},
			{Name: "Image", Type: "string", Description: "The reference as the pod has it."},
			{Name: "Digest", Type: "string", Description: "The beginning of the digest that runs; <unknown> until the cluster tells."},
			{Name: "Verified", Type: "string", Description: "The verdict for that reference; <unknown> where the image is not here."},
			{Name: "Waiting", Type: "string", Description: "Why the container does not run."},
			{Name: "Since", Type: "string", Description: "Time since the pod was created."},
			{Name: "Node", Type: "string", Priority: 1, Description: "The node that the pod is bound to."},
			{Name: "Service Account", Type: "string", Priority: 1, Description: "The service account that the pod runs as."},
		},
		func() func(*ClusterPod) [][]any { return podRows(verified) },
		func(l *ClusterPodList) []ClusterPod { return l.Items },
	)
}

// podRows returns what makes the rows of a pod. It asks for the verdict about a reference once: many pods run one image,
// and each verdict reads an Image.
func podRows(verified Verified) func(*ClusterPod) [][]any {
	verdicts := map[reference.Reference]string{}
	return func(p *ClusterPod) [][]any {
		all := make([][]any, 0, len(p.Spec.Containers))
		for _, c := range p.Spec.Containers {
			ref, digest, verdict := usage.Runs(c.Image, c.ImageID), unknown, unknown
			if ref.Digest != "" {
				digest = shortDigest(ref.Digest)
				if _, ok := verdicts[ref]; !ok {
					verdicts[ref] = cmp.Or(verified(ref), unknown)
				}
				verdict = verdicts[ref]
			}
			all = append(all, []any{p.Name, c.Name, c.Image, digest, verdict, orNone(c.Waiting), metatable.ConvertToHumanReadableDateType(p.Spec.Since), orNone(p.Spec.NodeName), orNone(p.Spec.ServiceAccountName)})
		}
		return all
	}
}

// shortDigest is as much of a digest as people compare.
func shortDigest(digest string) string {
	algorithm, hex, _ := strings.Cut(digest, ":")
	return algorithm + ":" + hex[:min(12, len(hex))]
}

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}

// convertor prints objects of one kind and their lists: cells is called for each table and gives the rows of its objects.
func convertor[T any, L any](columns []metav1.TableColumnDefinition, cells func() func(*T) [][]any, items func(*L) []T) printerstorage.TableConvertor {
	rowsOf := func(o *T, cells func(*T) [][]any) ([]metav1.TableRow, error) {
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
	object := func(o *T, _ printers.GenerateOptions) ([]metav1.TableRow, error) { return rowsOf(o, cells()) }
	list := func(l *L, _ printers.GenerateOptions) ([]metav1.TableRow, error) {
		var all []metav1.TableRow
		found, cells := items(l), cells()
		for i := range found {
			rows, err := rowsOf(&found[i], cells)
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

package policyapi

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metatable "k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tidewaiter/tidewaiter/internal/table"
)

// maxScopes is how many scopes a cell names.
const maxScopes = 2

// none is how kubectl's tables show an empty cell.
const none = "<none>"

// columns of `kubectl get clusterimagepolicies` and of imagepolicies. Those of priority 1 are shown
// by -o wide.
var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "The name of the policy."},
	{Name: "Scopes", Type: "string", Description: "The images that it covers."},
	{Name: "Root of Trust", Type: "string", Description: "The kind of its root of trust."},
	{Name: "Applied", Type: "string", Description: "Whether it judges images; if not, why."},
	{Name: "Satisfiable", Type: "string", Description: "Whether a signature can meet it; if not, why."},
	{Name: "Covers", Type: "string", Description: "How many stored images it judged, when they were counted last."},
	{Name: "Age", Type: "string", Description: "Time since the object was created."},
	{Name: "Signed Identity", Type: "string", Priority: 1, Description: "How the name in a signature must relate to the image."},
	{Name: "Alternatives", Type: "string", Priority: 1, Description: "The policy's group: an image must meet only one policy of a group."},
	{Name: "Exceptions", Type: "string", Priority: 1, Description: "How many exceptions are in force, and when the next of them ends."},
	{Name: "File", Type: "string", Priority: 1, Description: "The file that it is read from; change it there."},
}

// policyTable prints policies of both kinds.
var policyTable = table.Of[object]{Columns: columns, Rows: func(p object) [][]any { return [][]any{row(p)} }}

func row(p object) []any {
	scopes := p.spec().Scopes
	if n := len(scopes) - maxScopes; n > 0 {
		scopes = append(scopes[:maxScopes:maxScopes], fmt.Sprintf("+%d", n))
	}
	covers := none
	if c := meta.FindStatusCondition(p.status().Conditions, ConditionCoversImages); c != nil {
		counted := p.status().Covers
		switch covers = c.Message; { // as an older version wrote it
		case c.Status == metav1.ConditionUnknown:
			covers = "unknown: " + c.Message
		case counted != nil:
			covers = counted.words() + " (" + metatable.ConvertToHumanReadableDateType(counted.AsOf) + " ago)"
		}
	}
	identity := "MatchRepoDigestOrExact"
	if p.spec().Policy.SignedIdentity != nil {
		identity = p.spec().Policy.SignedIdentity.MatchPolicy
	}
	file := cmp.Or(p.GetAnnotations()[FileAnnotation], none)
	return []any{p.GetName(), strings.Join(scopes, ","), p.spec().Policy.RootOfTrust.PolicyType, state(p, ConditionApplied), state(p, ConditionSatisfiable),
		covers, metatable.ConvertToHumanReadableDateType(p.GetCreationTimestamp()), identity, cmp.Or(p.spec().Alternatives, none), exceptionsCell(p.spec().Exceptions, time.Now()), file}
}

// state shows a condition in a word: its status, or the reason why it is not True.
func state(p object, condition string) string {
	c := meta.FindStatusCondition(p.status().Conditions, condition)
	switch {
	case c == nil:
		return string(metav1.ConditionUnknown)
	case c.Status == metav1.ConditionFalse:
		return string(c.Status) + ", " + c.Reason
	}
	return string(c.Status)
}

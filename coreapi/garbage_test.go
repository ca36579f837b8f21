package coreapi_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tidewaiter/tidewaiter/coreapi"
)

// ownedBy is a pod with owners, each of which waits for it when it is deleted in
// the foreground.
func ownedBy(name string, owners ...metav1.OwnerReference) *corev1.Pod {
	p := pod(name)
	yes := true
	for _, o := range owners {
		o.BlockOwnerDeletion = &yes
		p.OwnerReferences = append(p.OwnerReferences, o)
	}
	return p
}

func ownerPod(p *corev1.Pod) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}
}

// awaitGone waits until the pods of namespace team with these names are gone.
func (s *server) awaitGone(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		eventually(t, name+" is gone", func() (bool, any) {
			p, err := s.CoreV1().Pods("team").Get(t.Context(), name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), fmt.Sprint(p, err)
		})
	}
}

// deleteWith deletes a pod of namespace team as propagation says.
func (s *server) deleteWith(t *testing.T, name string, options metav1.DeleteOptions) {
	t.Helper()
	if err := s.CoreV1().Pods("team").Delete(t.Context(), name, options); err != nil {
		t.Fatal(err)
	}
}

func propagation(p metav1.DeletionPropagation) metav1.DeleteOptions {
	return metav1.DeleteOptions{PropagationPolicy: &p}
}

func TestDependentsAreCollected(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	yes := true
	for name, options := range map[string]metav1.DeleteOptions{
		"background": propagation(metav1.DeletePropagationBackground),
		"foreground": propagation(metav1.DeletePropagationForeground),
		"default":    {},
	} {
		t.Run(name, func(t *testing.T) {
			owner := s.createPod(t, "team", pod(name))
			child := s.createPod(t, "team", ownedBy(name+"-child", ownerPod(owner)))
			s.createPod(t, "team", ownedBy(name+"-grandchild", ownerPod(child)))
			s.deleteWith(t, name, options)
			s.awaitGone(t, name, name+"-child", name+"-grandchild")
		})
	}
	for name, options := range map[string]metav1.DeleteOptions{
		"orphan":            propagation(metav1.DeletePropagationOrphan),
		"orphan-dependents": {OrphanDependents: &yes},
	} {
		t.Run(name, func(t *testing.T) {
			owner := s.createPod(t, "team", pod(name))
			s.createPod(t, "team", ownedBy(name+"-child", ownerPod(owner)))
			// The collector lets go of the dependents that it knows of. One that owns an absent pod
			// is collected, so when that has happened it knows the child, too.
			s.createPod(t, "team", ownedBy(name+"-fence", metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "never", UID: types.UID(name)}))
			s.awaitGone(t, name+"-fence")
			s.deleteWith(t, name, options)
			s.awaitGone(t, name)
			left, err := s.CoreV1().Pods("team").Get(t.Context(), name+"-child", metav1.GetOptions{})
			if err != nil || len(left.OwnerReferences) != 0 {
				t.Errorf("the dependent is %v with owners %v, want it there with none", err, left.OwnerReferences)
			}
		})
	}
}

// An owner that is deleted in the foreground goes after the dependents that
// block it.
func TestForegroundDeletionWaitsForDependents(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	owner := s.createPod(t, "team", pod("owner"))
	child := ownedBy("child", ownerPod(owner))
	child.Finalizers = []string{"example.com/hold"}
	s.createPod(t, "team", child)
	s.deleteWith(t, "owner", propagation(metav1.DeletePropagationForeground))
	eventually(t, "the child is being deleted", func() (bool, any) {
		c, err := s.CoreV1().Pods("team").Get(t.Context(), "child", metav1.GetOptions{})
		return err == nil && c.DeletionTimestamp != nil, fmt.Sprint(c, err)
	})
	waiting, err := s.CoreV1().Pods("team").Get(t.Context(), "owner", metav1.GetOptions{})
	if err != nil || waiting.DeletionTimestamp == nil || fmt.Sprint(waiting.Finalizers) != "[foregroundDeletion]" {
		t.Errorf("while its dependent is there the owner is %v, %v", waiting, err)
	}
	if _, err := s.CoreV1().Pods("team").Patch(t.Context(), "child", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	s.awaitGone(t, "child", "owner")
}

// What is owned by a kind that has no objects here, as are pods copied from
// another cluster, stays, whether the kind is served or not; so does what has another owner left.
func TestWhatIsNotCollected(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	gone := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "never", UID: "never"}
	there := s.createPod(t, "team", pod("there"))
	stay := []string{"of-a-node"}
	s.createPod(t, "team", ownedBy("of-a-node", metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "worker-1", UID: "2"}))
	for kind, version := range map[string]string{"ReplicationController": "v1", "LimitRange": "v1", "DaemonSet": "apps/v1", "Deployment": "apps/v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "Job": "batch/v1", "CronJob": "batch/v1"} {
		name := "of-a-" + strings.ToLower(kind)
		s.createPod(t, "team", ownedBy(name, metav1.OwnerReference{APIVersion: version, Kind: kind, Name: "app-1", UID: types.UID(kind)}))
		stay = append(stay, name)
	}
	s.createPod(t, "team", ownedBy("of-two", gone, ownerPod(there)))
	s.createPod(t, "team", ownedBy("of-none", gone))
	s.awaitGone(t, "of-none")
	eventually(t, "the owner that is gone is dropped", func() (bool, any) {
		p, err := s.CoreV1().Pods("team").Get(t.Context(), "of-two", metav1.GetOptions{})
		return err == nil && len(p.OwnerReferences) == 1 && p.OwnerReferences[0].Name == "there", fmt.Sprint(p, err)
	})
	for _, name := range stay {
		if p, err := s.CoreV1().Pods("team").Get(t.Context(), name, metav1.GetOptions{}); err != nil || p.DeletionTimestamp != nil {
			t.Errorf("%s: %v, being deleted: %v", name, err, p.DeletionTimestamp != nil)
		}
	}
}

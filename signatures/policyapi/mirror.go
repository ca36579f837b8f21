package policyapi

import (
	"context"
	"fmt"
	"log/slog"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/internal/table"
	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// FileAnnotation names the file, and the document in it, whose policy an object shows.
const FileAnnotation = policy.FileAnnotation

// mirror is the difference between files and the objects that show them. Objects that clients wrote
// are not part of it.
type mirror struct {
	missing map[string]*policy.Policy // policies from files that no object shows, by name
	stale   []string                  // names of objects that show earlier contents of their file
	objects int
}

func (k *Keeper) newMirror() *mirror {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := &mirror{missing: map[string]*policy.Policy{}, objects: len(k.objects)}
	for _, p := range k.files.Policies() {
		m.missing[p.Name] = p
	}
	for key, e := range k.objects {
		if key.Namespace != "" {
			continue
		}
		p, held := m.missing[key.Name]
		if e.shows != "" && (!held || e.shows != fileOf(p) || e.admission != p.Admission || !apiequality.Semantic.DeepEqual(e.spec, &p.Spec)) {
			m.stale = append(m.stale, key.Name)
		}
		delete(m.missing, key.Name)
	}
	return m
}

// ShowFiles creates objects for the policies from files. It runs after Load and before the server
// answers, so that clients see all policies. Run repeats it if it fails, and when the files change.
func (k *Keeper) ShowFiles(ctx context.Context) error {
	return k.mirror(request.WithNamespace(ctx, metav1.NamespaceNone), k.newMirror())
}

// mirror creates objects for the policies in files, and deletes objects whose policy is no longer
// in a file.
func (k *Keeper) mirror(ctx context.Context, m *mirror) error {
	for _, name := range m.stale {
		if err := k.updateMirror(ctx, name); err != nil {
			return err
		}
	}
	for _, p := range m.missing {
		if m.objects == maxPolicies {
			return fmt.Errorf("%s without an object: there are %d already, which is the limit", table.Quantity(len(m.missing), "file"), m.objects)
		}
		if _, err := k.cluster.objects.Create(ctx, shown(p), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("%s is in force and not shown as an object: %w", fileOf(p), err)
		}
		if err := k.refresh(ctx, p.Key()); err != nil {
			return err
		}
		m.objects++
	}
	return nil
}

// updateMirror updates one object that shows a file.
func (k *Keeper) updateMirror(ctx context.Context, name string) error {
	var err error
	p := k.fromFile(types.NamespacedName{Name: name})
	if p == nil {
		_, _, err = k.cluster.objects.Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	} else {
		info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, stored runtime.Object) (runtime.Object, error) {
			o := stored.DeepCopyObject().(*ClusterImagePolicy)
			o.Annotations, o.Spec = shown(p).Annotations, *p.Spec.DeepCopy()
			return o, nil
		})
		_, _, err = k.cluster.objects.Update(ctx, name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return k.refresh(ctx, types.NamespacedName{Name: name})
}

// shown returns the object for a file's policy.
func shown(p *policy.Policy) *ClusterImagePolicy {
	annotations := p.Admission.Annotations()
	annotations[FileAnnotation] = fileOf(p)
	return &ClusterImagePolicy{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Annotations: annotations}, Spec: *p.Spec.DeepCopy()}
}

// admissionOf reads the annotations of a stored object. It logs an invalid one, which an older
// version accepted, and uses the strictest value instead.
func admissionOf(o object) policy.Admission {
	a, err := policy.NewAdmission(o.GetAnnotations())
	if err != nil {
		slog.Warn("A stored policy has an annotation that cannot be used", "policy", keyOf(o).String(), "err", err)
	}
	return a
}

package policyapi

import (
	"context"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// FileAnnotation is on an object that shows a policy of a file. It names the file and the document
// within it.
const FileAnnotation = "tidewaiter.dev/policy-file"

// mirror is the difference between files and the objects that show them. It leaves out objects that
// clients wrote.
type mirror struct {
	missing map[string]*policy.Policy // files that no object shows, by name
	stale   []string                  // names of objects that show an earlier content of their file
	objects int
}

func (k *Keeper) newMirror() *mirror {
	k.mu.Lock()
	defer k.mu.Unlock()
	m := &mirror{missing: map[string]*policy.Policy{}}
	for _, p := range k.files.Policies() {
		m.missing[p.Name] = p
	}
	return m
}

// ShowFiles makes objects of the policies of files. It runs before the server answers, so that
// clients see all policies. Run does it again if it fails, and when the files change.
func (k *Keeper) ShowFiles(ctx context.Context) error {
	m := k.newMirror()
	if err := k.each(ctx, func(o object) {
		if c, ok := o.(*ClusterImagePolicy); ok {
			m.see(c)
		}
	}); err != nil {
		return err
	}
	return k.mirror(request.WithNamespace(ctx, metav1.NamespaceNone), m)
}

// see looks at one object. It is called once for each.
func (m *mirror) see(o *ClusterImagePolicy) {
	m.objects++
	p, held := m.missing[o.Name]
	if shows := o.Annotations[FileAnnotation]; shows != "" && (!held || shows != fileOf(p) || admissionOf(o) != p.Admission || !apiequality.Semantic.DeepEqual(o.Spec, p.Spec)) {
		m.stale = append(m.stale, o.Name)
	}
	delete(m.missing, o.Name)
}

// mirror makes objects of the policies in files, and deletes those whose policy no file has any
// more.
func (k *Keeper) mirror(ctx context.Context, m *mirror) error {
	if len(m.stale)+len(m.missing) > 0 {
		defer k.awake() // the new objects have no status yet
	}
	for _, name := range m.stale {
		if err := k.updateMirror(ctx, name); err != nil {
			return err
		}
	}
	for _, p := range m.missing {
		if m.objects == maxPolicies {
			return fmt.Errorf("%d files have no object: there are %d already, which is the limit", len(m.missing), m.objects)
		}
		if _, err := k.cluster.objects.Create(ctx, shown(p), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("%s is in force and not shown as an object: %w", fileOf(p), err)
		}
		m.objects++
	}
	return nil
}

// updateMirror brings one object that shows a file up to date.
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
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// shown is the object for a file's policy.
func shown(p *policy.Policy) *ClusterImagePolicy {
	annotations := p.Admission.Annotations()
	annotations[FileAnnotation] = fileOf(p)
	return &ClusterImagePolicy{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Annotations: annotations}, Spec: *p.Spec.DeepCopy()}
}

func admissionOf(o object) policy.Admission {
	a, _ := policy.NewAdmission(o.GetAnnotations())
	return a
}

package policyapi

import (
	"context"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/tidewaiter/tidewaiter/signatures/policy"
)

// mirror makes objects of what the files say, and deletes those of which they say nothing any more. An object that a client
// wrote is left alone.
func (k *Keeper) mirror(ctx context.Context) error {
	k.mu.Lock()
	files := map[string]*policy.Policy{}
	for _, p := range k.files.Policies() {
		files[p.Name] = p
	}
	k.mu.Unlock()
	var stale []*ClusterImagePolicy
	total := 0
	if err := k.each(ctx, func(o *ClusterImagePolicy) {
		total++
		p, held := files[o.Name]
		shows := o.Annotations[FileAnnotation]
		switch {
		case shows == "": // a client's
		case !held:
			stale = append(stale, o)
			return
		case shows != fileOf(p) || !apiequality.Semantic.DeepEqual(o.Spec, p.Spec):
			stale = append(stale, o)
		}
		delete(files, o.Name)
	}); err != nil {
		return err
	}
	for _, o := range stale {
		if err := k.follow(ctx, o.Name); err != nil {
			return err
		}
	}
	for _, p := range files {
		if total == MaxPolicies {
			return fmt.Errorf("%d files are shown as no objects: there are %d already, the most that can be", len(files), total)
		}
		if _, err := k.store.Create(ctx, shown(p), rest.ValidateAllObjectFunc, &metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("%s is in force and not shown as an object: %w", fileOf(p), err)
		}
		total++
	}
	return nil
}

// follow brings one object that shows a file up to date.
func (k *Keeper) follow(ctx context.Context, name string) error {
	var err error
	p := k.fromFile(name)
	if p == nil {
		_, _, err = k.store.Delete(ctx, name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
	} else {
		info := rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, stored runtime.Object) (runtime.Object, error) {
			o := stored.DeepCopyObject().(*ClusterImagePolicy)
			o.Annotations, o.Spec = shown(p).Annotations, *p.Spec.DeepCopy()
			return o, nil
		})
		_, _, err = k.store.Update(ctx, name, info, rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// shown is the object of a file's policy.
func shown(p *policy.Policy) *ClusterImagePolicy {
	return &ClusterImagePolicy{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Annotations: map[string]string{FileAnnotation: fileOf(p)}},
		Spec:       *p.Spec.DeepCopy(),
	}
}

package coreapi

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/printers"
	printersinternal "k8s.io/kubernetes/pkg/printers/internalversion"
	printerstorage "k8s.io/kubernetes/pkg/printers/storage"
)

// workloads are the kinds that make pods, and LimitRange. Nothing runs here, so there are none;
// they are served because clients that ask which images are needed, as oc adm prune images does,
// ask for all of them and stop at the first that is not found. They also ask for
// ReplicationControllers, which [ReplicationControllers] returns.
func workloads() map[schema.GroupVersion]map[string]rest.Storage {
	limits := readOnly(api.Resource("limitranges"), "limitrange", "limits", &api.LimitRange{}, &api.LimitRangeList{})
	limits.TableConvertor = rest.NewDefaultTableConvertor(limits.resource) // as in Kubernetes
	return map[schema.GroupVersion]map[string]rest.Storage{
		corev1.SchemeGroupVersion: {"limitranges": limits},
		appsv1.SchemeGroupVersion: {
			"daemonsets":   readOnly(apps.Resource("daemonsets"), "daemonset", "ds", &apps.DaemonSet{}, &apps.DaemonSetList{}),
			"deployments":  readOnly(apps.Resource("deployments"), "deployment", "deploy", &apps.Deployment{}, &apps.DeploymentList{}),
			"replicasets":  readOnly(apps.Resource("replicasets"), "replicaset", "rs", &apps.ReplicaSet{}, &apps.ReplicaSetList{}),
			"statefulsets": readOnly(apps.Resource("statefulsets"), "statefulset", "sts", &apps.StatefulSet{}, &apps.StatefulSetList{}),
		},
		batchv1.SchemeGroupVersion: {
			"jobs":     readOnly(batch.Resource("jobs"), "job", "", &batch.Job{}, &batch.JobList{}),
			"cronjobs": readOnly(batch.Resource("cronjobs"), "cronjob", "cj", &batch.CronJob{}, &batch.CronJobList{}),
		},
	}
}

// replicationControllers are the resource that [ReplicationControllers] returns the storage of.
var replicationControllers = corev1.SchemeGroupVersion.WithResource("replicationcontrollers")

// readOnlyREST is a namespaced resource without objects that clients cannot write. It is not in the
// category all.
type readOnlyREST struct {
	rest.TableConvertor
	resource        schema.GroupResource
	singular, short string
	one, list       runtime.Object
}

func readOnly(resource schema.GroupResource, singular, short string, one, list runtime.Object) *readOnlyREST {
	return &readOnlyREST{
		printerstorage.TableConvertor{TableGenerator: printers.NewTableGenerator().With(printersinternal.AddHandlers)},
		resource, singular, short, one, list,
	}
}

var (
	_ rest.Getter               = &readOnlyREST{}
	_ rest.Lister               = &readOnlyREST{}
	_ rest.Scoper               = &readOnlyREST{}
	_ rest.SingularNameProvider = &readOnlyREST{}
	_ rest.ShortNamesProvider   = &readOnlyREST{}
)

// New is part of rest.Storage.
func (r *readOnlyREST) New() runtime.Object { return r.one.DeepCopyObject() }

// NewList is part of rest.Lister.
func (r *readOnlyREST) NewList() runtime.Object { return r.list.DeepCopyObject() }

// Destroy is part of rest.Storage.
func (*readOnlyREST) Destroy() {}

// NamespaceScoped is part of rest.Scoper.
func (*readOnlyREST) NamespaceScoped() bool { return true }

// GetSingularName is part of rest.SingularNameProvider.
func (r *readOnlyREST) GetSingularName() string { return r.singular }

// ShortNames is part of rest.ShortNamesProvider.
func (r *readOnlyREST) ShortNames() []string {
	if r.short == "" {
		return nil
	}
	return []string{r.short}
}

// Get is part of rest.Getter.
func (r *readOnlyREST) Get(_ context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	return nil, apierrors.NewNotFound(r.resource, name)
}

// List is part of rest.Lister.
func (r *readOnlyREST) List(context.Context, *internalversion.ListOptions) (runtime.Object, error) {
	list := r.NewList()
	return list, meta.SetList(list, nil)
}

// Controllers reads ReplicationControllers that clients cannot write.
type Controllers interface {
	List(ctx context.Context, options *internalversion.ListOptions) (*corev1.ReplicationControllerList, error)
	Get(ctx context.Context, name string) (*corev1.ReplicationController, error)
}

// ReplicationControllers returns the storage of the replicationcontrollers that known returns.
func ReplicationControllers(known Controllers) rest.Storage {
	return &controllersREST{readOnly(api.Resource("replicationcontrollers"), "replicationcontroller", "rc", &api.ReplicationController{}, &api.ReplicationControllerList{}), known}
}

type controllersREST struct {
	*readOnlyREST
	known Controllers
}

// Get is part of rest.Getter.
func (r *controllersREST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	one, err := r.known.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	out := r.New()
	return out, legacyscheme.Scheme.Convert(one, out, nil)
}

// List is part of rest.Lister.
func (r *controllersREST) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	list, err := r.known.List(ctx, options)
	if err != nil {
		return nil, err
	}
	out := r.NewList()
	return out, legacyscheme.Scheme.Convert(list, out, nil)
}

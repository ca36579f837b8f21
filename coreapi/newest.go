package coreapi

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/registry/rest"
	coreapiv1 "k8s.io/kubernetes/pkg/apis/core/v1"
	eventsapiv1 "k8s.io/kubernetes/pkg/apis/events/v1"
	eventstore "k8s.io/kubernetes/pkg/registry/core/event/storage"
)

// newestField selects the Events that were written last, the newest first: newest=100. Kubernetes
// has them in the order of their names, in which the newest of many may be on the last page.
const newestField = "newest"

// maxNewest bounds its value.
const maxNewest = 500

// Install has scheme know what Events are selected by besides Kubernetes' own fields.
func Install(scheme *runtime.Scheme) error {
	own := runtime.NewScheme()
	if err := coreapiv1.AddFieldLabelConversionsForEvent(own); err != nil {
		return err
	}
	if err := eventsapiv1.AddFieldLabelConversionsForEvent(own); err != nil {
		return err
	}
	for _, gv := range []schema.GroupVersion{corev1.SchemeGroupVersion, eventsv1.SchemeGroupVersion} {
		kind := gv.WithKind("Event")
		err := scheme.AddFieldLabelConversionFunc(kind, func(label, value string) (string, string, error) {
			if label != newestField {
				return own.ConvertFieldLabel(kind, label, value)
			}
			if n, err := strconv.Atoi(value); err != nil || n < 1 || n > maxNewest {
				return "", "", fmt.Errorf("field label %q of events is a number from 1 to %d, not %q", newestField, maxNewest, value)
			}
			return label, value, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

type eventsREST struct {
	*eventstore.REST
	// newestFirst has the storage list in that order what a context is for; nil if it cannot.
	newestFirst func(context.Context) context.Context
}

// newest reports whether a selector selects Events by their age. It returns how many, or 0 if the
// selector has further requirements.
func newest(selector fields.Selector) (n int64, asked bool) {
	if selector == nil {
		return 0, false
	}
	all := selector.Requirements()
	for _, r := range all {
		if r.Field != newestField {
			continue
		}
		if asked = true; len(all) == 1 && r.Operator != selection.NotEquals {
			n, _ = strconv.ParseInt(r.Value, 10, 64) // which was checked
		}
	}
	return n, asked
}

// List implements rest.Lister.
func (r eventsREST) List(ctx context.Context, options *internalversion.ListOptions) (runtime.Object, error) {
	if options == nil {
		return r.REST.List(ctx, options)
	}
	n, asked := newest(options.FieldSelector)
	if !asked {
		return r.REST.List(ctx, options)
	}
	if n == 0 || options.Continue != "" || options.LabelSelector != nil && !options.LabelSelector.Empty() || r.newestFirst == nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("field label %q of events is given alone, and such a list has one page", newestField))
	}
	return r.REST.List(r.newestFirst(ctx), &internalversion.ListOptions{Limit: n})
}

// Watch implements rest.Watcher.
func (r eventsREST) Watch(ctx context.Context, options *internalversion.ListOptions) (watch.Interface, error) {
	if err := listOnly(options); err != nil {
		return nil, err
	}
	return r.REST.Watch(ctx, options)
}

// DeleteCollection implements rest.CollectionDeleter.
func (r eventsREST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, how *metav1.DeleteOptions, options *internalversion.ListOptions) (runtime.Object, error) {
	if err := listOnly(options); err != nil {
		return nil, err
	}
	return r.REST.DeleteCollection(ctx, validate, how, options)
}

// listOnly refuses requests other than lists for the newest Events.
func listOnly(options *internalversion.ListOptions) error {
	if options == nil {
		return nil
	}
	if _, asked := newest(options.FieldSelector); asked {
		return apierrors.NewBadRequest(fmt.Sprintf("events can be listed by field label %q, but not watched or deleted", newestField))
	}
	return nil
}

// sharedEvents serves the storage of core/v1 events in a second group. The first group releases it.
type sharedEvents struct{ eventsREST }

// Destroy does nothing.
func (sharedEvents) Destroy() {}

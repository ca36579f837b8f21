// Package pages reads lists that may have damaged objects.
//
// Kubernetes' storage fails a whole list for one object that it cannot read. The server's
// own readers go on: they could do nothing about the object, which an administrator
// repairs or deletes.
package pages

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// size is how many objects are in memory at a time.
const size = 500

// Read reads a list page by page. read gets a page of at most limit objects, from where
// the token says, and returns the next token, "" at the end. Objects that cannot be read
// are skipped: damaged is called with errors that name them.
func Read(ctx context.Context, read func(ctx context.Context, limit int64, token string) (next string, err error), damaged func(error)) error {
	token, single := "", 0
	for {
		limit := int64(size)
		if single > 0 { // the objects before the damaged one are read one by one
			limit = 1
			single--
		}
		next, err := read(ctx, limit, token)
		if err != nil {
			next = behind(err)
			switch {
			case next == "":
				return err
			case limit > 1:
				single = size
				continue
			}
			damaged(err)
		}
		if token = next; token == "" {
			return nil
		}
	}
}

// behind returns the token with which a list goes on after an object that could not be
// read; "" for any other error.
func behind(err error) string {
	var status apierrors.APIStatus
	if apierrors.IsStoreReadError(err) && errors.As(err, &status) {
		return status.Status().Continue
	}
	return ""
}

// Informer returns a function that makes a shared factory's informer for all objects of a
// resource, of which example is one. The informer skips objects that cannot be read.
func Informer(client cache.Getter, resource string, example runtime.Object, damaged func(error)) func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
	all := cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, fields.Everything())
	readable := &cache.ListWatch{
		WatchFuncWithContext: all.WatchFuncWithContext,
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (list runtime.Object, err error) {
			opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
			var items []runtime.Object
			err = Read(ctx, func(ctx context.Context, limit int64, token string) (string, error) {
				opts.Limit, opts.Continue = limit, token
				if list, err = all.ListWithContextFunc(ctx, opts); err != nil {
					return "", err
				}
				page, err := meta.ExtractList(list)
				if err != nil {
					return "", err
				}
				items = append(items, page...)
				of, err := meta.ListAccessor(list)
				if err != nil {
					return "", err
				}
				return of.GetContinue(), nil
			}, damaged)
			if err != nil {
				return nil, err
			}
			return list, meta.SetList(list, items)
		},
	}
	return func(_ kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(readable, example, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
}

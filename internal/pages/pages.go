// Package pages reads lists page by page, for all rooms.
//
// A server keeps what a list's pages belong to for five minutes after the next write. If reading
// takes longer, it answers 410 with a token that continues after the last page, with the objects as
// they are now. Client-go's pager reads the whole list at once then, or fails. Here a list
// continues: each object that exists all the time is read once, and one that comes or goes
// meanwhile may be missed.
//
// Kubernetes' storage fails a whole list for one object that it cannot read. The server's
// own readers go on: they could do nothing about the object, which an administrator
// repairs or deletes.
package pages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// Size is how many objects are usually in memory at a time.
const Size = 500

// Total is how many objects a list has, by its first page. The list has no selector: otherwise a
// server does not count.
func Total[L interface {
	runtime.Object
	metav1.ListInterface
}](first L) int64 {
	n := int64(meta.LenList(first))
	if more := first.GetRemainingItemCount(); more != nil {
		n += *more
	}
	return n
}

// Each reads a list page by page, of options.Limit objects, and calls visit with each page. It asks
// for the next page when visit has returned, and the server keeps nothing for it meanwhile, so
// visit may do slow work.
func Each[L metav1.ListInterface](ctx context.Context, options metav1.ListOptions, list func(context.Context, metav1.ListOptions) (L, error), visit func(L) error) error {
	return EachReadable(ctx, options, list, visit, nil)
}

// EachReadable is Each for lists that may have damaged objects. These are skipped: damaged is
// called with errors that name them. If it is nil, such an object is an error.
func EachReadable[L metav1.ListInterface](ctx context.Context, options metav1.ListOptions, list func(context.Context, metav1.ListOptions) (L, error), visit func(L) error, damaged func(error)) error {
	size, single, expired := cmp.Or(options.Limit, Size), int64(0), false
	for {
		options.Limit = size
		if single > 0 { // the objects before the damaged one are read one by one
			options.Limit = 1
		}
		page, err := list(ctx, options)
		next := ""
		switch {
		case err == nil:
			next, expired, single = page.GetContinue(), false, max(0, single-1)
			if err := visit(page); err != nil {
				return err
			}
			if next == "" {
				return nil
			}
		case apierrors.IsResourceExpired(err) && !expired:
			next, expired = behind(err), true
		case apierrors.IsStoreReadError(err) && damaged != nil:
			if next = behind(err); next != "" && options.Limit != 1 {
				single = size
				continue
			}
			expired, single = false, max(0, single-1)
			if next != "" {
				damaged(err)
			}
		}
		switch {
		case next == "":
			return err
		case next == options.Continue && !expired:
			return fmt.Errorf("a list does not advance: its continue token equals that of the previous page (%w)", cmp.Or(err, errStuck))
		}
		options.Continue = next
	}
}

var errStuck = errors.New("the server does not read it")

// behind returns the token in an error with which a list continues; "" if it has none.
func behind(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.Status().Continue
	}
	return ""
}

// Informer returns a function that makes a shared factory's informer for all objects of a resource,
// of which example is one. The informer skips objects that cannot be read. The function takes the
// factory's client of type C, kubernetes.Interface, and does without it.
func Informer[C any](client cache.Getter, resource string, example runtime.Object, damaged func(error)) func(C, time.Duration) cache.SharedIndexInformer {
	all := cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, fields.Everything())
	readable := &cache.ListWatch{
		WatchFuncWithContext: all.WatchFuncWithContext,
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (list runtime.Object, err error) {
			opts.ResourceVersion, opts.ResourceVersionMatch, opts.Limit = "", "", Size
			var items []runtime.Object
			version := ""
			err = EachReadable(ctx, opts, func(ctx context.Context, opts metav1.ListOptions) (metav1.ListInterface, error) {
				if list, err = all.ListWithContextFunc(ctx, opts); err != nil {
					return nil, err
				}
				return meta.ListAccessor(list)
			}, func(of metav1.ListInterface) error {
				// a watch from here tells what has changed meanwhile
				version = cmp.Or(version, of.GetResourceVersion())
				of.SetResourceVersion(version)
				page, err := meta.ExtractList(list)
				items = append(items, page...)
				return err
			}, damaged)
			if err != nil {
				return nil, err
			}
			return list, meta.SetList(list, items)
		},
	}
	return func(_ C, resync time.Duration) cache.SharedIndexInformer {
		return cache.NewSharedIndexInformer(readable, example, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
}

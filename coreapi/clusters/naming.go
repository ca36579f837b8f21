package clusters

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage"

	"github.com/tidewaiter/tidewaiter/coreapi/podimages"
	"github.com/tidewaiter/tidewaiter/internal/pages"
)

// Naming lists the containers of the stored pods that name or run an image, by values of the field
// "image" as they are stored: see [Images]. It reads at most maxPods pods, and returns more if
// there are further ones.
func (c *Clusters) Naming(ctx context.Context, values []string, maxPods int) (all []podimages.Container, more bool, err error) {
	list, err := c.listByImage(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), &internalversion.ListOptions{Limit: int64(maxPods)}, values)
	if err != nil {
		return nil, false, err
	}
	return containersOf(list.Items, values...), list.Continue != "", nil
}

// containersOf returns the containers of pods; given values of the field "image", those that have
// one of them.
func containersOf(pods []ClusterPod, values ...string) (all []podimages.Container) {
	for i := range pods {
		spec := &pods[i].Spec
		for _, c := range spec.Containers {
			if len(values) > 0 && !podimages.Selected(values, podimages.Values(c.Image, c.ImageID), spec.Platform) {
				continue
			}
			all = append(all, podimages.Container{
				Cluster: spec.Cluster, Namespace: spec.Namespace, Pod: spec.Name, Name: c.Name, Image: c.Image, ImageID: c.ImageID, Since: spec.Since,
			})
		}
	}
	return all
}

// InNamespace lists the containers of the stored pods of a namespace. It reads at most maxPods
// pods, and returns more if there are further ones.
func (c *Clusters) InNamespace(ctx context.Context, namespace string, maxPods int) (all []podimages.Container, more bool, err error) {
	var pods []ClusterPod
	err = pages.Each(genericapirequest.WithNamespace(ctx, metav1.NamespaceNone), metav1.ListOptions{Limit: namespacePage}, func(ctx context.Context, o metav1.ListOptions) (*ClusterPodList, error) {
		obj, err := c.pods.List(ctx, &internalversion.ListOptions{FieldSelector: fields.OneTermEqualSelector(namespaceField, namespace), Limit: o.Limit, Continue: o.Continue})
		if err != nil {
			return nil, err
		}
		return obj.(*ClusterPodList), nil
	}, func(list *ClusterPodList) error {
		pods = append(pods, list.Items...)
		if more = len(pods) > maxPods || len(pods) == maxPods && list.Continue != ""; more {
			return errEnough
		}
		return nil
	})
	if more {
		return containersOf(pods[:maxPods]), true, nil
	}
	return containersOf(pods), false, err
}

// namespacePage is how many pods of a namespace are read at a time.
const namespacePage = 500

// errEnough ends a list early.
var errEnough = errors.New("enough")

// listByImage lists the stored pods that have one of some values of the field "image", and match
// options. Each page is of one revision. For each value it reads as much as the page may have.
func (c *Clusters) listByImage(ctx context.Context, options *internalversion.ListOptions, values []string) (*ClusterPodList, error) {
	selected := options.FieldSelector
	if selected == nil {
		selected = fields.Everything()
	}
	if len(values) == 1 && !strings.Contains(values[0], "@") {
		one := *options
		one.FieldSelector = fields.AndSelectors(selected, fields.OneTermEqualSelector(imageField, values[0]))
		obj, err := c.pods.List(ctx, &one)
		if err != nil {
			return nil, err
		}
		return obj.(*ClusterPodList), nil
	}
	const prefix = "/" // of keys in continue tokens
	asked := storage.ListOptions{ResourceVersion: options.ResourceVersion, ResourceVersionMatch: options.ResourceVersionMatch, Recursive: true, Predicate: storage.SelectionPredicate{Limit: options.Limit, Continue: options.Continue}}
	revision, from, err := storage.ValidateListOptions(prefix, storage.APIObjectVersioner{}, asked)
	if err != nil {
		return nil, err
	}
	from = strings.TrimPrefix(from, prefix)
	found, last := map[string]ClusterPod{}, "" // last is the name up to which every value was read
	if len(values) == 0 {
		values = []string{""} // no pod has this value: the read is for the revision
	}
	for _, wanted := range values {
		value, _ := podimages.Wanted(wanted, "")
		one := *options
		one.FieldSelector, one.Continue = fields.AndSelectors(selected, fields.OneTermEqualSelector(imageField, value)), ""
		switch {
		case from != "":
			if one.Continue, err = storage.EncodeContinue(prefix+from, prefix, cmp.Or(revision, -1)); err != nil {
				return nil, err
			}
			one.ResourceVersion, one.ResourceVersionMatch = "", ""
		case revision > 0:
			one.ResourceVersion, one.ResourceVersionMatch = fmt.Sprint(revision), metav1.ResourceVersionMatchExact
		}
		obj, err := c.pods.List(ctx, &one)
		if err != nil {
			return nil, err
		}
		list := obj.(*ClusterPodList)
		if revision <= 0 {
			version, err := storage.APIObjectVersioner{}.ParseResourceVersion(list.ResourceVersion)
			if err != nil {
				return nil, err
			}
			revision = int64(version)
		}
		for _, pod := range list.Items {
			if _, on := podimages.Wanted(wanted, pod.Spec.Platform); on {
				found[pod.Name] = pod
			}
		}
		if n := len(list.Items); list.Continue != "" && n > 0 && (last == "" || list.Items[n-1].Name < last) {
			last = list.Items[n-1].Name
		}
	}
	list := &ClusterPodList{Items: make([]ClusterPod, 0, len(found))}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if last != "" && name > last {
			break
		}
		if options.Limit > 0 && int64(len(list.Items)) == options.Limit {
			last = list.Items[len(list.Items)-1].Name
			break
		}
		list.Items = append(list.Items, found[name])
	}
	list.ResourceVersion = fmt.Sprint(revision)
	if last != "" {
		list.Continue, _, err = storage.PrepareContinueToken(prefix+last, prefix, revision, 0, true, asked)
	}
	return list, err
}

package clusters

import (
	"testing"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/db/kubestore"
)

// listedThen calls then once its keys are listed, before who asked sees them.
type listedThen struct {
	cache.Store
	then func()
}

func (s listedThen) ListKeys() []string {
	keys := s.Store.ListKeys()
	s.then()
	return keys
}

// A cluster is synced also if a pod is deleted, and the deletion handled, between the list of all pods and the
// comparison with those that are stored.
func TestPodIsGoneWhileAClusterBegins(t *testing.T) {
	t.Parallel()
	if err := Install(legacyscheme.Scheme); err != nil {
		t.Fatal(err)
	}
	c, err := New(kubestore.NewGetter(dbtest.Open(t), legacyscheme.Codecs, kubestore.Options{}), legacyscheme.Scheme, Options{Sources: []Source{{Name: "prod"}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := genericapirequest.WithNamespace(t.Context(), metav1.NamespaceNone)
	w := newWriter(c.followers[0])
	defer w.queue.ShutDown()
	handle := func() { // what run does, until nothing is queued
		for w.queue.Len() > 0 {
			k, _ := w.queue.Get()
			if err := w.write(ctx, k); err != nil {
				t.Fatal(err)
			}
			w.done(k)
			w.queue.Done(k)
		}
	}
	pods := cache.NewStore(cache.MetaNamespaceKeyFunc)
	none := unique.Make("")
	deleted, kept := &pod{key: "team/deleted", node: none, account: none}, &pod{key: "team/kept", node: none, account: none}
	for _, p := range []*pod{deleted, kept} {
		if err := pods.Add(p); err != nil {
			t.Fatal(err)
		}
	}
	w.OnAdd(kept, true)
	w.store = listedThen{pods, func() {
		if err := pods.Delete(deleted); err != nil {
			t.Fatal(err)
		}
		w.OnDelete(deleted)
		handle()
	}}
	w.begin(ctx)
	handle()
	if f := c.followers[0]; !f.isSynced() || f.pods != 1 {
		t.Errorf("synced is %v, with %d pods; still expected: %v", f.isSynced(), f.pods, w.initial)
	}
}

package e2e

import (
	"fmt"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/tidewaiter/tidewaiter/e2e/harness"
	"github.com/tidewaiter/tidewaiter/e2e/images"
	"github.com/tidewaiter/tidewaiter/e2e/registry"
)

// An informer that runs while 1,000 images are imported hears of each exactly
// once, and holds in the end what a list shows.
func TestInformerSeesEveryImportOnce(t *testing.T) {
	t.Parallel()
	informerSeesEveryImport(t, harness.StartServer(t), 1000)
}

func informerSeesEveryImport(t *testing.T, s *harness.Server, n int) {
	r := registry.Start(t, registry.Distribution)
	imgs := images.Numbered(t, n)
	r.PushAll(t, "team/app", imgs)

	client, err := dynamic.NewForConfig(s.Config(t))
	if err != nil {
		t.Fatal(err)
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	informer := factory.ForResource(imageResource).Informer()
	var mu sync.Mutex
	added, updated, deleted := map[string]int{}, 0, 0
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			mu.Lock()
			defer mu.Unlock()
			added[obj.(metav1.Object).GetName()]++
		},
		UpdateFunc: func(_, _ any) { mu.Lock(); defer mu.Unlock(); updated++ },
		DeleteFunc: func(_ any) { mu.Lock(); defer mu.Unlock(); deleted++ },
	}); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the informer did not sync")
	}

	for _, p := range startImports(t, 4, r.References("team/app", n), "--kubeconfig", s.Kubeconfig) {
		if code := p.Wait(t); code != 0 {
			t.Errorf("exit code %d: %s", code, p.Stderr)
		}
	}
	harness.Eventually(t, func() error {
		mu.Lock()
		defer mu.Unlock()
		if len(added) < n {
			return fmt.Errorf("%d of %d images were added", len(added), n)
		}
		return nil
	})
	// One more write is heard of last: nothing is still under way.
	s.KubectlStdin(t, plainImage("last"), "create", "-f", "-")
	harness.Eventually(t, func() error {
		mu.Lock()
		defer mu.Unlock()
		if added["last"] == 0 {
			return fmt.Errorf("the last image was not heard of")
		}
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	for name, times := range added {
		if times != 1 {
			t.Errorf("%s was added %d times", name, times)
		}
	}
	for _, img := range imgs {
		if name := images.Digest(t, img).String(); added[name] == 0 {
			t.Errorf("%s was never added", name)
		}
	}
	if len(added) != n+1 || updated != 0 || deleted != 0 {
		t.Errorf("%d added, %d updated, %d deleted; want %d, 0, 0", len(added), updated, deleted, n+1)
	}
	if got := len(informer.GetStore().ListKeys()); got != n+1 {
		t.Errorf("the informer holds %d images, want %d", got, n+1)
	}
	if got := len(imageNames(t, s)); got != n+1 {
		t.Errorf("a list shows %d images, want %d", got, n+1)
	}
}

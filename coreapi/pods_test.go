package coreapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"github.com/tidewaiter/tidewaiter/coreapi"
	"github.com/tidewaiter/tidewaiter/coreapi/clusters"
	"github.com/tidewaiter/tidewaiter/db"
	"github.com/tidewaiter/tidewaiter/db/dbtest"
	"github.com/tidewaiter/tidewaiter/internal/reference"
)

func TestPodLifeCycle(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	pods := s.CoreV1().Pods("team")

	made := s.createPod(t, "team", pod("a"))
	if made.Spec.RestartPolicy != corev1.RestartPolicyAlways || made.Status.Phase != corev1.PodPending || *made.Spec.TerminationGracePeriodSeconds != 30 {
		t.Errorf("the pod is not defaulted: %+v", made.Spec)
	}
	bad := pod("bad")
	bad.Spec.Containers[0].Name = "Not_A_Label"
	bad.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 70000}}
	_, err := pods.Create(t.Context(), bad, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.containers[0].name") || !strings.Contains(err.Error(), "spec.containers[0].ports[0].containerPort") {
		t.Errorf("an invalid pod: %v; want 422 with both field paths", err)
	}

	// binding
	if err := pods.Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Target: corev1.ObjectReference{Kind: "Node", Name: "worker-1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bound, err := pods.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=worker-1,status.phase=Pending"})
	if err != nil || len(bound.Items) != 1 {
		t.Errorf("by node and phase: %v, %v", bound, err)
	}
	if err := pods.Bind(t.Context(), &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Target: corev1.ObjectReference{Kind: "Node", Name: "worker-2"}}, metav1.CreateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("bound twice: %v, want 409", err)
	}

	// graceful deletion of an assigned pod: it waits for its kubelet
	if err := pods.Delete(t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](7)}); err != nil {
		t.Fatal(err)
	}
	ending, err := pods.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || ending.DeletionTimestamp == nil || *ending.DeletionGracePeriodSeconds != 7 {
		t.Errorf("after a graceful deletion: %+v, %v", ending, err)
	}
	if err := pods.Delete(t.Context(), "a", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a forced deletion: %v", err)
	}

	// finalizers, preconditions
	held := pod("held")
	held.Finalizers = []string{"example.com/hold"}
	held = s.createPod(t, "team", held)
	wrong := types.UID("other")
	if err := pods.Delete(t.Context(), "held", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}}); !apierrors.IsConflict(err) {
		t.Errorf("deletion of another UID: %v, want 409", err)
	}
	if err := pods.Delete(t.Context(), "held", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &held.UID}}); err != nil {
		t.Fatal(err)
	}
	if got, err := pods.Get(t.Context(), "held", metav1.GetOptions{}); err != nil || got.DeletionTimestamp == nil {
		t.Errorf("a pod with a finalizer: %+v, %v; want it to be ending", got, err)
	}
	if _, err := pods.Patch(t.Context(), "held", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.Get(t.Context(), "held", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("without its finalizer: %v", err)
	}

	// delete options
	s.createPod(t, "team", pod("b"))
	background := metav1.DeletePropagationBackground
	//lint:ignore SA1019 the deprecated field is what is tested
	err = pods.Delete(t.Context(), "b", metav1.DeleteOptions{PropagationPolicy: &background, OrphanDependents: ptr.To(true)})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "orphanDependents and deletionPropagation cannot be both set") {
		t.Errorf("orphanDependents with propagationPolicy: %v, want 422", err)
	}
	if err := pods.Delete(t.Context(), "b", metav1.DeleteOptions{DryRun: []string{"All"}}); err != nil {
		t.Error(err)
	}
	if err := pods.Delete(t.Context(), "b", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Errorf("after a dry run: %v", err)
	}

	// eviction, ephemeral containers, owner references
	owner := s.createPod(t, "team", pod("owner"))
	owned := pod("c")
	owned.Labels = map[string]string{"app": "c"}
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: owner.Name, UID: owner.UID, Controller: ptr.To(true)}}
	owned = s.createPod(t, "team", owned)
	owned.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "busybox", TerminationMessagePolicy: corev1.TerminationMessageReadFile, ImagePullPolicy: corev1.PullAlways}}}
	if got, err := pods.UpdateEphemeralContainers(t.Context(), "c", owned, metav1.UpdateOptions{}); err != nil || len(got.Spec.EphemeralContainers) != 1 {
		t.Errorf("ephemeral containers: %v, %v", got, err)
	}
	if err := s.PolicyV1().Evictions("team").Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "c"}}); err != nil {
		t.Errorf("eviction: %v", err)
	}
	if _, err := pods.Get(t.Context(), "c", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after its eviction: %v", err)
	}
}

// A ready pod that runs is evicted too: its budgets are looked up, and none exist.
func TestEvictionOfARunningPod(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	p := pod("a")
	p.Labels = map[string]string{"app": "a"}
	p = s.createPod(t, "team", p)
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if _, err := s.CoreV1().Pods("team").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.PolicyV1().Evictions("team").Evict(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a"}}); err != nil {
		t.Error(err)
	}
}

func TestInformerSeesEveryChange(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	s.createPod(t, "team", pod("before"))
	factory := informers.NewSharedInformerFactory(s.Clientset, 0)
	informer := factory.Core().V1().Pods().Informer()
	seen := make(chan string, 16)
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen <- "add " + obj.(*corev1.Pod).Name },
		UpdateFunc: func(_, obj any) { seen <- "update " + obj.(*corev1.Pod).Name },
		DeleteFunc: func(obj any) { seen <- "delete " + obj.(*corev1.Pod).Name },
	}); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-seen:
			if got != want {
				t.Fatalf("informer says %q, want %q", got, want)
			}
		case <-time.After(patience):
			t.Fatalf("informer does not say %q", want)
		}
	}
	expect("add before")
	s.createPod(t, "team", pod("after"))
	expect("add after")
	if _, err := s.CoreV1().Pods("team").Patch(t.Context(), "after", types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("update after")
	if err := s.CoreV1().Pods("team").Delete(t.Context(), "before", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	expect("update before") // its deletion timestamp
	expect("delete before")
}

// A server's own pods are those of the cluster local, whether or not it follows another: its index
// of images and clusterpods have them.
func TestUsageFollowsTheServersPods(t *testing.T) {
	t.Parallel()
	s := follow(t, dbtest.Open(t))
	digest := "sha256:" + strings.Repeat("a", 64)
	uses := func(want int) {
		t.Helper()
		eventually(t, fmt.Sprint(want, " pods use the image"), func() (bool, any) {
			got := s.api.Usage.PodsUsing([]string{digest}, []reference.Reference{{Host: "registry.example.com", Repository: "app", Tag: "1"}})
			return s.api.Usage.Synced() && got == want, got
		})
	}
	uses(0)
	s.createPod(t, "team", pod("a"))
	made := s.createPod(t, "other", pod("b"))
	uses(2)
	made.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", ImageID: "registry.example.com/app@" + digest}}
	if _, err := s.CoreV1().Pods("other").UpdateStatus(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.uses(t, digest, 1)
	if got, want := s.api.Usage.UsedBy([]string{digest}, nil), []string{"local", "local/other"}; !slices.Equal(got, want) {
		t.Errorf("the image is used by %q, want %q", got, want)
	}
	s.cluster(t, "local", "it has the pods", func(c *clusters.Cluster) bool { return c.Status.Pods == 2 })
	stored := dynamic.NewForConfigOrDie(s.config).Resource(clusters.GroupVersion.WithResource("clusterpods"))
	if _, err := stored.Get(t.Context(), "local:team:a", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if why := s.api.Usage.Unfollowed(); !strings.Contains(why, "no cluster is followed") {
		t.Errorf("with own pods alone it is unknown what runs elsewhere: %q", why)
	}
	if err := s.CoreV1().Pods("team").Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	uses(1)
	s.cluster(t, "local", "it has the pod that is left", func(c *clusters.Cluster) bool { return c.Status.Pods == 1 })
}

// Requests that a client library would not send are answered as Kubernetes
// answers them.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	client, err := rest.HTTPClientFor(s.config)
	if err != nil {
		t.Fatal(err)
	}
	s.createPod(t, "team", pod("a"))
	const path = "/api/v1/namespaces/team/pods"
	body := func(change func(*corev1.Pod)) string {
		p := pod("new")
		p.APIVersion, p.Kind = "v1", "Pod"
		if change != nil {
			change(p)
		}
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	unknown := strings.Replace(body(nil), `"spec":{`, `"spec":{"colour":"red",`, 1)
	duplicate := strings.Replace(body(nil), `"spec":{`, `"spec":{"hostname":"a","hostname":"b",`, 1)
	huge := body(func(p *corev1.Pod) { p.Annotations = map[string]string{"a": strings.Repeat("x", 3<<20)} })
	const jsonType = "application/json"
	for _, test := range []struct {
		name, verb, path, contentType, accept, body string
		code                                        int
		// in the body, or in the warnings of a success
		says string
	}{
		{name: "unknown field, Strict", verb: "POST", path: path + "?dryRun=All&fieldValidation=Strict", body: unknown, code: 400, says: `unknown field \"spec.colour\"`},
		{name: "unknown field, Warn", verb: "POST", path: path + "?dryRun=All&fieldValidation=Warn", body: unknown, code: 201, says: `unknown field "spec.colour"`},
		{name: "unknown field, Ignore", verb: "POST", path: path + "?dryRun=All&fieldValidation=Ignore", body: unknown, code: 201},
		{name: "duplicate field, Strict", verb: "POST", path: path + "?dryRun=All&fieldValidation=Strict", body: duplicate, code: 400, says: `duplicate field \"spec.hostname\"`},
		{name: "duplicate field, Warn", verb: "POST", path: path + "?dryRun=All&fieldValidation=Warn", body: duplicate, code: 201, says: `duplicate field "spec.hostname"`},
		{name: "duplicate field, Ignore", verb: "POST", path: path + "?dryRun=All&fieldValidation=Ignore", body: duplicate, code: 201},
		{name: "content type", verb: "POST", path: path, contentType: "text/html", body: body(nil), code: 415},
		{name: "patch content type", verb: "PATCH", path: path + "/a", body: "{}", code: 415},
		{name: "accept", verb: "GET", path: path, accept: "text/html", code: 406},
		{name: "over 3 MiB", verb: "POST", path: path, body: huge, code: 413},
		{name: "another name in the body", verb: "PUT", path: path + "/a", body: body(nil), code: 400, says: "does not match"},
		{name: "another namespace in the body", verb: "POST", path: path, body: body(func(p *corev1.Pod) { p.Namespace = "other" }), code: 400, says: "does not match"},
		{name: "stale resourceVersion", verb: "PUT", path: path + "/a", body: body(func(p *corev1.Pod) { p.Name, p.ResourceVersion = "a", "1" }), code: 409, says: "modified"},
		{name: "no JSON", verb: "POST", path: path, body: "{", code: 400},
		{name: "no body", verb: "POST", path: path, code: 400},
		{name: "no such resource", verb: "GET", path: "/api/v1/namespaces/team/ships", code: 404},
		{name: "no such verb", verb: "PUT", path: path, body: body(nil), code: 405},
		{name: "exists", verb: "POST", path: path, body: body(func(p *corev1.Pod) { p.Name = "a" }), code: 409, says: "already exists"},
	} {
		t.Run(test.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), test.verb, s.config.Host+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			if test.contentType == "" {
				test.contentType = jsonType
			}
			req.Header.Set("Content-Type", test.contentType)
			if test.accept != "" {
				req.Header.Set("Accept", test.accept)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			answer, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			said := string(answer)
			if resp.StatusCode < 300 {
				said = strings.ReplaceAll(strings.Join(resp.Header.Values("Warning"), "\n"), `\"`, `"`)
				if test.says == "" && said != "" {
					t.Errorf("warned of %s", said)
				}
			}
			if resp.StatusCode != test.code || !strings.Contains(said, test.says) {
				t.Errorf("answered %d: %s\nwant %d with %q", resp.StatusCode, bytes.TrimSpace([]byte(said)), test.code, test.says)
			}
		})
	}
}

// A watch from a version that is no longer kept is answered 410.
func TestWatchFromACompactedVersion(t *testing.T) {
	t.Parallel()
	d := dbtest.Open(t, func(o *db.Options) { o.HistoryWindow, o.MaintenanceInterval = 10*time.Millisecond, 10*time.Millisecond })
	s := startOn(t, d, coreapi.Options{})
	old := s.createPod(t, "team", pod("a"))
	eventually(t, "410", func() (bool, any) {
		if _, err := s.CoreV1().Pods("team").Patch(t.Context(), "a", types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"at":"%d"}}}`, time.Now().UnixNano()), metav1.PatchOptions{}); err != nil {
			return false, err
		}
		w, err := s.CoreV1().Pods("team").Watch(t.Context(), metav1.ListOptions{ResourceVersion: old.ResourceVersion})
		if err != nil {
			return apierrors.IsResourceExpired(err) || apierrors.IsGone(err), err
		}
		defer w.Stop()
		e := <-w.ResultChan()
		err = apierrors.FromObject(e.Object)
		return e.Type == "ERROR" && (apierrors.IsResourceExpired(err) || apierrors.IsGone(err)), e
	})
}

// Tables have the columns of Kubernetes.
func TestTables(t *testing.T) {
	t.Parallel()
	s := start(t, coreapi.Options{})
	s.createPod(t, "team", pod("a"))
	s.createService(t, "team", service("a", nil))
	for path, want := range map[string]string{
		"/api/v1/namespaces/team/pods":                               "Name Ready Status Restarts Age IP Node Nominated Node Readiness Gates",
		"/api/v1/namespaces/team/services":                           "Name Type Cluster-IP External-IP Port(s) Age Selector",
		"/api/v1/namespaces/team/events":                             "Last Seen Type Reason Object Subobject Source Message First Seen Count Name",
		"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases": "Name Holder Age",
		"/api/v1/namespaces":                                         "Name Status Age",
	} {
		client, err := kubernetes.NewForConfig(s.config)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := client.RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var table metav1.Table
		if err := json.Unmarshal(raw, &table); err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, c := range table.ColumnDefinitions {
			names = append(names, c.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s has columns %q, want %q", path, got, want)
		}
	}
}

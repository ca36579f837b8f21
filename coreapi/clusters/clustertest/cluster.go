// Package clustertest runs a cluster for tests: the part of kube-apiserver that a follower uses,
// with resources that Tidewaiter's own API does not serve.
package clustertest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Cluster is an API server for gets, lists and watches of pods, nodes, secrets, service accounts
// and the kinds of Kubernetes that make pods, with discovery.
type Cluster struct {
	server *httptest.Server

	mu      sync.Mutex
	objects map[string]metav1.Object // by resource/namespace/name
	// all events so far; the one at i has the resource version i+1
	events    []event
	more      chan struct{}   // closed when there are more events
	forbidden map[string]bool // resources that are refused
	asked     []string        // paths of objects that were read by name
	kinds     map[string]metav1.APIResource
	hangs     chan struct{} // closed when requests are answered again; nil while they are
}

type event struct {
	resource, kind string
	object         json.RawMessage
	meta           metav1.ObjectMeta
}

// New returns a cluster without objects, which serves until the test ends.
func New(t testing.TB) *Cluster {
	c := &Cluster{objects: map[string]metav1.Object{}, more: make(chan struct{}), forbidden: map[string]bool{}, kinds: map[string]metav1.APIResource{}}
	for gv, kinds := range map[string]string{
		"/v1": "Pod Node Secret ServiceAccount ReplicationController", "batch/v1": "Job CronJob",
		"apps/v1": "Deployment ReplicaSet StatefulSet DaemonSet ControllerRevision",
	} {
		for _, kind := range strings.Fields(kinds) {
			c.Serve(gv, kind)
		}
	}
	c.server = httptest.NewServer(c)
	t.Cleanup(func() {
		c.Hang(false)
		c.server.CloseClientConnections() // watches do not end by themselves
		c.server.Close()
	})
	return c
}

// Config returns the configuration of a client of the cluster.
func (c *Cluster) Config() (*rest.Config, error) { return &rest.Config{Host: c.server.URL}, nil }

// Kubeconfig returns a kubeconfig for the cluster.
func (c *Cluster) Kubeconfig() []byte {
	return fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: t}}]\n", c.server.URL)
}

// Forbid refuses all requests about resources, such as "nodes".
func (c *Cluster) Forbid(resources ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range resources {
		c.forbidden[r] = true
	}
}

// Allow answers requests about resources again.
func (c *Cluster) Allow(resources ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range resources {
		delete(c.forbidden, r)
	}
}

// Serve serves a kind of a group and version, which clients may also create.
func (c *Cluster) Serve(groupVersion, kind string) {
	group, version, _ := strings.Cut(groupVersion, "/")
	resource := strings.ToLower(kind) + "s"
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[resource] = metav1.APIResource{Name: resource, Namespaced: true, Group: group, Version: version, Kind: kind, Verbs: metav1.Verbs{"create", "get", "list", "watch"}}
}

// Hang delays the answers to all requests and the events of watches until it is called with false.
func (c *Cluster) Hang(hangs bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case hangs && c.hangs == nil:
		c.hangs = make(chan struct{})
	case !hangs && c.hangs != nil:
		close(c.hangs)
		c.hangs = nil
	}
}

// hung waits while the cluster hangs.
func (c *Cluster) hung(req *http.Request) {
	c.mu.Lock()
	hangs := c.hangs
	c.mu.Unlock()
	if hangs != nil {
		select {
		case <-hangs:
		case <-req.Context().Done():
		}
	}
}

// Asked returns the objects that were read by name, as resource/namespace/name.
func (c *Cluster) Asked() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.asked)
}

// Set creates or replaces objects: a Pod, Node, Secret or ServiceAccount, or an Unstructured of a
// kind that is served.
func (c *Cluster) Set(objects ...metav1.Object) {
	for _, o := range objects {
		c.change(o, false)
	}
}

// Delete deletes an object.
func (c *Cluster) Delete(o metav1.Object) { c.change(o, true) }

func (c *Cluster) change(o metav1.Object, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resource := ""
	version := strconv.Itoa(len(c.events) + 1)
	switch o := o.(type) {
	case *corev1.Pod:
		resource, o.TypeMeta = "pods", metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	case *corev1.Node:
		resource, o.TypeMeta = "nodes", metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
	case *corev1.Secret:
		resource, o.TypeMeta = "secrets", metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}
	case *corev1.ServiceAccount:
		resource, o.TypeMeta = "serviceaccounts", metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}
	case *unstructured.Unstructured:
		resource = strings.ToLower(o.GetKind()) + "s"
	}
	o.SetResourceVersion(version)
	key, kind := resource+"/"+o.GetNamespace()+"/"+o.GetName(), "ADDED"
	if _, ok := c.objects[key]; ok {
		kind = "MODIFIED"
	}
	if c.objects[key] = o; gone {
		delete(c.objects, key)
		kind = "DELETED"
	}
	b, _ := json.Marshal(o) // tests make objects that marshal
	c.events = append(c.events, event{resource, kind, b, metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName()}})
	close(c.more)
	c.more = make(chan struct{})
}

// ServeHTTP serves the API.
func (c *Cluster) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	c.hung(req)
	w.Header().Set("Content-Type", "application/json")
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	root := 2 // api/v1
	if parts[0] == "apis" {
		root = 3 // apis/GROUP/VERSION
	}
	if len(parts) <= root {
		c.discover(w, parts[1:])
		return
	}
	parts = parts[root:]
	namespace, name := "", ""
	if parts[0] == "namespaces" && len(parts) > 2 {
		namespace, parts = parts[1], parts[2:]
	}
	resource := parts[0]
	if len(parts) > 1 {
		name = parts[1]
	}
	c.mu.Lock()
	forbidden := c.forbidden[resource]
	if name != "" {
		c.asked = append(c.asked, resource+"/"+namespace+"/"+name)
	}
	c.mu.Unlock()
	selector, err := fields.ParseSelector(req.URL.Query().Get("fieldSelector"))
	gr := schema.GroupResource{Resource: resource}
	switch {
	case forbidden:
		refuse(w, apierrors.NewForbidden(gr, name, fmt.Errorf("the test says so")))
	case err != nil:
		refuse(w, apierrors.NewBadRequest(err.Error()))
	case name != "":
		c.mu.Lock()
		o := c.objects[resource+"/"+namespace+"/"+name]
		c.mu.Unlock()
		if o == nil {
			refuse(w, apierrors.NewNotFound(gr, name))
			return
		}
		_ = json.NewEncoder(w).Encode(o) // the client may be gone
	default:
		wants := func(o metav1.ObjectMeta) bool {
			return (namespace == "" || namespace == o.Namespace) && selector.Matches(fields.Set{"metadata.namespace": o.Namespace, "metadata.name": o.Name})
		}
		if req.URL.Query().Get("watch") != "" {
			c.watch(w, req, resource, wants)
		} else {
			c.list(w, resource, wants)
		}
	}
}

// discover returns the versions of a group, or the kinds of a group and version.
func (c *Cluster) discover(w http.ResponseWriter, of []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	group, version := of[0], of[len(of)-1]
	if len(of) == 1 && group == "v1" {
		group = ""
	}
	found := []metav1.APIResource{}
	for _, kind := range c.kinds {
		if kind.Group == group && (len(of) == 1 && group != "" || kind.Version == version) {
			found = append(found, kind)
		}
	}
	switch {
	case len(found) == 0:
		refuse(w, apierrors.NewNotFound(schema.GroupResource{Group: group}, version))
	case len(of) == 1 && group != "":
		first := metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + found[0].Version, Version: found[0].Version}
		_ = json.NewEncoder(w).Encode(metav1.APIGroup{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIGroup"}, Name: group, Versions: []metav1.GroupVersionForDiscovery{first}, PreferredVersion: first})
	default:
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "APIResourceList"}, GroupVersion: strings.Join(of, "/"), APIResources: found})
	}
}

func refuse(w http.ResponseWriter, err *apierrors.StatusError) {
	w.WriteHeader(int(err.ErrStatus.Code))
	s := err.Status()
	s.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	_ = json.NewEncoder(w).Encode(s)
}

// snapshot returns the objects, and how many events they include.
func (c *Cluster) snapshot(resource string, wants func(metav1.ObjectMeta) bool) (found []metav1.Object, version int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, o := range c.objects {
		if strings.HasPrefix(key, resource+"/") && wants(metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName()}) {
			found = append(found, o)
		}
	}
	slices.SortFunc(found, func(a, b metav1.Object) int {
		return cmp.Compare(a.GetNamespace()+"/"+a.GetName(), b.GetNamespace()+"/"+b.GetName())
	})
	return found, len(c.events)
}

// kind returns the group and version, and the kind, of a resource.
func (c *Cluster) kind(resource string) (groupVersion, kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.kinds[resource]
	return schema.GroupVersion{Group: k.Group, Version: k.Version}.String(), k.Kind
}

func (c *Cluster) list(w http.ResponseWriter, resource string, wants func(metav1.ObjectMeta) bool) {
	found, version := c.snapshot(resource, wants)
	gv, kind := c.kind(resource)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": gv, "kind": kind + "List", "metadata": map[string]any{"resourceVersion": strconv.Itoa(version)}, "items": found,
	})
}

func (c *Cluster) watch(w http.ResponseWriter, req *http.Request, resource string, wants func(metav1.ObjectMeta) bool) {
	send := func(kind string, object any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object})
	}
	at, _ := strconv.Atoi(req.URL.Query().Get("resourceVersion"))
	if req.URL.Query().Get("sendInitialEvents") == "true" {
		var found []metav1.Object
		found, at = c.snapshot(resource, wants)
		for _, o := range found {
			send("ADDED", o)
		}
		gv, kind := c.kind(resource)
		send("BOOKMARK", map[string]any{"apiVersion": gv, "kind": kind, "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(at), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	for {
		_ = http.NewResponseController(w).Flush()
		c.mu.Lock()
		news, more := c.events[at:], c.more
		c.mu.Unlock()
		for _, e := range news {
			if e.resource == resource && wants(e.meta) {
				send(e.kind, e.object)
			}
		}
		if at += len(news); len(news) > 0 {
			continue
		}
		select {
		case <-more:
			c.hung(req)
		case <-req.Context().Done():
			return
		}
	}
}

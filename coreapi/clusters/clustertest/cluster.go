// Package clustertest runs a cluster for tests: the part of kube-apiserver that a follower uses, with resources that
// Tidewaiter's own API does not serve.
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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Cluster is an API server that answers gets, lists and watches of pods, nodes, secrets and service accounts.
type Cluster struct {
	server *httptest.Server

	mu        sync.Mutex
	objects   map[string]metav1.Object // by resource/namespace/name
	events    []event                  // all events so far; the one at i has the resource version i+1
	more      chan struct{}            // closed when there are more events
	forbidden map[string]bool          // resources that are refused
	asked     []string                 // paths of objects that were read by name
}

type event struct {
	resource, kind string
	object         json.RawMessage
	meta           metav1.ObjectMeta
}

// New returns a cluster without objects, which serves until the test ends.
func New(t testing.TB) *Cluster {
	c := &Cluster{objects: map[string]metav1.Object{}, more: make(chan struct{}), forbidden: map[string]bool{}}
	c.server = httptest.NewServer(c)
	t.Cleanup(func() {
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

// Asked returns the objects that were read by name, as resource/namespace/name.
func (c *Cluster) Asked() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.asked)
}

// Set creates or replaces objects: a Pod, Node, Secret or ServiceAccount.
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
	w.Header().Set("Content-Type", "application/json")
	parts := strings.Split(strings.TrimPrefix(req.URL.Path, "/api/v1/"), "/")
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

var kinds = map[string]string{"pods": "Pod", "nodes": "Node", "secrets": "Secret", "serviceaccounts": "ServiceAccount"}

func (c *Cluster) list(w http.ResponseWriter, resource string, wants func(metav1.ObjectMeta) bool) {
	found, version := c.snapshot(resource, wants)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"apiVersion": "v1", "kind": kinds[resource] + "List", "metadata": map[string]any{"resourceVersion": strconv.Itoa(version)}, "items": found,
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
		send("BOOKMARK", map[string]any{"apiVersion": "v1", "kind": kinds[resource], "metadata": map[string]any{
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
		case <-req.Context().Done():
			return
		}
	}
}

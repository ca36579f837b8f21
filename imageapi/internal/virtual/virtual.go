// Package virtual has the common part of the storages of kinds that are not stored. The server
// makes their objects when a client requests them.
package virtual

import "k8s.io/apimachinery/pkg/runtime"

// Resource is the part of a rest.Storage that says what it is about. It is also a rest.Scoper and a
// rest.SingularNameProvider.
type Resource struct {
	// Object is an empty object of the kind.
	Object     runtime.Object
	Namespaced bool
	Singular   string
}

// New returns an empty object of the kind.
func (r Resource) New() runtime.Object { return r.Object.DeepCopyObject() }

// Destroy has nothing to do: the storages below belong to others.
func (Resource) Destroy() {}

// NamespaceScoped reports whether objects of the kind belong to a namespace.
func (r Resource) NamespaceScoped() bool { return r.Namespaced }

// GetSingularName returns the name of one object in commands.
func (r Resource) GetSingularName() string { return r.Singular }

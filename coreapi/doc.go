// Package coreapi serves pods, services, service accounts, events, leases and namespaces exactly
// as Kubernetes does, with Kubernetes' own registries, validation, defaulting and printers, over
// whatever storage they are given.
//
// [New] builds the API groups (core v1, events.k8s.io/v1, coordination.k8s.io/v1,
// and with an authorizer rbac.authorization.k8s.io/v1 and authorization.k8s.io/v1)
// and the hooks that must run beside them:
//
//   - service IPs and node ports are allocated from bitmaps kept in the storage
//     (package ranges) and repaired at start and every few minutes;
//   - a namespace comes into being with the first object created in it, and
//     Kubernetes' namespace controller empties one that is deleted;
//   - Kubernetes' controller makes the service account "default" in each namespace;
//   - Kubernetes' garbage collector deletes what is owned by what is gone;
//   - package usage follows the pods and knows which images they use;
//   - package access decides who may do what, by the roles that are stored here;
//   - package podlogs reads their logs;
//   - the server renews a Lease as long as it is alive.
//
// Package events lets the rest of the server report what it does.
//
// # What differs from a cluster
//
// There are no nodes and no scheduler: a pod runs only if something binds it and plays its
// kubelet. A pod that is assigned to a node and deleted with a grace period stays until its
// kubelet, or a forced delete, removes it. No admission plugin runs. Evictions find no
// PodDisruptionBudget, since none is served. Namespaces need not be created first; see
// namespaces.go.
package coreapi

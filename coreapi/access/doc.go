// Package access decides who may do what on a server, exactly as kube-apiserver does,
// with kube-apiserver's authorizers, bootstrap roles and controller of aggregated roles.
//
// [New] makes the authorizer that [Options] describe. RBAC uses the roles and bindings
// that the server itself stores (package coreapi serves them). Informers read them over
// the server's in-process connection, so a decision costs no read of the database.
// [Access.Hooks] write the bootstrap roles and keep aggregated roles up to date. [Access.Storage]
// serves OpenShift's reviews of which users have a right.
//
// Until the informers have read all roles and bindings, only members of
// system:masters may do anything but read the health endpoints; the server is not
// ready before.
package access

// Package access decides who may do what on a server, exactly as kube-apiserver
// does, because it is kube-apiserver's authorizers, its bootstrap roles and its
// controller of aggregated roles.
//
// [New] makes the authorizer that [Options] describe. The roles and bindings that
// RBAC goes by are those that the server itself stores (package coreapi serves
// them); they are read by informers over the server's in-process connection, so a
// decision costs no read of the database. [Access.Hooks] bring the bootstrap roles
// into being and keep aggregated roles up to date.
//
// Until the informers have read all roles and bindings, only members of
// system:masters may do anything but read the health endpoints; the server is not
// ready before.
package access

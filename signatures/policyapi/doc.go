// Package policyapi serves the kinds ClusterImagePolicy and ImagePolicy of config.openshift.io/v1
// in an API server: their scheme, validation, REST storage, status and table.
//
// [Install] registers the kinds with a scheme, [New] returns the REST storages over any
// generic.RESTOptionsGetter. The rules are those of package policy, which reads the same documents
// from files: an object that violates one is refused with 422 and the field. Policies from files
// are shown as objects, too, which only the server writes.
//
// A policy is in force before its writer gets the answer ([Keeper]). A sweep then updates stored
// verdicts, and counts the images that each policy covers.
package policyapi

// Package policyapi is the kinds ClusterImagePolicy and ImagePolicy of config.openshift.io/v1 as an
// API server serves them: their scheme, validation, REST storage, status and table.
//
// [Install] registers the kinds with a scheme, [Storage] returns the REST storage over any
// generic.RESTOptionsGetter. The rules are those of package policy, which reads the same documents
// from files: an object that breaks one is answered 422 with the field. Policies of files are shown
// as objects, too, which only the server writes.
//
// Whatever is written is in force before the write is answered ([Keeper]); stored verdicts follow
// in a sweep, which also counts the images that each policy covers.
package policyapi

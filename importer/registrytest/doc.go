// Package registrytest runs an OCI registry inside a test.
//
// [New] starts one on loopback. It is go-containerregistry's registry, with the
// referrers API, behind a recorder of requests, authentication if asked for,
// and faults that a test injects. Package sample builds what to push.
package registrytest

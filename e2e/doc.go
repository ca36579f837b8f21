// Package e2e drives the built tidewaiter binary with programs it was not made
// for: kubectl, client-go and OCI registry servers. It is a module of its own, so
// that what the tests need does not weigh on those who import tidewaiter.
//
//	go run ./tools      # once: build the clients and registries into .tools
//	go test ./...       # everything, in a few minutes
//
// Flags of the tests: -attach DIR uses the running server of a data directory
// where a test does not need its own; -registries=distribution leaves out
// Debian's registry on a machine without apt.
package e2e

// Package harness runs the programs of the end-to-end tests: the tidewaiter
// binary, built once from the parent module, and the unmodified clients that
// `go run ./tools` puts into e2e/.tools.
//
// [StartServer] is where to begin: it serves a fresh data directory on a free
// port and returns a [Server], whose methods run kubectl and `tidewaiter import`
// against it. Everything it starts ends with the test; a test that fails prints
// the logs of what it started.
//
// Nothing here sleeps: waiting is for a condition, up to a deadline.
package harness

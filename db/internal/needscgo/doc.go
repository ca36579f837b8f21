// Package needscgo does not compile without cgo, and fails with a one-line message. SQLite is C, so
// package db imports needscgo: a build without a C compiler prints that line instead of an error
// for each use of the driver.
package needscgo

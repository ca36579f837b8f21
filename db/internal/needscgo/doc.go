// Package needscgo does not compile without cgo, and says so in one line. SQLite is C, so package
// db imports needscgo: without a C compiler a build prints that line, and not an error for each use
// of the driver.
package needscgo

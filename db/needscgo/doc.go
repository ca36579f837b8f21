// Package needscgo does not compile without cgo, and says so in one line. SQLite is C. Package db imports it, so that
// who lacks a C compiler reads that line, and not an error for each use of the driver.
package needscgo

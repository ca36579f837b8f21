// Package advisories compares what advisories touch with what osv-scanner says of the same lists of
// packages, and the order of versions with the cases of osv-scalibr, whose matcher osv-scanner has.
// The program is built by `go run -C e2e ./tools osv-scanner`; nothing of it is linked here.
//
//	go test -tags nightly ./advisories
package advisories

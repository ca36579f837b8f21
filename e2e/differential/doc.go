// Package differential compares verdicts with those of containers/image, the library by which
// Podman, CRI-O and skopeo decide what may run. It is a module of its own, because that library
// brings many others.
//
//	go test -tags containers_image_openpgp ./...
//
// The tag has the library verify OpenPGP in Go; without it the tests are not built.
package differential

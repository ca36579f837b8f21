// Package packages has ImagePackages: the packages of an image, from the SBOMs (software bills of
// materials) that its builders attached, and the statements of VEX documents about it. A list has
// the name, version, package URL and licence of each package, and the place of the document, which
// stays in the registry.
//
//	list := &packages.ImagePackages{…}
//	q, err := packages.ParseQuery("pkg:deb/debian/openssl")
//	found := q.In(list)
//
// The text of a document comes from whoever attached it. Package sbom bounds it and makes it
// printable.
package packages
